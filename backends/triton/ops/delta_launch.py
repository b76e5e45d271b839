"""Launches of the delta rule's kernels: operands as the ops have them, configurations from the tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-untyped]

from specc.backends.triton.kernels.delta_commit import delta_commit_rank_n, delta_commit_steps
from specc.backends.triton.kernels.delta_order import ancestor_paths, heavy_order
from specc.backends.triton.kernels.delta_solve import delta_tree_prepare
from specc.backends.triton.kernels.delta_tree import delta_tree_apply
from specc.backends.triton.kernels.delta_walk import NUMBERS, delta_walk
from specc.backends.triton.kernels.delta_whole import delta_tree_whole
from specc.backends.triton.launch.core import as_bytes, interpreted, power_of_two
from specc.backends.triton.ops.delta_tables import (
    CommitConfig,
    TreeConfig,
    WalkConfig,
    commit_config,
    tree_config,
    walk_config,
)

Tensor = torch.Tensor
BULK = 16
"""Bytes that addresses and rows of bulk copies are multiples of."""
SHARED = 48 << 10
"""Bytes of shared memory that a kernel may declare."""
BLOCK = 16
"""Nodes of a chain whose norms and gates a walk computes at once, at least."""


class Rows(NamedTuple):
    """q, k [B,N,H,K], v [B,N,HV,V], g, beta [B,N,HV]: parts of wider tensors too, heads and columns side by side."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


@dataclass(frozen=True, slots=True)
class Pending:
    """Factors in front of a verify: raw k [B,R,H,K], u [B,R,HV,V], g [B,R,HV], of which the first count[b] along
    path[b] (int64 [B,P]; None: in order) are to be applied; sequences with count >= max(window, 1) are written."""

    k: Tensor
    u: Tensor
    g: Tensor
    path: Tensor | None
    count: Tensor
    window: int


class Gate(NamedTuple):
    """Gates computed in the kernel: raw a in place of g and b in place of beta; beta = scale sigmoid(b), scale 1 or 2.

    a_log, dt_bias [HV]; `out` [B,N,HV] float32 gets the log decays, which factors need.
    """

    a_log: Tensor
    dt_bias: Tensor
    out: Tensor
    scale: int = 1


def side_by_side(x: Tensor) -> Tensor:
    """x [B,N,heads,K] itself where heads and columns lie without gaps, else a copy."""
    packed = x.stride(-1) == 1 and (x.dim() == 3 or x.stride(-2) == x.shape[-1])
    return x if packed else x.contiguous()


def rows_of(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Rows:
    """Operands as the kernels take them."""
    return Rows(*(side_by_side(x) for x in (q, k, v, g, beta)))


def outputs_of(state: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Room for o in v's dtype and u in the state's, [B,N,HV,V]."""
    return torch.empty(rows.v.shape, dtype=rows.v.dtype, device=rows.v.device), torch.empty(
        rows.v.shape, dtype=state.dtype, device=rows.v.device
    )


def walk_tile(config: WalkConfig, keys: int, values: int) -> tuple[int, int, int, int]:
    """(W, R, C, E) of a walk's tile (`delta_tile`): W rows give each thread of W E / 128 warps four numbers, and it has
    R of them. Narrow states have fewer warps: no thread is to have rows beyond V only."""
    width = power_of_two(keys, 16)
    across = min(config.e, width)
    least = 128 // across
    at_once = min(least * config.warps, max(power_of_two(values), least))
    held = min(config.bv, power_of_two(values)) // at_once
    return at_once, min(max(held, 1), across // 4), width // across, across


def launch_walk(
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
    config: WalkConfig | None = None,
    settled: bool = False,
) -> None:
    """Token by token. `order` int32 [B,S] or [B,L,S]: L lanes of nodes each; `after` [B,HV,V,K] gets the last state.

    `table` [B,N+1,HV,V,K]: room for tiles that are fetched again; with `keep` [B,N,HV,V,K], and gets all states.
    `settled` (without order, tree and pending factors): the state comes in beside the kernel in front of this one.
    """
    q, k, v, g, beta = rows
    batch, nodes, heads, keys = k.shape
    value_heads, values = v.shape[2:]
    one = nodes == 1 and order is None and parent_row is None and table is None
    ordered = order is not None or parent_row is not None
    lanes = order.shape[1] if order is not None and order.dim() == 3 else 1
    config = config or walk_config(keys, values, batch * value_heads, one, ordered and lanes == 1)
    steps = nodes if order is None else order.shape[-1]
    at_once, held, parts, across = walk_tile(config, keys, values)
    waiting = pending or Pending(state, state, state, None, state, 0)
    path = waiting.path
    room = 0 if pending is None else pending.k.shape[1]
    grid = (-(-values // (held * at_once)), value_heads, batch * lanes)
    size = max(at_once, BLOCK)
    if ordered:
        size = power_of_two(max(nodes, steps, at_once, BLOCK))
    near = nodes <= size and not (one or ordered or interpreted())
    near = near and size * (2 * parts * across + NUMBERS.value + held * at_once) * 4 <= SHARED
    work = torch.empty(
        1 if one or near else math.prod(grid) * size * NUMBERS.value, dtype=torch.float32, device=state.device
    )
    dependent = not interpreted() if settled else False
    delta_walk[grid](
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
        K=keys, V=values, W=at_once, R=held, C=parts, E=across, NT=size, TB=max(at_once, BLOCK),
        ORDER=order is not None, TREE=parent_row is not None, GATE=0 if gate is None else gate.scale,
        STATES=keep, AFTER=after is not None, PENDING=pending is not None, PATH=path is not None,
        ONE=one, SHORT=nodes <= size, NEAR=near, DEPENDENT=dependent,
        num_warps=at_once * across // 128, num_stages=1, maxnreg=config.registers, **(PDL if dependent else {}),
    )  # fmt: skip


def workspace(state: Tensor, nodes: int) -> Tensor:
    """Room for what the tree schedule's first phase tells the second."""
    tile = power_of_two(nodes, 16)
    floats = 4 * tile * tile + 3 * tile
    return torch.empty(state.shape[0] * state.shape[1] * floats, dtype=torch.float32, device=state.device)


def pending_room(pending: Pending | None) -> int:
    """R of the kernels: a power of two that no path through pending rows exceeds; 0: nothing is pending."""
    if pending is None:
        return 0
    return power_of_two(pending.k.shape[1] if pending.path is None else pending.path.shape[1], 16)


def launch_prepare(
    state: Tensor, rows: Rows, mask: Tensor | None, work: Tensor, gate: Gate | None, config: TreeConfig
) -> None:
    """The tree schedule's first phase: the N x N part into `work`."""
    q, k, v, g, beta = rows
    batch, nodes, heads, keys = k.shape
    value_heads, tile = v.shape[2], power_of_two(nodes, 16)
    beside = not interpreted()
    # One warp has no registers left for the gates.
    warps = config.prepare_warps if gate is None else max(config.prepare_warps, 2)
    delta_tree_prepare[(value_heads, batch)](
        q, k, g, beta, as_bytes(mask, state),
        state if gate is None else gate.a_log,
        state if gate is None else gate.dt_bias,
        state if gate is None else gate.out,
        work, nodes, heads, value_heads,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), g.stride(0), g.stride(1), beta.stride(0), beta.stride(1),
        K=keys, T=tile, LEVELS=tile.bit_length() - 1, BK=min(power_of_two(keys, 16), config.prepare_bk),
        W=max(32 * warps, tile), MASK=mask is not None, GATE=0 if gate is None else gate.scale, PDL=beside,
        num_warps=warps, maxnreg=config.prepare_registers, **(PDL if beside else {}),
    )  # fmt: skip


def state_boxes(state: Tensor, rows: int, columns: int) -> TensorDescriptor | None:
    """A descriptor of states [..,V,K] as rows of K in boxes [rows, columns]; None where a box would reach into the next
    head, or bulk copies can't take the addresses."""
    values, keys = state.shape[-2:]
    if values % rows or (state.data_ptr() | keys * state.element_size()) % BULK:
        return None
    return TensorDescriptor(state, [state.numel() // keys, keys], [keys, 1], [rows, columns])


def launch_apply(
    state: Tensor, rows: Rows, work: Tensor, o: Tensor, u: Tensor, pending: Pending | None, config: TreeConfig
) -> None:
    """The second phase: the state against all nodes' rows, then what `work` holds."""
    q, k, v, _, _ = rows
    batch, nodes, heads, keys = k.shape
    value_heads, values = v.shape[2:]
    waiting = pending or Pending(state, state, state, None, state, 0)
    path = waiting.path
    rows_kept = 0 if pending is None else pending.k.shape[1]
    block = max(min(config.bv, power_of_two(values)), 16)
    beside = not interpreted()
    width = min(power_of_two(keys, 16), config.bk)
    boxes = state_boxes(state, block, width) if config.bulk else None
    delta_tree_apply[(-(-values // block), value_heads, batch)](
        state, state if boxes is None else boxes, q, k, v, work, o, u, waiting.k, waiting.u, waiting.g,
        state if path is None else path,
        waiting.count, waiting.window, nodes, rows_kept if path is None else path.shape[1], rows_kept,
        heads, value_heads, q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        K=keys, V=values, T=power_of_two(nodes, 16),
        R=pending_room(pending), BV=block, BK=width, PIECES=config.pieces, STAGES=config.stages,
        WINDOW=waiting.window > 1, PATH=path is not None, TMA=boxes is not None, INSIDE=config.inside, PDL=beside,
        num_warps=config.warps, num_stages=config.stages, **(PDL if beside else {}),
    )  # fmt: skip


def launch_whole(
    state: Tensor, rows: Rows, mask: Tensor | None, o: Tensor, u: Tensor, gate: Gate | None, config: TreeConfig
) -> None:
    """Both phases in one launch."""
    q, k, v, g, beta = rows
    batch, nodes, heads, keys = k.shape
    value_heads, values = v.shape[2:]
    tile = power_of_two(nodes, 16)
    block = max(min(config.bv, power_of_two(values)), 16)
    grid = (-(-values // block), value_heads, batch)
    work = torch.empty(math.prod(grid) * 4 * tile * tile, dtype=torch.float32, device=state.device)
    beside = not interpreted()
    delta_tree_whole[grid](
        state, q, k, v, g, beta, as_bytes(mask, state),
        state if gate is None else gate.a_log,
        state if gate is None else gate.dt_bias,
        state if gate is None else gate.out,
        work, o, u, nodes, heads, value_heads,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        g.stride(0), g.stride(1), beta.stride(0), beta.stride(1),
        K=keys, V=values, T=tile, LEVELS=tile.bit_length() - 1, BV=block, BK=min(power_of_two(keys, 16), config.bk),
        W=max(32 * config.warps, tile), PIECES=config.pieces,
        MASK=mask is not None, GATE=0 if gate is None else gate.scale, PDL=beside,
        num_warps=config.warps, num_stages=1, **(PDL if beside else {}),
    )  # fmt: skip


def launch_tree(
    state: Tensor,
    rows: Rows,
    mask: Tensor | None,
    o: Tensor,
    u: Tensor,
    pending: Pending | None = None,
    gate: Gate | None = None,
    config: TreeConfig | None = None,
) -> None:
    """The tree schedule in two phases, or in one. `mask` bool [B,N,N]: ancestors and self (None: a chain)."""
    batch, nodes, value_heads, values = rows.v.shape
    tile = power_of_two(nodes, 16)
    config = config or tree_config(rows.k.shape[3], values, tile, batch * value_heads, pending is not None)
    if config.whole and pending is None:
        launch_whole(state, rows, mask, o, u, gate, config)
        return
    work = workspace(state, nodes)
    launch_prepare(state, rows, mask, work, gate, config)
    launch_apply(state, rows, work, o, u, pending, config)


PDL = {"launch_pdl": True}
"""A kernel starts beside the one in front of it and waits itself."""


def heavy_light(parent_row: Tensor, mask: Tensor) -> Tensor:
    """int32 [B,N]: the nodes in heavy-light order."""
    batch, nodes = parent_row.shape
    order = torch.empty(batch, nodes, dtype=torch.int32, device=mask.device)
    heavy_order[(batch,)](parent_row.contiguous(), as_bytes(mask, mask), order, nodes, T=power_of_two(nodes, 16))
    return order


def paths_of(mask: Tensor, leaves: bool) -> tuple[Tensor, Tensor]:
    """(int32 [B,N,N], int32 [B,N]): each leaf's (or node's) path from the root, -1 behind it, and its length."""
    batch, nodes = mask.shape[:2]
    paths = torch.empty(batch, nodes, nodes, dtype=torch.int32, device=mask.device)
    counts = torch.empty(batch, nodes, dtype=torch.int32, device=mask.device)
    ancestor_paths[(batch,)](as_bytes(mask, mask), paths, counts, nodes, T=power_of_two(nodes, 16), LEAVES=leaves)
    return paths, counts


def launch_steps(
    state: Tensor, after: Tensor, k: Tensor, u: Tensor, g: Tensor, path: Tensor, count: Tensor,
    config: WalkConfig | None = None,
) -> None:  # fmt: skip
    """Factors one by one. state, after [..,HV,V,K], k [..,N,H,K], u [..,N,HV,V], g [..,N,HV], path [B,P], count [B];
    layers may stand in front of the batch: all in one launch."""
    heads, values, keys = state.shape[-3:]
    states = state.numel() // (heads * values * keys)
    config = config or walk_config(keys, values, states * heads)
    at_once, held, parts, across = walk_tile(config, keys, values)
    delta_commit_steps[(-(-values // (held * at_once)), heads, states)](
        state, after, k, u, g, path, count, k.shape[-3], path.shape[-1], count.numel(), k.shape[-2], heads,
        K=keys, V=values, W=at_once, R=held, C=parts, E=across, COPY=state is not after,
        num_warps=at_once * across // 128, num_stages=1,
    )  # fmt: skip


def launch_rank_n(
    state: Tensor, after: Tensor, k: Tensor, u: Tensor, g: Tensor, path: Tensor, count: Tensor,
    lanes: int = 1, config: CommitConfig | None = None,
) -> None:  # fmt: skip
    """All factors as one update; as `launch_steps`. `lanes`: paths and new states per sequence."""
    heads, values, keys = state.shape[-3:]
    states = state.numel() // (heads * values * keys)
    config = config or commit_config(keys, values)
    block = max(min(config.bv, power_of_two(values)), 16)
    delta_commit_rank_n[(-(-values // block), heads, states * lanes)](
        state, after, k, u, g, path, count, k.shape[-3], path.shape[-1], count.numel(), lanes, k.shape[-2], heads,
        K=keys, V=values, R=power_of_two(path.shape[-1], 16), BV=block, BK=min(power_of_two(keys, 16), config.bk),
        STAGES=config.stages if config.ahead else None, COPY=state is not after,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
