"""What happens around a step besides the step itself; most of it on copies of the leader's state."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specc.check import recurrent, slots, step_checks, twins
from specc.check.compare import difference, mapping_difference
from specc.check.drafts import as_bag, planted, truncated
from specc.check.example import AGAINST, StepPlan
from specc.check.machines import Generated, Results, State, copied
from specc.check.pages import contiguous, is_pool, unread
from specc.check.view import rows_of, view
from specc.testing import invariants as static
from specc.testing.draft_tree import DraftTree
from specc.testing.oracles import ancestors

if TYPE_CHECKING:
    from specc.check.session import Session

Bag = dict[str, Tensor | None]
POISON, SINGLE_POISON = 1e30, 1e15
"""For float64 and float32: a square of it must not overflow, which NumPy warns of when kernels are interpreted."""


def before(session: Session, action: str, plan: StepPlan) -> None:
    """Before a step's draft."""
    if action == "flush":
        flush(session)
    elif action == "snapshot" and session.texts[plan.row]:
        snapshot(session, plan)
    elif action == "restart":
        restart(session, plan)
    elif action == "plain":
        plain_steps(session)


def flush(session: Session) -> None:
    """I21: flushing changes nothing that can be observed, and flushing twice is flushing once."""
    crew = session.crew
    if session.checks.wants("I21"):
        before = view(crew.leader, crew.state, session.eagle)
        once, _ = crew.run(crew.leader, "flush", session.fork(), {})
        twice, _ = crew.run(crew.leader, "flush", copied(once), {})
        gap = mapping_difference(twice, once, exact=True)
        session.checks.require("I21", crew.where, None if gap is None else f"a second flush changes {gap}")
        gap = mapping_difference(view(crew.leader, once, session.eagle), before, exact=True)
        session.checks.require("I21", crew.where, None if gap is None else f"flush changes {gap}")
    crew.step("flush", {})


def restart(session: Session, plan: StepPlan) -> None:
    """The row is given to another request: nothing of the old one may remain."""
    session.crew.reset(plan.row)
    session.texts[plan.row] = []
    prompts: list[list[int]] = [[] for _ in session.texts]
    prompts[plan.row] = session.new_prompt(plan.seed)
    session.prefill(prompts)


def whole_step(session: Session, state: State) -> State:
    """One step with the module's own drafts on a state of one's own."""
    crew, bag = session.crew, Bag()
    for step in ("draft", "verify", "accept", "commit"):
        state, results = crew.run(crew.leader, step, state, bag)
        bag |= results
    return state


def snapshot(session: Session, plan: StepPlan) -> None:
    """I21: a row's snapshot, taken while a commit may be pending, brings it back after another step."""
    crew, machine = session.crew, session.crew.leader
    if not session.checks.wants("I21") or not isinstance(machine, Generated):
        return
    rows = [plan.row]
    wanted = rows_of(view(machine, crew.state, session.eagle), machine, rows)
    state, saved = machine.snapshot(session.fork(), rows)
    gap = mapping_difference(view(machine, saved, session.eagle), wanted, exact=True)
    session.checks.require("I21", crew.where, None if gap is None else f"the snapshot of row {plan.row} differs: {gap}")
    kept = copied(saved)
    state = machine.restore(whole_step(session, state), rows, saved)
    gap = mapping_difference(rows_of(view(machine, state, session.eagle), machine, rows), wanted, exact=True)
    session.checks.require("I21", crew.where, None if gap is None else f"restored row {plan.row} differs: {gap}")
    gap = mapping_difference(saved, kept, exact=True)
    session.checks.require("I21", crew.where, None if gap is None else f"restoring changed the snapshot: {gap}")


def plain_steps(session: Session) -> None:
    """I22: plain steps, from whatever state speculation has left, emit what plain decoding emits."""
    crew, spec = session.crew, session.subject.spec
    state, texts = session.fork(), [list(text) for text in session.texts]
    for _ in range(2):
        live = ~state["finished"]
        state, results = crew.run(crew.leader, "decode", state, {})
        for row, text in enumerate(texts):
            if not bool(live[row]):
                continue
            plain = session.subject.plain.logits(text)
            step_checks.values_agree(
                session, "I22", crew.where, f"plain step of row {row}", results["logits"][row], plain
            )
            wanted = session.subject.expected.pick(plain.tolist(), session.keys[row], len(text))
            got = int(state["root_token"][row])
            gap = None if got == wanted else f"a plain step of row {row} emits {got}, not {wanted}"
            session.checks.require("I22", crew.where, gap)
            text.append(wanted)
            emitted = len(text) - len(session.texts[row])
            spent = emitted >= int(crew.state["remaining"][row]) or len(text) - 1 >= spec.runtime.max_sequence_length
            ended = wanted in spec.accept.stop_tokens or spent
            gap = (
                None if bool(state["finished"][row]) == ended else f"row {row} finished: {not ended} after a plain step"
            )
            session.checks.require("I25", crew.where, gap)


def before_verify(session: Session, action: str, plan: StepPlan, bag: Bag) -> None:
    """Between draft and verify."""
    crew = session.crew
    if action == "ghost":
        trees = planted(session.subject, session.texts, plan.seed + 1, 99)
        crew.step("verify", as_bag(session.subject, trees, plan.seed + 1))
    elif action == "poison" and session.checks.wants("I17"):
        poison(session, bag)


def poisoned(state: State, session: Session) -> State:
    """The state with ±1e30 in every row that nobody may read any more: cache rows behind the text, rows of nodes that
    are not pending, factors that do not count. Never NaN: 0 * NaN leaks in right code."""
    made = copied(state)
    used = _pending_nodes(state, session.subject.spec.num_nodes)
    for name, value in state.items():
        role = slots.role(name)
        if role in slots.CACHES:
            first = state["length"]
            if "pending_length" in state:
                first = torch.maximum(first, state["pending_length"] + session.subject.spec.num_nodes)
            if is_pool(name, state):
                unused = unread(state, first, value)
            else:
                unused = torch.arange(value.shape[2])[None, :] >= first[:, None]
        elif role in slots.NODE_ROWS:
            unused = ~used
        elif role in slots.PENDING_ROWS and "pending_factors" in state:
            unused = torch.arange(value.shape[2])[None, :] >= state["pending_factors"][:, None]
        else:
            continue
        column = torch.arange(value.shape[2])
        size = SINGLE_POISON if session.subject.single else POISON
        sign = torch.where(column % 2 == 0, 1.0, -1.0).to(value.dtype) * size
        wide = [1] * (value.dim() - 3)
        made[name] = torch.where(
            unused.reshape(1, *unused.shape, *wide), sign.reshape(1, 1, -1, *wide).expand_as(value), value
        )
    return made


def _pending_nodes(state: State, nodes: int) -> Tensor:
    """bool [B,N]: nodes of the last verify whose rows a pending commit will read."""
    length = state["length"]
    used = torch.zeros((length.shape[0], nodes), dtype=torch.bool)
    if "pending_path" in state:
        for row, (path, count) in enumerate(zip(state["pending_path"], state["pending_emitted"], strict=True)):
            used[row, path[: int(count)]] = True
    return used


def poison(session: Session, bag: Bag) -> None:
    """I17: the step is bit for bit the same whatever stands in the rows of rejected nodes and behind the text, with
    what is pending left pending, and after a flush."""
    crew = session.crew
    clean, _ = crew.run(crew.leader, "flush", session.fork(), {})
    for start in (session.fork(), copied(clean)):
        outcomes = list[tuple[State, Results]]()
        for state in (copied(start), poisoned(start, session)):
            seen: Results = {}
            for step in ("verify", "accept", "commit"):
                state, results = crew.run(crew.leader, step, state, {**bag, **seen})
                seen |= results
            outcomes.append((view(crew.leader, state, session.eagle), seen))
        live = crew.live
        for place in (0, 1):
            one, other = outcomes[1][place], outcomes[0][place]
            if place:
                one, other = (_live_only(values, live) for values in (one, other))
            gap = mapping_difference(one, other, exact=True)
            text = None if gap is None else f"rows that nobody may read change {gap}"
            session.checks.require("I17", crew.where, text, session.tree(bag, 0))


def _live_only(values: Results, live: Tensor) -> Results:
    rows = torch.nonzero(live).flatten()
    return {name: value.index_select(0, rows) for name, value in values.items()}


def after_verify(session: Session, action: str, plan: StepPlan, bag: Bag, trees: Sequence[DraftTree]) -> None:
    """Between verify and accept."""
    row = plan.row
    if not bool(session.crew.live[row]) or trees[row].num_valid < 2:
        return
    if action == "leak" and session.checks.wants("I17"):
        leak(session, plan, bag, trees)
    elif action == "superset" and session.checks.wants("I26") and session.subject.expected._method == "greedy":
        superset(session, plan, bag, trees)


def leak(session: Session, plan: StepPlan, bag: Bag, trees: Sequence[DraftTree]) -> None:
    """I17: other tokens at all nodes that are not its ancestors leave a node's logits as they are, bit for bit; with a
    mixture of experts within the bound, as an expert's product has as many rows as tokens chose it."""
    crew, row, tree = session.crew, plan.row, trees[plan.row]
    rng = Random(plan.seed)
    node = rng.randrange(tree.num_valid)
    own = ancestors(tree, node)
    tokens, size = list(tree.tokens), session.subject.vocabulary
    for other in range(tree.num_nodes):
        if other not in own and tree.valid[other]:
            tokens[other] = (tokens[other] + 1 + rng.randrange(size - 1)) % size
    changed = bag["tokens"]
    assert changed is not None
    changed = changed.clone()
    changed[row] = torch.tensor(tokens)
    # Both from here: the step's own verify may have folded what was pending into the state, which this one starts from.
    (_, before), (_, results) = (
        crew.run(crew.leader, "verify", session.fork(), {**bag, "tokens": given}) for given in (bag["tokens"], changed)
    )
    logits = before["logits"]
    kept = sorted(own)
    exact = session.subject.spec.target.geometry.moe is None
    gap = difference(results["logits"][row, kept], logits[row, kept], exact, session.subject.bound)
    text = None if gap is None else f"node {node} depends on nodes that are not its ancestors: {gap}"
    session.checks.require("I17", f"{crew.where}, row {row}", text, tree, kept)


def superset(session: Session, plan: StepPlan, bag: Bag, trees: Sequence[DraftTree]) -> None:
    """I26: the tree's first nodes alone never accept more than the whole tree."""
    crew, row, tree = session.crew, plan.row, trees[plan.row]
    smaller = list(trees)
    smaller[row] = truncated(tree, 1 + plan.seed % (tree.num_valid - 1))
    lengths = []
    for some in (smaller, list(trees)):
        inputs: Bag = {**bag, **as_bag(session.subject, some, plan.seed)}
        state = session.fork()
        for step in ("verify", "accept"):
            state, results = crew.run(crew.leader, step, state, inputs)
            inputs |= results
        accepted = inputs["accept_length"]
        assert accepted is not None
        lengths.append(int(accepted[row]))
    with session.checks.check("I26", f"{crew.where}, row {row}"):
        static.check_superset(lengths[0], lengths[1], tree)


def at_end(session: Session) -> None:
    """After the last step: plain steps go on from it, whatever is pending; the committed rows are plain decoding's, a
    flush is idempotent, and the twins agree."""
    if session.checks.wants("I22", "I25") and bool(session.crew.live.any()):
        plain_steps(session)
    flush(session)
    committed_rows(session)
    drafter_rows(session)
    if AGAINST[session.example.against] == "twins":
        twins.compare(session)


def committed_rows(session: Session) -> None:
    """I16, I27: every committed K and V row, state and window is the one that plain decoding of the text computes."""
    texts = session.committed_texts()
    rows = [row for row, text in enumerate(texts) if text]
    recurrent.at_end(session)
    if not rows or not session.checks.wants("I27"):
        return
    plain = session.subject.plain.forward([texts[row] for row in rows])
    state, geometry = contiguous(session.crew.state), session.subject.spec.target.geometry
    for place, row in enumerate(rows):
        size = len(texts[row])
        for name in slots.named(state, slots.CACHES):
            layers = plain.keys if slots.role(name) == "k_cache" else plain.values
            wanted = torch.stack([layers[layer][place, :size] for layer in slots.layers_of(name, geometry)])
            what = f"committed rows of `{name}` [layer, row, …] differ from plain decoding"
            got = state[name][:, row, :size]
            step_checks.values_agree(session, "I27", f"the end, row {row}", what, got, wanted)


def drafter_rows(session: Session) -> None:
    """I27: after a draft, the drafter's K and V rows are those of the whole text with the root (a head: one fewer)."""
    drafter, head, crew = session.subject.drafter, session.subject.head, session.crew
    rows = [row for row in range(len(session.texts)) if bool(crew.live[row])]
    if (drafter is None and head is None) or not rows or not session.checks.wants("I27"):
        return
    state, _ = crew.run(crew.leader, "draft", session.fork(), {})
    for row in rows:
        text = session.texts[row]
        if head is not None:
            _, *pair = head.rows(*head.committed(text))
            both = [one[None] for one in pair]
        else:
            assert drafter is not None
            plain = drafter.forward([text])
            both = [torch.stack([layer[0] for layer in layers]) for layers in (plain.keys, plain.values)]
        for name, wanted in zip("kv", both, strict=True):
            got = state[f"draft_{name}_cache"][:, row, : wanted.shape[1]]
            what = f"the drafter's {name.upper()} rows [layer, row, …] are not those of the text"
            step_checks.values_agree(session, "I27", f"the end, row {row}", what, got, wanted)
