"""The gated delta rule over the nodes of a verify step, from one committed state."""

from __future__ import annotations

import torch

from specc.ir.op import IndexOperand, op
from specc.ir.ops.delta_math import apply_steps, rows_of, rule_dtype, take, unit, weighted_factors, widened
from specc.ir.ops.delta_schedules import SCHEDULES, Start, Tree, chain_tree, started
from specc.ir.traffic import counted, load_state, store_state

_ROWS = "Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? parent_row, Tensor? mask, str schedule"
_INDICES = (IndexOperand("parent_row", "parent_row", 1, slack=1),)


def _tree(v: torch.Tensor, parent_row: torch.Tensor | None, mask: torch.Tensor | None) -> Tree:
    if parent_row is None or mask is None:
        return chain_tree(v)
    return Tree(parent_row, mask)


def _verify_fake(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    return v.new_empty(v.shape), v.new_empty(v.shape, dtype=rule_dtype(state.dtype))


@op(f"delta_rule_verify(Tensor state, {_ROWS}) -> (Tensor, Tensor)", fake=_verify_fake, indices=_INDICES)
@counted
def delta_rule_verify(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    parent_row: torch.Tensor | None,
    mask: torch.Tensor | None,
    schedule: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each node's step after its own path: (o [B,N,HV,V] in v's dtype, u [B,N,HV,V] in the rule's).

    state [B,HV,V,K] committed; rows as in `delta_rule`. `parent_row` int64 [B,N] (0: the committed context, node i is
    i + 1) and `mask` bool [B,N,N] (ancestors and self) give the tree; both None: a chain. `schedule`: how the states
    travel (`delta_schedules`); "unscheduled" before select-schedule.
    """
    rows = rows_of(state, q, k, v, g, beta)
    o, u, _ = SCHEDULES[schedule](started(state), rows, _tree(v, parent_row, mask), False)
    return o.to(v.dtype), u


def _states_fake(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    o, u = _verify_fake(state, q, k, v)
    return o, u, state.new_empty((*v.shape[:2], *state.shape[1:]))


@op(
    f"delta_rule_verify_states(Tensor state, {_ROWS}) -> (Tensor, Tensor, Tensor)",
    fake=_states_fake,
    indices=_INDICES,
)
@counted
def delta_rule_verify_states(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    parent_row: torch.Tensor | None,
    mask: torch.Tensor | None,
    schedule: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`delta_rule_verify` that also returns every node's state [B,N,HV,V,K] (`commit.state: snapshots`)."""
    rows = rows_of(state, q, k, v, g, beta)
    o, u, states = SCHEDULES[schedule](started(state), rows, _tree(v, parent_row, mask), True)
    assert states is not None
    return o.to(v.dtype), u, states


def _pending_fake(
    state: torch.Tensor,
    pending_k: torch.Tensor,
    pending_u: torch.Tensor,
    pending_g: torch.Tensor,
    path: torch.Tensor | None,
    count: torch.Tensor,
    window: int,
    form: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *_: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    o, u = _verify_fake(state, q, k, v)
    return state.new_empty(state.shape), o, u


@op(
    "delta_rule_verify_pending(Tensor state, Tensor pending_k, Tensor pending_u, Tensor pending_g, Tensor? path, "
    f"Tensor count, int window, str form, {_ROWS}) -> (Tensor, Tensor, Tensor)",
    fake=_pending_fake,
    indices=(*_INDICES, IndexOperand("path", "pending_k", 1)),
)
@counted
def delta_rule_verify_pending(
    state: torch.Tensor,
    pending_k: torch.Tensor,
    pending_u: torch.Tensor,
    pending_g: torch.Tensor,
    path: torch.Tensor | None,
    count: torch.Tensor,
    window: int,
    form: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    parent_row: torch.Tensor | None,
    mask: torch.Tensor | None,
    schedule: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`delta_rule_verify` on a state with factors pending: (state', o, u).

    Pending: raw k [B,R,H,K], u [B,R,HV,V], g [B,R,HV], of which the first count[b] along path[b] (None: in order) are
    to be applied; what the others hold has no effect. Sequences with count >= max(window, 1) are due: state' has their
    factors. In the others state' is `state`, and the factors act on the verified nodes only (windowed deferral: the
    state is read, not written) - as further ancestors in the tree schedule, else on the working tile. `form` says how
    factors are folded, as in `delta_rule_commit`.
    """
    if path is None:
        path = torch.arange(pending_k.shape[1], device=state.device).expand(state.shape[0], -1)
    keys = unit(take(pending_k, path), rule_dtype(state.dtype), state.shape[1])
    values, decays = take(pending_u, path), take(pending_g, path)
    live = torch.arange(path.shape[1], device=state.device) < count.unsqueeze(1)
    due = count >= max(window, 1)
    tile = widened(load_state(state))
    factors = weighted_factors(keys, values, decays, live)
    folded = factors.fold(tile) if form == "rank_n" else apply_steps(tile, keys, values, decays, live)
    after = state.clone()
    after[due] = store_state(folded[due].to(state.dtype))
    if schedule == "tree":
        start = Start(widened(after), state.dtype, weighted_factors(keys, values, decays, live & ~due.unsqueeze(1)))
    else:
        start = Start(torch.where((count > 0)[:, None, None, None], folded, tile), state.dtype)
    o, u, _ = SCHEDULES[schedule](start, rows_of(state, q, k, v, g, beta), _tree(v, parent_row, mask), False)
    return after, o.to(v.dtype), u
