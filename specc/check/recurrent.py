"""I16, I27 for recurrent layers: states of nodes, committed states and convolution windows against whole texts.

The state at a node is computed here from what verify left for the commit (snapshots, inputs or factors of the nodes),
node after node along the tree, and must be the state that plain decoding of the node's path ends with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specc.check import slots, step_checks
from specc.check.compare import difference
from specc.check.machines import State, copied
from specc.check.plain_delta import unit
from specc.testing.draft_tree import DraftTree
from specc.testing.oracles import Acceptance

if TYPE_CHECKING:
    from specc.check.session import Session


def is_recurrent(session: Session) -> bool:
    """Whether the target has recurrent layers."""
    return session.subject.spec.target.geometry.recurrent


def nodes_verified(session: Session, trees: Sequence[DraftTree]) -> None:
    """I16 for every node just verified, from what the machine keeps of it for the commit."""
    crew, geometry = session.crew, session.subject.spec.target.geometry
    if not session.checks.wants("I16") or not is_recurrent(session):
        return
    rows = [row for row in range(len(trees)) if bool(crew.live[row])]
    committed = session.committed_texts()
    wanted = session.subject.plain.node_states([committed[row] for row in rows], [trees[row] for row in rows])
    base, _ = crew.run(crew.leader, "flush", session.fork(), {})
    for prefix, layers in slots.positions(base, geometry):
        rule = _rule_of(crew.state, prefix)
        if rule is None:
            continue
        for place, row in enumerate(rows):
            made = rule_states(rule, base[f"{prefix}state"][:, row], crew.state, prefix, trees[row], row)
            expected = torch.stack([wanted[layer][place] for layer in layers])
            what = "states [layer, node, …] differ from those along the nodes' paths"
            where = f"{crew.where}, verify of row {row}"
            step_checks.values_agree(session, "I16", where, what, made, expected, trees[row])


def _rule_of(state: State, prefix: str) -> str | None:
    """What verify leaves behind for the commit: the name of one of its rows."""
    return next((name for name in ("state_candidate", "u_factor", "beta_input") if prefix + name in state), None)


def rule_states(rule: str, base: Tensor, state: State, prefix: str, tree: DraftTree, row: int) -> Tensor:
    """States [trips,N,HV,V,K] of the nodes of one row's tree, from the committed state `base` [trips,HV,V,K]."""
    if rule == "state_candidate":
        shown = torch.tensor(tree.valid)[None, :, None, None, None]
        rows = state[f"{prefix}state_candidate"][:, row]
        return torch.where(shown, rows, torch.zeros_like(rows))
    names = slots.FACTORS if rule == "u_factor" else slots.INPUTS
    kept = {slots.role(name)[0]: state[prefix + name][:, row].to(base.dtype) for name in names}
    heads = base.shape[1]
    keys = unit(kept["k"])
    keys = keys.repeat_interleave(heads // keys.shape[2], 2)
    found: list[Tensor] = []
    for node in range(tree.num_nodes):
        if not tree.valid[node]:
            found.append(torch.zeros_like(base))
            continue
        above = base if node == 0 else found[tree.parent[node]]
        decayed = kept["g"][:, node].exp()[..., None, None] * above
        if "u" in kept:
            u = kept["u"][:, node]
        else:
            u = kept["b"][:, node, :, None] * (kept["v"][:, node] - (decayed * keys[:, node, :, None]).sum(-1))
        found.append(decayed + u[..., None] * keys[:, node, :, None])
    return torch.stack(found, 1)


def window_after(window: Tensor, rows: Tensor) -> Tensor:
    """The last W - 1 rows of window [trips,W-1,C] and then rows [trips,P,C]."""
    both = torch.cat((window, rows), 1)
    return both[:, both.shape[1] - window.shape[1] :]


def row_committed(
    session: Session,
    row: int,
    before: State,
    after: State,
    rows: State | None,
    outcome: Acceptance,
    tree: DraftTree | None,
) -> None:
    """I27: the window has the inputs of the path, bit for bit; I16, I27: state and window are those of the text."""
    checks, where = session.checks, f"{session.crew.where}, commit of row {row}"
    for name in slots.named(after, ["conv_window"]):
        if rows is not None and name in rows:
            path = list(outcome.path[: outcome.accept_length + 1])
            wanted = window_after(before[name][:, row], rows[name][:, row, path])
            gap = difference(after[name][:, row], wanted, exact=True)
            text = None if gap is None else f"`{name}` does not hold the last inputs along the path: {gap}"
            checks.require("I27", where, text, tree, outcome.path)
    if is_recurrent(session):
        text_states(session, where, row, after, session.texts[row][:-1], tree, outcome.path)


def text_states(
    session: Session,
    where: str,
    row: int,
    state: State,
    text: Sequence[int],
    tree: DraftTree | None = None,
    path: Sequence[int] = (),
) -> None:
    """I16, I27: a flushed row's states and windows are those that plain decoding of its committed text ends with."""
    checks, geometry = session.checks, session.subject.spec.target.geometry
    if not checks.wants("I16", "I27") or not text:
        return
    plain = session.subject.plain.forward([text])
    for prefix, layers in slots.positions(state, geometry):
        states = torch.stack([plain.states[layer][0, -1] for layer in layers])
        compared = [("I16", "state", state[f"{prefix}state"][:, row], states)]
        if f"{prefix}conv_window" in state:
            window = state[f"{prefix}conv_window"][:, row]
            inputs = torch.stack([plain.mixed[layer][0] for layer in layers])
            compared.append(("I27", "conv_window", window, window_after(torch.zeros_like(window), inputs)))
        for id, name, got, wanted in compared:
            if checks.wants(id):
                gap = difference(got, wanted, bound=session.subject.bound)
                what = f"`{prefix}{name}` [layer, …] is not that of the text"
                checks.require(id, where, None if gap is None else f"{what}: {gap}", tree, path)


def at_end(session: Session) -> None:
    """I16, I27 of every row of the flushed state after the last step."""
    if not is_recurrent(session):
        return
    state = copied(session.crew.state)
    for row, text in enumerate(session.committed_texts()):
        text_states(session, f"the end, row {row}", row, state, text)
