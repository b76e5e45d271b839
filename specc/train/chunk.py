"""The gated delta rule over a whole sequence, in chunks, differentiable: for training and for evaluation.

    S_t = e^{g_t} S_{t-1} + u_t k_t^T,   u_t = beta_t (v_t - e^{g_t} S_{t-1} k_t),   o_t = S_t q_t

Within a chunk u is the solution of a unit lower triangular system (the UT form of Yang et al., "Gated Delta Networks",
arXiv 2412.06464, section 3.3), so that only one matrix product per chunk is sequential. Exponents are masked before
exp: future positions would give positive ones. The inverse is built by block recursion; the product form
prod (I + (-A)^{2^i}) loses all digits on repeated keys.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
L2_EPSILON = 1e-6


def l2_norm(x: Tensor) -> Tensor:
    """x / sqrt(sum x^2 + 1e-6) over the last dimension: the queries and keys of the layer."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPSILON)


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower triangular A [..., C, C], C a power of two.

    The inverse of a block of 2s rows follows from those of its two halves: X <- X - X (A o M_s) X, where M_s keeps
    the pairs with the row in the second half and the column in the first. Backward: dA = -tril(X^T dX X^T, -1).
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        size = a.shape[-1]
        index = torch.arange(size, device=a.device)
        inverse = torch.eye(size, dtype=a.dtype, device=a.device).expand_as(a)
        half = 1
        while half < size:
            block, upper = index // (2 * half), index // half % 2
            pairs = (block[:, None] == block[None, :]) & (upper[:, None] == 1) & (upper[None, :] == 0)
            inverse = inverse - inverse @ (a * pairs) @ inverse
            half *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ gradients[0] @ transposed).tril(-1)


def unit_lower_inverse(a: Tensor) -> Tensor:
    """(I + A)^-1 of strictly lower triangular A [..., C, C], C a power of two."""
    return UnitLowerInverse.apply(a)  # type: ignore[no-untyped-call]


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """Outputs o [B, T, HV, V] and the last state [B, HV, V, K], in float64 if q is, else in float32.

    q, k [B, T, H, K] (normalised, q not yet scaled by K^-1/2), v [B, T, HV, V], g (log decay, <= 0) and beta
    [B, T, HV]; beta up to 2 (`allow_neg_eigval`). HV is a multiple of H: value head h reads key head h // (HV / H).
    """
    with torch.autocast(q.device.type, enabled=False):
        dtype = torch.promote_types(q.dtype, torch.float32)
        heads = v.shape[2]
        q_, k_, v_ = (_chunks(x.to(dtype), heads, chunk) for x in (q, k, v))
        g_, beta_ = (_chunks(x.to(dtype).unsqueeze(-1), heads, chunk) for x in (g, beta))
        if state is None:
            state = torch.zeros(v.shape[0], heads, v.shape[-1], k.shape[-1], dtype=dtype, device=q.device)
        o, state = _delta_chunks(q_ * q.shape[-1] ** -0.5, k_, v_, g_, beta_, state.to(dtype))
        return o.flatten(2, 3)[:, :, : q.shape[1]].transpose(1, 2), state


def _chunks(x: Tensor, heads: int, chunk: int) -> Tensor:
    """[B, T, H, D] -> [B, heads, ceil(T / chunk), chunk, D], padded with zeros, which change no state."""
    x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % chunk)).transpose(1, 2)
    if x.shape[1] != heads:
        x = x.repeat_interleave(heads // x.shape[1], dim=1)
    return x.unflatten(2, (-1, chunk))


def _delta_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The rule on chunks [B, H, N, C, D] (g and beta with D = 1). Returns o of that shape and the last state [B,H,V,K].

    With G the running sum of g in the chunk: A_ij = beta_i e^{G_i - G_j} k_i . k_j for j < i, X = (I + A)^-1,
    U = X beta (V - e^G K S0^T), O = e^G Q S0^T + tril(e^{G_i - G_j} Q K^T) U,
    S' = e^{G_C} S0 + sum_j e^{G_C - G_j} u_j k_j^T.
    """
    total = g.cumsum(-2)
    size = k.shape[-2]
    future = torch.ones(size, size, dtype=torch.bool, device=k.device).triu(1)
    ratio = (total - total.transpose(-1, -2)).masked_fill(future, -torch.inf).exp()
    inverse = unit_lower_inverse((beta * ratio * (k @ k.transpose(-1, -2))).tril(-1))
    grown = total.exp()
    own = inverse @ (beta * v)
    read = inverse @ (beta * grown * k)
    last = total[..., -1:, :]
    kept_keys = ((last - total).exp() * k).transpose(-1, -2)
    updates, starts, state = _scan(own, read, kept_keys, last.exp(), state.transpose(-1, -2))
    outputs = (q * grown) @ starts + (ratio * (q @ k.transpose(-1, -2))) @ updates
    return outputs, state.transpose(-1, -2)


def _scan(own: Tensor, read: Tensor, kept_keys: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sequential part, state [B, H, K, V]: updates u, the state at the start of each chunk, the last state."""
    updates, starts = [], []
    for chunk in range(own.shape[2]):
        starts.append(state)
        update = own[:, :, chunk] - read[:, :, chunk] @ state
        updates.append(update)
        state = decay[:, :, chunk] * state + kept_keys[:, :, chunk] @ update
    return torch.stack(updates, 2), torch.stack(starts, 2), state


def recurrent_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, one position after the other: what the chunked form is checked against. Shapes as there."""
    groups = v.shape[2] // k.shape[2]
    q, k = (x.repeat_interleave(groups, dim=2) for x in (q * q.shape[-1] ** -0.5, k))
    if state is None:
        state = v.new_zeros(v.shape[0], v.shape[2], v.shape[-1], k.shape[-1])
    outputs = []
    for t in range(v.shape[1]):
        state = g[:, t].exp()[..., None, None] * state
        u = beta[:, t, :, None] * (v[:, t] - (state @ k[:, t].unsqueeze(-1)).squeeze(-1))
        state = state + u.unsqueeze(-1) * k[:, t].unsqueeze(-2)
        outputs.append((state @ q[:, t].unsqueeze(-1)).squeeze(-1))
    return torch.stack(outputs, 1), state
