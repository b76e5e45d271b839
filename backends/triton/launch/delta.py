"""Launchers of the gated delta rule with the signatures of `specc.ir.ops`, for float32 states.

Beyond the ops they take `valid` (padding rows are skipped and get zeros), packed ancestor bits, gates to compute in the
kernel, and `in_place` where an op returns a new state.
"""

from __future__ import annotations

from typing import Any

import torch

from specc.backends.triton.kernels.delta_order import ancestor_paths, heavy_order
from specc.backends.triton.kernels.delta_solve import delta_tree_prepare
from specc.backends.triton.kernels.delta_tree import delta_tree_apply
from specc.backends.triton.kernels.delta_walk import delta_walk
from specc.backends.triton.launch.configs import TreeConfig, WalkConfig, tree_config, walk_config
from specc.backends.triton.launch.core import Launch, interpreted, power_of_two, run_all
from specc.backends.triton.launch.rows import Pending, Rows, mask_arguments, pending_arguments

Tensor = torch.Tensor
SCALARS = 4
"""Rows of scalars behind the matrix in the workspace of the tree schedule."""


def tree_launches(
    rows: Rows,
    mask: Tensor | None,
    o: Tensor,
    u: Tensor,
    pending: Pending | None = None,
    config: TreeConfig | None = None,
    work: Tensor | None = None,
) -> list[Launch]:
    """The tree schedule: one or two launches. `work`: float32 room for B * HV * (2 T^2 + 4 T) of two phases."""
    batch, _, _, heads, keys, values = rows.sizes
    tile = rows.tile
    config = config or tree_config(keys, values, tile, batch * heads, pending is not None)
    if work is None and not config.fused:
        work = rows.state.new_empty(batch * heads * (2 * tile * tile + SCALARS * tile))
    work = rows.state if work is None else work
    block = min(config.bk, keys)
    shared: dict[str, Any] = rows.arguments() | mask_arguments(mask, rows.state)
    shared |= {"work": work, "T": tile, "LEVELS": tile.bit_length() - 1, "PDL": not (config.fused or interpreted())}
    launches = []
    if not config.fused:
        grid = (heads, batch)
        launches.append(
            Launch(delta_tree_prepare, grid, shared | {"BK": min(keys, config.prepare_bk)}, config.prepare_warps)
        )
    waiting = pending_arguments(pending, rows.state)
    room = 0 if pending is None else power_of_two(int(waiting["P"]), 16)
    constants = {"R": room, "BV": min(config.bv, values), "BK": block, "PIECES": config.pieces, "FUSED": config.fused}
    arguments = shared | rows.value_arguments() | waiting | constants | {"o": o, "u": u}
    if config.fused:
        arguments["PDL"] = False
    grid3 = (values // min(config.bv, values), heads, batch)
    launches.append(Launch(delta_tree_apply, grid3, arguments, config.warps, config.stages, not config.fused))
    return launches


def walk_launch(
    rows: Rows,
    o: Tensor,
    u: Tensor,
    *,
    order: Tensor | None = None,
    parent_row: Tensor | None = None,
    table: Tensor | None = None,
    states: bool = False,
    after: Tensor | None = None,
    pending: Pending | None = None,
    config: WalkConfig | None = None,
) -> Launch:
    """Token by token. `order` int32 [B,L,S] or [B,S]; `table` [B,N+1,HV,V,K], or with `states` [B,N,HV,V,K]."""
    batch, nodes, _, heads, keys, values = rows.sizes
    config = config or walk_config(keys, values)
    lanes = order.shape[1] if order is not None and order.dim() == 3 else 1
    arguments = rows.arguments() | rows.value_arguments() | pending_arguments(pending, rows.state)
    arguments |= {
        "order": rows.state if order is None else order,
        "parent": rows.state if parent_row is None else parent_row,
        "table": rows.state if table is None else table,
        "after": rows.state if after is None else after,
        "o": o,
        "u": u,
        "STEPS": nodes if order is None else order.shape[-1],
        "LANES": lanes,
        "BV": min(config.bv, values),
        "E": min(config.e, keys),
        "NT": power_of_two(max(nodes, 1 if order is None else order.shape[-1])),
        "ORDER": order is not None,
        "TREE": parent_row is not None,
        "STATES": states,
        "AFTER": after is not None,
        "PENDING": pending is not None,
    }
    return Launch(delta_walk, (values // min(config.bv, values), heads, batch * lanes), arguments, config.warps, 1)


def order_launch(rows: Rows, parent_row: Tensor, mask: Tensor, order: Tensor) -> Launch:
    """order int32 [B,N]: the nodes in heavy-light order."""
    arguments = {"parent": parent_row, "order": order, "N": parent_row.shape[1], "T": rows.tile}
    return Launch(heavy_order, (parent_row.shape[0],), arguments | _mask_of(rows, mask))


def leaf_paths(rows: Rows, mask: Tensor, leaves: bool = True) -> tuple[Tensor, Tensor]:
    """(paths int32 [B,N,N], counts int32 [B,N]): each leaf's (or node's) path from the root, -1 behind it."""
    batch, nodes = rows.v.shape[:2]
    paths = torch.empty(batch, nodes, nodes, dtype=torch.int32, device=mask.device)
    counts = torch.empty(batch, nodes, dtype=torch.int32, device=mask.device)
    arguments = {"paths": paths, "counts": counts, "N": nodes, "T": rows.tile, "LEAVES": leaves}
    Launch(ancestor_paths, (batch,), arguments | _mask_of(rows, mask)).run()
    return paths, counts


def _mask_of(rows: Rows, mask: Tensor) -> dict[str, Any]:
    shared = rows.arguments()
    return mask_arguments(mask, rows.state) | {"valid": shared["valid"], "VALID": shared["VALID"]}


def verify(
    rows: Rows,
    parent_row: Tensor | None,
    mask: Tensor | None,
    schedule: str,
    pending: Pending | None = None,
    states: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """o, u of all nodes under a schedule; `states` [B,N,HV,V,K] gets the nodes' states (not in the tree schedule)."""
    if parent_row is None or mask is None:
        parent_row = mask = None
    o, u = rows.outputs()
    if schedule == "tree":
        run_all(tree_launches(rows, mask, o, u, pending))
        return o, u
    table, order = states, None
    if parent_row is not None and mask is not None:
        if schedule == "hybrid":
            order = torch.empty(parent_row.shape, dtype=torch.int32, device=mask.device)
            order_launch(rows, parent_row, mask, order).run()
        if schedule == "replay" and states is None and pending is None:
            paths, _ = leaf_paths(rows, mask)
            o.zero_()
            u.zero_()
            walk_launch(rows, o, u, order=paths).run()
            return o, u
        if table is None:
            batch, nodes = parent_row.shape
            table = rows.state.new_empty(batch, nodes + 1, *rows.state.shape[1:])
    keep = states is not None
    walk_launch(rows, o, u, order=order, parent_row=parent_row, table=table, states=keep, pending=pending).run()
    return o, u


def delta_rule(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, in_place: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """See `specc.ir.ops.delta_rule`: T tokens of plain decoding; (o, u, state')."""
    rows = Rows(state, q, k, v, g, beta)
    o, u = rows.outputs()
    after = state if in_place else torch.empty_like(state)
    walk_launch(rows, o, u, after=after).run()
    return o, u, after


def delta_rule_verify(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    parent_row: Tensor | None,
    mask: Tensor | None,
    schedule: str,
    *,
    valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `specc.ir.ops.delta_rule_verify`: (o, u)."""
    return verify(Rows(state, q, k, v, g, beta, valid), parent_row, mask, schedule)


def delta_rule_verify_pending(
    state: Tensor,
    pending_k: Tensor,
    pending_u: Tensor,
    pending_g: Tensor,
    path: Tensor | None,
    count: Tensor,
    window: int,
    form: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    parent_row: Tensor | None,
    mask: Tensor | None,
    schedule: str,
    *,
    valid: Tensor | None = None,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `specc.ir.ops.delta_rule_verify_pending`: (state', o, u). The tree schedule folds as "rank_n", the others
    in "steps"; another `form` is a ValueError."""
    if (form == "rank_n") != (schedule == "tree"):
        raise ValueError(f"schedule {schedule} does not fold in the form {form}")
    after = state if in_place else state.clone()
    pending = Pending(pending_k, pending_u, pending_g, path, count, window)
    o, u = verify(Rows(after, q, k, v, g, beta, valid), parent_row, mask, schedule, pending)
    return after, o, u
