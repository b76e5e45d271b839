"""Launchers of commits: states from factors, all layers at once, and the states of all nodes of a tree."""

from __future__ import annotations

from typing import Any

import torch

from specc.backends.triton.kernels.delta_commit import delta_commit_rank_n, delta_commit_steps
from specc.backends.triton.launch.configs import COMMIT, CommitConfig, WalkConfig, walk_config
from specc.backends.triton.launch.core import Launch, power_of_two
from specc.backends.triton.launch.delta import Tensor, leaf_paths, verify
from specc.backends.triton.launch.rows import Rows


def _shared(
    state: Tensor, after: Tensor, k: Tensor, u: Tensor, g: Tensor, path: Tensor, count: Tensor
) -> dict[str, Any]:
    """`state` [L,B,HV,V,K] or [B,HV,V,K], factors with the same leading sizes."""
    return {
        "state": state,
        "after": after,
        "k": k,
        "u": u,
        "g": g,
        "path": path,
        "count": count,
        "N": k.shape[-3],
        "P": path.shape[-1],
        "PATHS": count.numel(),
        "H": k.shape[-2],
        "HV": state.shape[-3],
        "K": state.shape[-1],
        "V": state.shape[-2],
        "PATH": True,
        "COPY": state.data_ptr() != after.data_ptr(),
    }


def steps_launch(
    state: Tensor,
    after: Tensor,
    k: Tensor,
    u: Tensor,
    g: Tensor,
    path: Tensor,
    count: Tensor,
    config: WalkConfig | None = None,
) -> Launch:
    """Factors one by one; see `delta_rule_commit`."""
    *outer, heads, values, keys = state.shape
    config = config or walk_config(keys, values)
    block = min(config.bv, values)
    arguments = _shared(state, after, k, u, g, path, count) | {"BV": block, "E": min(config.e, keys)}
    return Launch(delta_commit_steps, (values // block, heads, _product(outer)), arguments, config.warps, 1)


def rank_n_launch(
    state: Tensor,
    after: Tensor,
    k: Tensor,
    u: Tensor,
    g: Tensor,
    path: Tensor,
    count: Tensor,
    lanes: int = 1,
    config: CommitConfig = COMMIT,
) -> Launch:
    """All factors as one update; see `delta_rule_commit`. `lanes`: paths and new states per sequence."""
    *outer, heads, values, keys = state.shape
    block = min(config.bv, values)
    arguments = _shared(state, after, k, u, g, path, count) | {
        "LANES": lanes,
        "R": power_of_two(path.shape[-1], 16),
        "BV": block,
        "BK": min(config.bk, keys),
    }
    grid = (values // block, heads, _product(outer) * lanes)
    return Launch(delta_commit_rank_n, grid, arguments, config.warps, config.stages)


def _product(sizes: list[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def delta_rule_commit(
    state: Tensor,
    k: Tensor,
    u: Tensor,
    g: Tensor,
    path: Tensor,
    count: Tensor,
    form: str,
    *,
    in_place: bool = False,
) -> Tensor:
    """See `specc.ir.ops.delta_rule_commit`; with layers in front ([L,B,…]) one launch does all."""
    after = state if in_place else torch.empty_like(state)
    make = rank_n_launch if form == "rank_n" else steps_launch
    make(state, after, k, u, g, path, count).run()
    return after


def delta_rule_verify_states(
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
) -> tuple[Tensor, Tensor, Tensor]:
    """See `specc.ir.ops.delta_rule_verify_states`: (o, u, states [B,N,HV,V,K])."""
    batch, nodes = v.shape[:2]
    states = state.new_empty(batch, nodes, *state.shape[1:])
    rows = Rows(state, q, k, v, g, beta, valid)
    if schedule != "tree":
        o, u = verify(rows, parent_row, mask, schedule, states=states)
        return o, u, states
    o, u = verify(rows, parent_row, mask, schedule)
    if mask is None:
        mask = torch.ones(batch, nodes, nodes, dtype=torch.bool, device=v.device).tril()
    paths, counts = leaf_paths(rows, mask, leaves=False)
    rank_n_launch(
        state, states, k.contiguous(), u, g.contiguous(), paths.view(-1, nodes), counts.view(-1), lanes=nodes
    ).run()
    return o, u, states
