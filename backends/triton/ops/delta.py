"""The delta rule over a chain, and commits of its state from factors; signatures of `specc.ir.ops`, float32 states."""

from __future__ import annotations

import torch

from specc.backends.triton.ops.delta_launch import launch_rank_n, launch_steps, launch_walk, outputs_of, rows_of


def delta_rule_(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    settled: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B,T,…] one after the other on state [B,HV,V,K], which is written: (o, u [B,T,HV,V])."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    launch_walk(state, rows, o, u, after=state, settled=settled)
    return o, u


def delta_rule(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    ancestors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`delta_rule_` with a new state: (o, u, state'); `ancestors` says nothing about a chain."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    after = torch.empty_like(state)
    launch_walk(state, rows, o, u, after=after)
    return o, u, after


def delta_rule_chunk_(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `delta_rule_`, for prompts. Token by token all the same: a prompt has the bits of plain decoding."""
    return delta_rule_(state, q, k, v, g, beta)


def delta_rule_chunk(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`delta_rule_chunk_` with a new state: (o, u, state')."""
    return delta_rule(state, q, k, v, g, beta)


def delta_rule_commit_(
    state: torch.Tensor,
    k: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor,
    path: torch.Tensor,
    count: torch.Tensor,
    form: str,
) -> None:
    """The factors of nodes path[b, :count[b]] applied to the states that have any, one by one or ("rank_n") at once."""
    k, u, g, path = k.contiguous(), u.contiguous(), g.contiguous(), path.contiguous()
    if form == "rank_n":
        launch_rank_n(state, state, k, u, g, path, count)
    else:
        launch_steps(state, state, k, u, g, path, count)


def delta_rule_commit_layers_(
    state: torch.Tensor,
    k: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor,
    path: torch.Tensor,
    count: torch.Tensor,
    form: str,
) -> None:
    """`delta_rule_commit_` for every layer of state [L,B,HV,V,K] and factors [L,B,N,…], in the same launch."""
    delta_rule_commit_(state, k, u, g, path, count, form)


def delta_rule_commit(
    state: torch.Tensor,
    k: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor,
    path: torch.Tensor,
    count: torch.Tensor,
    form: str,
) -> torch.Tensor:
    """`delta_rule_commit_` with a new state."""
    k, u, g, path = k.contiguous(), u.contiguous(), g.contiguous(), path.contiguous()
    after = torch.empty_like(state)
    if form == "rank_n":
        launch_rank_n(state, after, k, u, g, path, count)
    else:
        launch_steps(state, after, k, u, g, path, count)
    return after
