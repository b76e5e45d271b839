"""The gated delta rule over a chain of tokens: step by step, and in chunks; and its commit from factors."""

from __future__ import annotations

import torch

from specc.ir.op import IndexOperand, op
from specc.ir.ops.delta_math import (
    apply_steps,
    rows_of,
    rule_dtype,
    step,
    take,
    unit,
    unit_lower_inverse,
    weighted_factors,
    widened,
)
from specc.ir.recurrence import Recurrence
from specc.ir.traffic import counted, load_state, store_state

_ROWS = "Tensor state, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta"


def _chain_fake(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return v.new_empty(v.shape), v.new_empty(v.shape, dtype=rule_dtype(state.dtype)), state.new_empty(state.shape)


@op(
    f"delta_rule({_ROWS}, Tensor? ancestors=None) -> (Tensor, Tensor, Tensor)",
    fake=_chain_fake,
    meta={
        "recurrence": Recurrence(
            state="state",
            result=2,
            rows=("q", "k", "v", "g", "beta"),
            tree="delta_rule_verify",
            states="delta_rule_verify_states",
            ancestors="ancestors",
        )
    },
)
@counted
def delta_rule(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    ancestors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """T tokens one after the other: (o [B,T,HV,V] in v's dtype, u [B,T,HV,V] in the rule's, state').

    state [B,HV,V,K] (a bfloat16 one is rounded once, when it is stored: the rule computes in float32), q, k [B,T,H,K]
    raw (see `delta_math`), v [B,T,HV,V], g (log decay) and beta [B,T,HV]. A token with g = beta = 0 leaves the state as
    it is. `ancestors` bool [B,T,N]: where `state` is that of a tree node's parent, the node's row of the ancestor mask.
    It changes nothing here; layer-major needs it to compute all nodes at once (insert-tree-masks puts it there).
    """
    rows, kept = rows_of(state, q, k, v, g, beta), state.dtype
    state = widened(load_state(state))
    outputs, factors = [], []
    for t in range(v.shape[1]):
        o, u, state = step(state, rows.q[:, t], rows.k[:, t], rows.v[:, t], rows.g[:, t], rows.beta[:, t])
        outputs.append(o)
        factors.append(u)
    return torch.stack(outputs, dim=1).to(v.dtype), torch.stack(factors, dim=1), store_state(state.to(kept))


@op(f"delta_rule_chunk({_ROWS}, int chunk) -> (Tensor, Tensor, Tensor)", fake=_chain_fake)
@counted
def delta_rule_chunk(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `delta_rule`, `chunk` tokens at a time in UT form (Yang et al., 2024, section 3.3): for prompts."""
    rows, kept = rows_of(state, q, k, v, g, beta), state.dtype
    state = widened(load_state(state))
    outputs, factors = [], []
    for first in range(0, v.shape[1], chunk):
        part = slice(first, first + chunk)
        queries, keys, values, rates = (x[:, part].transpose(1, 2) for x in (rows.q, rows.k, rows.v, rows.beta))
        total = rows.g[:, part].transpose(1, 2).cumsum(-1)
        lower = torch.ones(total.shape[-1], total.shape[-1], dtype=torch.bool, device=v.device).tril()
        # -inf before exp: above the diagonal the exponents are positive and may overflow.
        ratio = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, float("-inf")).exp()
        gram = keys @ keys.transpose(-1, -2)
        inverse = unit_lower_inverse((rates.unsqueeze(-1) * ratio * gram).tril(-1))
        decay = total.exp().unsqueeze(-1)
        old = state.transpose(-1, -2)
        u = inverse @ (rates.unsqueeze(-1) * (values - decay * (keys @ old)))
        outputs.append((decay * (queries @ old) + (ratio * (queries @ keys.transpose(-1, -2))) @ u).transpose(1, 2))
        factors.append(u.transpose(1, 2))
        left = (total[..., -1:] - total).exp().unsqueeze(-1)
        state = state * total[..., -1].exp()[..., None, None] + (left * u).transpose(-1, -2) @ keys
    return torch.cat(outputs, dim=1).to(v.dtype), torch.cat(factors, dim=1), store_state(state.to(kept))


@op(
    "delta_rule_commit(Tensor state, Tensor k, Tensor u, Tensor g, Tensor path, Tensor count, str form) -> Tensor",
    fake=lambda state, *_: state.new_empty(state.shape),
    indices=(IndexOperand("path", "k", 1),),
    # composes: applying the rows of one step and then those of the next is applying all of them, one behind the other.
    meta={"identity_when_zero": "count", "composes": ("k", "u", "g")},
)
@counted
def delta_rule_commit(
    state: torch.Tensor,
    k: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor,
    path: torch.Tensor,
    count: torch.Tensor,
    form: str,
) -> torch.Tensor:
    """The state after the nodes path[b, :count[b]] from their factors, without running the rule again.

    state [B,HV,V,K]; factors of the nodes: raw k [B,N,H,K], u [B,N,HV,V], g [B,N,HV]; path int64 [B,P], count [B].
    form "steps": e^g S + u k^T one by one, bit for bit what the rule itself does. form "rank_n": S* = e^{G_l} S +
    sum_j e^{G_l - G_j} u_j k_j^T, one matmul (SpecLA, factor commit; design 04).
    """
    rows = torch.nonzero(count > 0).flatten()
    after = state.clone()
    path, tile = path[rows], widened(load_state(state[rows]))
    keys = unit(take(k[rows], path), tile.dtype, state.shape[1])
    values, decays = take(u[rows], path), take(g[rows], path)
    live = torch.arange(path.shape[1], device=path.device) < count[rows].unsqueeze(1)
    if form == "rank_n":
        tile = weighted_factors(keys, values, decays, live).fold(tile)
    else:
        tile = apply_steps(tile, keys, values, decays, live)
    after[rows] = store_state(tile.to(state.dtype))
    return after
