"""The arithmetic of the gated delta rule that its ops share.

State [B,HV,V,K] per value head: S' = e^g S, u = beta (v - S' k), S = S' + u k^T, o = S q (Yang et al., 2024, eq. 10;
design 04). q and k are raw: their l2 norms (eps 1e-6 inside the sum) and the factor K^-0.5 on q belong to the rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of T tokens in the rule's dtype, one head per value head.

    q, k [B,T,HV,K], v [B,T,HV,V], g, beta [B,T,HV].
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor


def rule_dtype(state: torch.dtype) -> torch.dtype:
    """What the rule computes in: the state's type, but float32 for a bfloat16 state, which is rounded when stored."""
    return torch.promote_types(state, torch.float32)


def widened(state: torch.Tensor) -> torch.Tensor:
    """A state tile as the rule computes with it."""
    return state.to(rule_dtype(state.dtype))


def unit(x: torch.Tensor, dtype: torch.dtype, value_heads: int) -> torch.Tensor:
    """x / sqrt(sum x^2 + eps) over the last dim, heads [.., H, K] repeated to [.., HV, K]."""
    wide = x.to(dtype)
    normed = wide * torch.rsqrt((wide * wide).sum(-1, keepdim=True) + EPS)
    return normed.repeat_interleave(value_heads // x.shape[-2], dim=-2)


def rows_of(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> Rows:
    """Operands of an op, prepared."""
    dtype, heads = rule_dtype(state.dtype), state.shape[1]
    scaled = unit(q, dtype, heads) * float(q.shape[-1]) ** -0.5
    return Rows(scaled, unit(k, dtype, heads), v.to(dtype), g.to(dtype), beta.to(dtype))


def step(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One token: state [..,V,K], q, k [..,K], v [..,V], g, beta [..] -> (o [..,V], u [..,V], state').

    Products and sums over K per element, in one order, so that equal inputs give equal bits in every schedule that
    goes token by token.
    """
    key = k.unsqueeze(-2)
    decayed = state * g.exp()[..., None, None]
    u = beta.unsqueeze(-1) * (v - (decayed * key).sum(-1))
    after = decayed + u.unsqueeze(-1) * key
    return (after * q.unsqueeze(-2)).sum(-1), u, after


def apply_factor(state: torch.Tensor, k: torch.Tensor, u: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The state update of `step` from its factors: e^g S + u k^T, in the same order of operations."""
    return state * g.exp()[..., None, None] + u.unsqueeze(-1) * k.unsqueeze(-2)


@dataclass(frozen=True, slots=True)
class Factors:
    """Factors of R rows that are applied together, relative to the state behind them.

    k [B,R,HV,K] normed, u [B,R,HV,V] already weighted by e^{G - G_j} (both zero where a row does not count), and
    decay [B,HV] = e^G, with G the sum of g over the rows that count.
    """

    k: torch.Tensor
    u: torch.Tensor
    decay: torch.Tensor

    def fold(self, state: torch.Tensor) -> torch.Tensor:
        """e^G S0 + sum_j e^{G - G_j} u_j k_j^T."""
        return state * self.decay[..., None, None] + torch.einsum("brhv,brhk->bhvk", self.u, self.k)

    def read(self, state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """What `fold(state)` gives for x [B,HV,N,K], without making it: e^G S0 x + sum_j e^{G - G_j} (k_j . x) u_j."""
        old = self.decay[..., None, None] * (x @ state.transpose(-1, -2))
        return old + (x @ self.k.permute(0, 2, 3, 1)) @ self.u.transpose(1, 2)


def weighted_factors(k: torch.Tensor, u: torch.Tensor, g: torch.Tensor, live: torch.Tensor) -> Factors:
    """Factors of the rows with `live` bool [B,R], a prefix; whatever the others hold (NaN too) has no effect."""
    shown = live.unsqueeze(-1)
    total = torch.where(shown, g, torch.zeros_like(g)).cumsum(1)
    weight = (total[:, -1:] - total).exp().unsqueeze(-1)
    shown = shown.unsqueeze(-1)
    keys = torch.where(shown, k, torch.zeros_like(k))
    return Factors(keys, torch.where(shown, weight * u, torch.zeros_like(u)), total[:, -1].exp())


def apply_steps(
    state: torch.Tensor, k: torch.Tensor, u: torch.Tensor, g: torch.Tensor, live: torch.Tensor
) -> torch.Tensor:
    """The state after the rows with `live` bool [B,R] (a prefix), one by one: k [B,R,HV,K] normed, u [B,R,HV,V]."""
    for j in range(k.shape[1]):
        after = apply_factor(state, k[:, j], u[:, j], g[:, j])
        state = torch.where(live[:, j, None, None, None], after, state)
    return state


def take(rows: torch.Tensor, path: torch.Tensor) -> torch.Tensor:
    """rows[b, path[b, j]]: [B,N,…] by [B,P] -> [B,P,…]."""
    batch = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    return rows[batch, path]


def unit_lower_inverse(a: torch.Tensor) -> torch.Tensor:
    """(I + A)^-1 of a strictly lower triangular A [..,N,N], by block recursion with matmuls only.

    X <- X - X (A o M_s) X for s = 1, 2, 4, …, where M_s keeps pairs of the same 2s-block with i in its upper and j in
    its lower half. Stable where the product form of powers of A is not (repeated keys, beta near 2; design 04).
    """
    size = a.shape[-1]
    place = torch.arange(size, device=a.device)
    inverse = torch.eye(size, dtype=a.dtype, device=a.device).expand(a.shape)
    half = 1
    while half < size:
        upper, block = (place // half) % 2 == 1, place // (2 * half)
        pairs = (block.unsqueeze(1) == block) & upper.unsqueeze(1) & ~upper
        inverse = inverse - inverse @ (a * pairs) @ inverse
        half *= 2
    return inverse
