"""The walk with its tile as a tuple (`kernels.delta_chain`): operands and results of `delta_launch.launch_walk`."""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.delta_chain import NUMBERS, delta_chain
from specc.backends.triton.launch.core import power_of_two
from specc.backends.triton.ops.delta_launch import Gate, Pending, Rows
from specc.backends.triton.ops.delta_tables import WalkConfig

Tensor = torch.Tensor
BLOCK = 16
"""Nodes of a chain whose norms and gates a program computes at once."""

DEFAULT = WalkConfig(bv=32, e=32, warps=4)


def launch_chain(
    state: Tensor,
    rows: Rows,
    o: Tensor,
    u: Tensor,
    order: Tensor | None = None,
    parent_row: Tensor | None = None,
    table: Tensor | None = None,
    keep: bool = False,
    after: Tensor | None = None,
    pending: Pending | None = None,
    gate: Gate | None = None,
    config: WalkConfig = DEFAULT,
) -> None:
    """Token by token; as `launch_walk`."""
    q, k, v, g, beta = rows
    batch, nodes, heads, keys = k.shape
    value_heads, values = v.shape[2:]
    lanes = order.shape[1] if order is not None and order.dim() == 3 else 1
    steps = nodes if order is None else order.shape[-1]
    width = power_of_two(keys, 16)
    across = min(config.e, width)
    # Four neighbouring numbers per thread, neither fewer nor more: that belongs to the order of sums.
    at_once = 128 * config.warps // across
    block = max(min(config.bv, power_of_two(values)), at_once)
    waiting = pending or Pending(state, state, state, None, state, 0)
    path = waiting.path
    room = 0 if pending is None else pending.k.shape[1]
    grid = (-(-values // block), value_heads, batch * lanes)
    plain = order is None and parent_row is None
    size = max(at_once, BLOCK) if plain else power_of_two(max(nodes, steps, at_once))
    work = torch.empty(grid[0] * grid[1] * grid[2] * size * NUMBERS.value, dtype=torch.float32, device=state.device)
    delta_chain[grid](
        state, q, k, v, g, beta,
        state if order is None else order,
        state if parent_row is None else parent_row.contiguous(),
        state if gate is None else gate.a_log,
        state if gate is None else gate.dt_bias,
        state if gate is None else gate.out,
        work,
        state if table is None else table,
        state if after is None else after,
        o, u, waiting.k, waiting.u, waiting.g,
        state if path is None else path,
        waiting.count, waiting.window, nodes, steps, lanes,
        room if path is None else path.shape[1], room, heads, value_heads,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        g.stride(0), g.stride(1), beta.stride(0), beta.stride(1),
        K=keys, V=values, BV=block, C=width // across, E=across, NT=size, TB=at_once,
        ORDER=order is not None, TREE=parent_row is not None, GATE=0 if gate is None else gate.scale,
        STATES=keep, AFTER=after is not None, PENDING=pending is not None, PATH=path is not None,
        AHEAD=int(config.deep and nodes > 1), num_warps=config.warps, num_stages=1,
    )  # fmt: skip
