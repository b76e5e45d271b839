"""The checks of every step: what a draft, a verify, an accept and a commit must have done, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specc.check import recurrent, slots
from specc.check.compare import difference, mapping_difference
from specc.check.drafts import needs_law
from specc.check.machines import Interpreted, State, copied
from specc.check.masks import check_masks
from specc.check.pages import contiguous
from specc.check.view import batch_dim, view
from specc.testing import invariants as static
from specc.testing.draft_oracles import dynamic_tree, prompt_lookup_chain, prompt_lookup_tree, static_tree
from specc.testing.draft_tree import DraftTree
from specc.testing.oracles import Acceptance

if TYPE_CHECKING:
    from specc.check.session import Session

Bag = Mapping[str, Tensor | None]


def values_agree(
    session: Session, id: str, where: str, what: str, got: Tensor, wanted: Tensor, tree: DraftTree | None = None
) -> None:
    """Integers equal, floats within the bound."""
    if session.checks.wants(id):
        gap = difference(got, wanted, bound=session.subject.bound)
        session.checks.require(id, where, None if gap is None else f"{what}: {gap}", tree)


def rows_untouched(session: Session, before: State, rows: Tensor, what: str) -> None:
    """I14: these rows (bool [B]) look exactly as before."""
    if not session.checks.wants("I14") or not bool(rows.any()):
        return
    after = view(session.crew.leader, session.crew.state, session.eagle)
    chosen = torch.nonzero(rows).flatten()
    pick = {name: batch_dim(session.crew.leader, name) for name in before}
    old = {name: value.index_select(pick[name], chosen) for name, value in before.items()}
    new = {name: value.index_select(pick[name], chosen) for name, value in after.items()}
    gap = mapping_difference(new, old, exact=True)
    session.checks.require("I14", session.crew.where, None if gap is None else f"{what} changed: {gap}")


def started(session: Session, row: int) -> None:
    """After a prompt: length, and whether the row is finished already."""
    state, text = session.crew.state, session.texts[row]
    length = int(state["length"][row])
    gap = None if length == len(text) - 1 else f"length is {length} after a prompt of {len(text) - 1} tokens"
    session.checks.require("I9", session.crew.where, gap)
    ended = text[-1] in session.subject.spec.accept.stop_tokens or int(state["remaining"][row]) <= 0
    finished = bool(state["finished"][row])
    gap = None if finished == ended else f"finished is {finished} with root {text[-1]}"
    session.checks.require("I25", session.crew.where, gap)


def drafted(session: Session, row: int, tree: DraftTree) -> None:
    """I1, I2, I5, I14, I15 of a tree that the module drafted for a live row, and its root."""
    checks, where = session.checks, f"{session.crew.where}, draft of row {row}"
    with checks.check("I1", where):
        static.check_parent(tree)
    with checks.check("I14", where):
        static.check_padding(tree)
    with checks.check("I5", where):
        static.check_distinct_siblings(tree)
    kept = [node for node in range(1, tree.num_nodes) if tree.valid[node]]
    with checks.check("I2", where):
        static.check_ancestor_closed([-1, *(parent if parent else -1 for parent in tree.parent[1:])], kept)
    root = session.texts[row][-1]
    checks.require("I1", where, None if tree.tokens[0] == root else f"node 0 is {tree.tokens[0]}, not {root}", tree)
    allowed = _draftable(session)
    wrong = [tree.tokens[node] for node in kept if tree.tokens[node] not in allowed]
    checks.require("I15", where, f"drafted tokens {wrong} are not in the draft vocabulary" if wrong else None, tree)


def _draftable(session: Session) -> frozenset[int]:
    marks = session.subject.all_weights.get("draft_t2d")
    if not isinstance(marks, Tensor):
        return frozenset(range(session.subject.vocabulary))
    return frozenset(int(token) for token in torch.nonzero(marks).flatten())


def drafted_as_described(session: Session, trees: Sequence[DraftTree], rows: Sequence[int]) -> None:
    """I2: the draft is the one that the method describes (EAGLE-2 trees, static trees, prompt lookup), in plain
    Python. Drawn drafts are left to the comparison with the naive program and to the output law."""
    text = session.texts
    if needs_law(session.subject):
        return
    for row in rows:
        wanted = _described(session, text[row])
        gap = None if trees[row] == wanted else f"drafted {trees[row]}, the method gives {wanted}"
        session.checks.require("I2", f"{session.crew.where}, draft of row {row}", gap, trees[row])


def _described(session: Session, text: Sequence[int]) -> DraftTree:
    spec, draft = session.subject.spec, session.subject.spec.draft
    if draft.method == "prompt_lookup":
        low, high = (draft.ngram.min, draft.ngram.max) if draft.ngram else (1, 4)
        if spec.is_chain:
            return prompt_lookup_chain(text, low, high, spec.num_nodes - 1)
        return prompt_lookup_tree(text, low, high, spec.num_nodes - 1, spec.depth, draft.top_k)
    drafter, head, bigram = session.subject.drafter, session.subject.head, session.subject.bigram

    def log_probs(path: tuple[int, ...]) -> list[float]:
        if bigram is not None:
            return bigram.log_probs(path[-1] if path else text[-1])
        if head is not None:
            return head.log_probs(text, path)
        assert drafter is not None
        scores: list[float] = torch.log_softmax(drafter.logits([*text, *path]), -1).float().tolist()
        return scores

    if draft.tree == "static" and not spec.is_chain:
        choices = draft.choices or ()
        return static_tree([list(path) for path in choices], log_probs, text[-1], spec.num_nodes)
    top_k = 1 if spec.is_chain else draft.top_k
    prune = draft.prune
    margin, least = (prune.path_log_prob_margin, prune.min_path_log_prob) if prune else (None, None)
    return dynamic_tree(log_probs, text[-1], spec.depth, top_k, spec.num_nodes - 1, margin, least).tree


def verified(session: Session, before: State, trees: Sequence[DraftTree], bag: Bag) -> None:
    """I24: the committed state is as before. I16, I23: every node's states and logits are those of plain decoding after
    its path."""
    crew, checks = session.crew, session.checks
    if checks.wants("I24"):
        gap = mapping_difference(view(crew.leader, crew.state, session.eagle), before, exact=True)
        checks.require("I24", crew.where, None if gap is None else f"verify changed the committed state: {gap}")
    lengths = [int(crew.state["length"][row]) if bool(crew.live[row]) else None for row in range(len(trees))]
    for member in crew.members[1:]:
        if isinstance(member.machine, Interpreted) and not session.subject.spec.is_chain:
            check_masks(checks, member.machine, crew.where, trees, lengths)
    recurrent.nodes_verified(session, trees)
    if not checks.wants("I23"):
        return
    live = [row for row in range(len(trees)) if bool(crew.live[row])]
    committed = session.committed_texts()
    wanted = session.subject.plain.node_logits([committed[row] for row in live], [trees[row] for row in live])
    logits, valid = bag["logits"], bag["valid"]
    assert logits is not None
    assert valid is not None
    for place, row in enumerate(live):
        got = torch.where(valid[row][:, None], logits[row], torch.zeros_like(logits[row]))
        where = f"{crew.where}, verify of row {row}"
        text = "logits [node, token] differ from plain decoding after the node's path"
        values_agree(session, "I23", where, text, got, wanted[place], trees[row])


def candidate_rows(session: Session) -> State | None:
    """What the nodes just verified leave to be moved, by the slot that it is moved to: K and V rows [L,B,N,Hkv,D],
    wherever the machine keeps them, and the convolution's inputs [L,B,N,C]."""
    if not session.checks.wants("I8", "I27"):
        return None
    state, spec = contiguous(session.crew.state), session.subject.spec
    found: State = {}
    for name in slots.named(state, slots.CACHES):
        candidate = name.replace("_cache", "_candidate")
        if candidate in state:
            found[name] = state[candidate].clone()
            continue
        cache, start = state[name], state["length"]
        place = start[:, None] + torch.arange(spec.num_nodes)
        index = place[None, :, :, None, None].expand(cache.shape[0], -1, -1, *cache.shape[3:])
        found[name] = cache.gather(2, index)
    for name in slots.named(state, ["conv_candidate"]):
        found[name.replace("conv_candidate", "conv_window")] = state[name].clone()
    return found


def committed(
    session: Session, before: State, rows: State | None, bag: Bag, accepted: Sequence[Acceptance | None]
) -> None:
    """I8, I9, I14, I16, I25, I27: rows and states moved along one path, length and control slots as accepted."""
    crew, checks = session.crew, session.checks
    after = view(crew.leader, copied(crew.state), session.eagle)
    idle = torch.tensor([outcome is None for outcome in accepted])
    rows_untouched(session, before, idle, "a finished row")
    for row, outcome in enumerate(accepted):
        if outcome is not None:
            _row_committed(session, row, before, after, rows, outcome, session.tree(dict(bag), row))
    longest = session.subject.spec.runtime.max_sequence_length
    most = int(after["length"].max())
    checks.require("I25", crew.where, None if most <= longest else f"length {most} exceeds {longest}")


def _row_committed(
    session: Session,
    row: int,
    before: State,
    after: State,
    rows: State | None,
    outcome: Acceptance,
    tree: DraftTree | None,
) -> None:
    checks, where = session.checks, f"{session.crew.where}, commit of row {row}"
    length, count = int(before["length"][row]), outcome.accept_length + 1
    if checks.wants("I9"):
        with checks.check("I9", where):
            static.check_length(length, int(after["length"][row]), outcome.accept_length)
        left = int(before["remaining"][row]) - count
        right = (int(after["root_token"][row]), int(after["remaining"][row])) == (outcome.bonus, left)
        checks.require("I9", where, None if right else "root_token or remaining is wrong after the commit", tree)
    finished = bool(after["finished"][row])
    checks.require(
        "I25", where, None if finished == outcome.stopped else f"finished is {finished} after {outcome}", tree
    )
    for name in slots.named(after, slots.CACHES) if rows is not None else ():
        assert rows is not None
        cache = after[name][:, row]
        old = before[name][:, row, :length]
        gap = difference(cache[:, :length], old, exact=True)
        text = None if gap is None else f"committed rows of `{name}` changed, [layer, row, …]: {gap}"
        checks.require("I8", where, text, tree, outcome.path)
        wanted = rows[name][:, row, list(outcome.path[:count])]
        gap = difference(cache[:, length : length + count], wanted, exact=True)
        text = None if gap is None else f"rows of `{name}` are not those of the path, [layer, row, …]: {gap}"
        checks.require("I27" if checks.wants("I27") else "I8", where, text, tree, outcome.path)
    recurrent.row_committed(session, row, before, after, rows, outcome, tree)
    if "history" in after:
        shown = after["history"][row, : length + count + 1].tolist()
        gap = None if shown == session.texts[row] else f"history is {shown}, the text {session.texts[row]}"
        checks.require("I27", where, gap, tree, outcome.path)
    if "recent_count" in after:
        recent = after["recent_tokens"][row, : int(after["recent_count"][row])].tolist()
        gap = None if recent == session.texts[row][-count:] else f"recent tokens {recent} of {session.texts[row]}"
        checks.require("I27", where, gap, tree, outcome.path)
