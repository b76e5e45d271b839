"""A recurrent layer between its projections: one launch for a token, three for a tree; signatures of `specc.ir.ops`."""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.delta_step import delta_step
from specc.backends.triton.launch.core import interpreted
from specc.backends.triton.ops.conv import taps_by_head
from specc.backends.triton.ops.delta_launch import Finish, Gate, Pending, Rows, launch_tree, walk_tile
from specc.backends.triton.ops.delta_tables import WalkConfig, walk_config
from specc.backends.triton.ops.linear import arrived

Tensor = torch.Tensor
TILE = 2048
"""Numbers of the state per program at most: more leave no registers for the convolution (bits do not depend on it)."""


def packed(x: Tensor) -> Tensor:
    """x [B,1,H,D] with the numbers of a head side by side, copied only where they are not."""
    return x if x.stride(-1) == 1 else x.contiguous()


def delta_step_(
    state: Tensor,
    window: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    live: Tensor | None,
    counted: Tensor | None,
    rate: float,
    eps: float,
    config: WalkConfig | None = None,
) -> Tensor:
    """See `specc.ir.ops.delta_step_`: the layer's readout [B,1,HV,V]; `state` and `window` change in place.

    It may begin while the kernel in front of it ends, which must not write them: that is a projection, whose result is
    among the operands.
    """
    q, k, v, a, b, gate = packed(q), packed(k), packed(v), packed(a), packed(b), packed(gate)
    batch, _, heads, keys = k.shape
    value_heads, values = state.shape[1:3]
    config = config or walk_config(keys, values, batch * value_heads)
    block, parts, across, least = walk_tile(config, keys, values)
    block = max(min(block, TILE // (parts * across)), least)
    room = torch.empty((batch, value_heads, values), dtype=v.dtype, device=v.device)
    out = torch.empty((batch, 1, value_heads, values), dtype=v.dtype, device=v.device)
    beside = not interpreted()
    delta_step[(-(-values // block), value_heads, batch)](
        state, window, q, k, v, a, b, gate, weight,
        weight if bias is None else bias,
        a_log, dt_bias, norm_weight,
        state if live is None else live.contiguous().view(torch.uint8),
        state if counted is None else counted.contiguous().view(torch.uint8),
        room, out, arrived(state.device), heads, value_heads, window.shape[2], eps,
        q.stride(0), q.stride(2), k.stride(0), k.stride(2), v.stride(0), v.stride(2),
        a.stride(0), a.stride(2), b.stride(0), b.stride(2), gate.stride(0), gate.stride(2),
        K=keys, V=values, BV=block, C=parts, E=across, SHARE=value_heads // heads, W=weight.shape[2],
        RATE=rate, BIAS=bias is not None, LIVE=live is not None, COUNTED=counted is not None, DEPENDENT=beside,
        num_warps=config.warps, num_stages=1, **({"launch_pdl": True} if beside else {}),
    )  # fmt: skip
    return out


def delta_tree_step_(
    state: Tensor,
    window: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    parent_row: Tensor,
    mask: Tensor,
    pending_k: Tensor,
    pending_u: Tensor,
    pending_g: Tensor,
    path: Tensor | None,
    count: Tensor,
    deferred: int,
    kept: Tensor | None,
    k_factor: Tensor,
    u_factor: Tensor,
    g_factor: Tensor,
    rate: float,
    eps: float,
) -> Tensor:
    """See `specc.ir.ops.delta_tree_step_`; the tensors of factors are contiguous."""
    batch, nodes, heads, keys = k.shape
    value_heads, values = state.shape[1:3]
    y = taps_by_head(window, packed(q), packed(k), packed(v), weight, bias, parent_row.contiguous(), kept)
    key = heads * keys
    q, k = (y.narrow(-1, start, key).unflatten(-1, (-1, keys)) for start in (0, key))
    v = y.narrow(-1, 2 * key, value_heads * values).unflatten(-1, (-1, values))
    g = torch.empty((batch, nodes, value_heads), dtype=torch.float32, device=v.device)
    o, out = (torch.empty((batch, nodes, value_heads, values), dtype=v.dtype, device=v.device) for _ in range(2))
    pending = Pending(
        pending_k.contiguous(),
        pending_u.contiguous(),
        pending_g.contiguous(),
        None if path is None else path.contiguous(),
        count,
        deferred,
    )
    rows = Rows(q, k, v, packed(a), packed(b))
    finish = Finish(packed(gate), norm_weight, eps, out, k_factor, g, g_factor)
    launch_tree(state, rows, mask, o, u_factor, pending, Gate(a_log, dt_bias, g, rate), finish=finish)
    return out
