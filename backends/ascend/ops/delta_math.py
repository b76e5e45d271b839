"""The UT form of the gated delta rule from batched matmuls (Yang et al., 2024; design of the tree form: SpecLA).

All matrices are those of the equations transposed, [B*HV, source j, target i] or [B*HV, V or K, i]: so a state [V,K]
and the keys are read as they lie in memory. Everything is float32 (float64 of a float64 state); a bfloat16 state is
rounded when it is stored.
"""

from __future__ import annotations

import torch

from specc.backends.ascend.ops.attention import values
from specc.ir.ops.delta_math import EPS, rule_dtype


def unit_rows(x: torch.Tensor, dtype: torch.dtype, value_heads: int, queries: int) -> torch.Tensor:
    """x / sqrt(sum x^2 + eps) over the last dim; heads [B,R,H,K] repeated to [B,R,HV,K].

    The first `queries` rows are scaled by K^-0.5, under the root: sqrt(K sum x^2 + K eps).
    """
    _, rows, heads, dim = x.shape
    wide = x.to(dtype)
    is_query = torch.arange(rows, device=x.device).reshape(-1, 1, 1) < queries
    share = is_query.to(dtype) * (dim - 1) + 1.0
    normed = wide / torch.addcmul(share * EPS, (wide * wide).sum(-1, keepdim=True), share).sqrt()
    if heads == value_heads:
        return normed
    group = value_heads // heads
    return normed.index_select(2, torch.arange(value_heads, device=x.device) // group)


def numbers(parts: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors [B,R,HV], a number per row and head, as [B*HV,1,R]: moved together."""
    joined = torch.cat([part.to(dtype) for part in parts], dim=1)
    moved = joined.permute(0, 2, 1).reshape(-1, 1, joined.shape[1])
    return list(torch.split(moved, [part.shape[1] for part in parts], 2))


def unfolded(x: torch.Tensor, heads: int, dtype: torch.dtype) -> torch.Tensor:
    """[B*HV,V,R] as [B,R,HV,V]."""
    _, dim, rows = x.shape
    return x.reshape(-1, heads, dim, rows).permute(0, 3, 1, 2).to(dtype)


def tree_mask(v: torch.Tensor, mask: torch.Tensor | None, heads: int) -> torch.Tensor:
    """bool [B*HV,N,N]: source j is ancestor or self of target i; of mask [B,N,N] as [.., i, j] (None: a chain)."""
    batch, nodes = v.shape[:2]
    if mask is None:
        node = torch.arange(nodes, device=v.device)
        seen = node.unsqueeze(1) <= node
    else:
        seen = mask.transpose(1, 2).unsqueeze(1)
    return seen.expand(batch, heads, nodes, nodes).reshape(-1, nodes, nodes)


def unit_upper_inverse(a: torch.Tensor) -> torch.Tensor:
    """(I + A)^-1 of the strictly upper triangular part A [Z,N,N] of a, by block recursion with matmuls only.

    X <- X - X (A o M_s) X for s = 1, 2, 4, …, where M_s keeps pairs j < i of two halves of a block of 2s. Stable where
    the product form of powers of A is not (repeated keys, beta near 2).
    """
    size = a.shape[-1]
    place = torch.arange(size, device=a.device)
    inverse = (place.unsqueeze(1) == place).to(a.dtype)
    half = 1
    while half < size:
        part, block = place // half, place // (2 * half)
        pairs = (block.unsqueeze(1) == block) & (part.unsqueeze(1) < part)
        if half == 1:
            inverse = torch.addcmul(inverse, a, pairs.to(a.dtype), value=-1.0)
        else:
            links = a.masked_fill(pairs.logical_not(), 0.0)
            inverse = inverse - torch.bmm(torch.bmm(inverse, links), inverse)
        half *= 2
    return inverse if size > 1 else inverse.expand(a.shape[0], -1, -1)


def solve(
    gram: torch.Tensor,
    old: torch.Tensor,
    v: torch.Tensor,
    total: torch.Tensor,
    beta: torch.Tensor,
    seen: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """o, u [Z,V,N], the ratios e^(G_i - G_j) [Z,N,N] (0 where j is not seen) and e^G [Z,1,N] of N nodes.

    gram [Z,N,2N]: k_j . (q_i, then k_i); old [Z,V,2N]: the state's answers to (q_i, then k_i); v [Z,V,N]; total [Z,1,N]
    = G, the sum of g over a node's path; beta [Z,1,N]; seen bool [Z,N,N] as [.., j, i].

    (I + A) U = beta (V - e^G (K S^T)) with A_ij = beta_i e^(G_i - G_j) (k_i . k_j); O = e^G (Q S^T) + P U.
    """
    size = v.shape[2]
    # Masked before exp: between siblings the exponents may be positive and large.
    apart = total - total.reshape(-1, size, 1)
    ratio = apart.masked_fill(seen.logical_not(), float("-inf")).exp()
    decay = total.exp()
    near, links = torch.split(gram, [size, size], 2)
    answers, recalled = torch.split(old, [size, size], 2)
    inverse = unit_upper_inverse(links * (ratio * beta))
    u = torch.bmm(beta * torch.addcmul(v, decay, recalled, value=-1.0), inverse)
    o = torch.addcmul(torch.bmm(u, near * ratio), decay, answers)
    return o, u, ratio, decay


def path_sums(g: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """G [Z,1,N]: the sum of g [Z,1,N] over the nodes that each node sees."""
    return torch.bmm(g, seen.to(g.dtype))


def live_rows(live: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows [B,R,…] with zeros where `live` bool [B,R] is not: what those held has no effect."""
    return rows.masked_fill(live.logical_not().reshape(*live.shape, *[1] * (rows.dim() - 2)), 0.0)


def weights_behind(g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e^(G - G_j) [Z,1,R] and e^G [Z,1,1] of log decays g [Z,1,R], with G_j their running sum and G the last."""
    rows = g.shape[2]
    # Column j sums what comes after row j; the last column sums all.
    place = torch.arange(rows + 1, device=g.device)
    after = (place.narrow(0, 0, rows).unsqueeze(1) > place) | (place == rows)
    sums = torch.mm(g.reshape(-1, rows), after.to(g.dtype)).exp().unsqueeze(1)
    behind, all_rows = torch.split(sums, [rows, 1], 2)
    return behind, all_rows


def matrices(state: torch.Tensor) -> torch.Tensor:
    """State [B,HV,V,K] as [B*HV,V,K], in the type that the rule computes in."""
    return state.reshape(-1, *state.shape[2:]).to(rule_dtype(state.dtype))


def key_rows(x: torch.Tensor) -> torch.Tensor:
    """[B,R,HV,K] as [B*HV,R,K]."""
    return values(x)
