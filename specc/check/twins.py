"""The same example otherwise: rows alone, prompts split elsewhere, the deferred twin, a chain as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specc.check import slots
from specc.check.compare import mapping_difference
from specc.check.crew import Op, comparable
from specc.check.drafts import as_bag
from specc.check.machines import Machine, Results, State, copied, reset_rows
from specc.check.subject import Subject
from specc.check.view import alike, rows_of, view
from specc.testing.draft_tree import DraftTree, make_tree

if TYPE_CHECKING:
    from specc.check.session import Session

TARGET_CONTROL = ("length", "root_token", "finished", "remaining")


def compare(session: Session) -> None:
    """All twins that apply."""
    checks, subject = session.checks, session.subject
    if checks.wants("I13") and len(session.texts) > 1:
        rows_alone(session)
    if checks.wants("I22"):
        split_prompts(session)
    if checks.wants("I19") and subject.deferred_twin is not None:
        deferred(session, subject.deferred_twin)
    if checks.wants("I12") and subject.chain_twin is not None:
        chain_as_tree(session, subject.chain_twin)


def _picked(bag: dict[str, Tensor | None], rows: Sequence[int]) -> dict[str, Tensor | None]:
    index = torch.tensor(list(rows))
    return {name: None if value is None else value.index_select(0, index) for name, value in bag.items()}


def replayed(session: Session, machine: Machine, rows: Sequence[int]) -> Iterator[tuple[Op, State, Results]]:
    """Runs what the leader did on another machine, for these rows of the batch only."""
    crew, record = session.crew, list(session.crew.record)
    state = {**machine.start(len(rows)), "rng": torch.tensor([session.keys[row] for row in rows])}
    for op in record:
        bag = _picked(dict(op.bag), rows)
        results: Results = {}
        if op.step == "set":
            state = {**state, **{name: value.clone() for name, value in bag.items() if value is not None}}
        elif op.step == "reset":
            inside = [rows.index(row) for row in op.rows if row in rows]
            state = reset_rows(machine, state, inside) if inside else state
        else:
            state, results = crew.run(machine, op.step, state, bag)
        live = op.live[list(rows)]
        yield op, state, comparable(op.step, results, bag, live)


def _same_results(session: Session, id: str, what: str, op: Op, results: Results, rows: Sequence[int]) -> None:
    index = torch.tensor(list(rows))
    wanted = comparable(op.step, op.results, op.bag, op.live)
    wanted = {name: value.index_select(0, index) for name, value in wanted.items()}
    gap = mapping_difference(results, wanted, bound=session.subject.bound)
    session.checks.require(id, op.step, None if gap is None else f"{what}: {gap}")


def rows_alone(session: Session) -> None:
    """I13: every row on its own gives what it gave in the batch."""
    machine, eagle = session.crew.leader, session.eagle
    whole = view(machine, session.crew.state, eagle)
    for row in range(len(session.texts)):
        state: State = {}
        for op, now, results in replayed(session, machine, [row]):
            state = now
            _same_results(session, "I13", f"row {row} alone differs from row {row} of the batch", op, results, [row])
        alone = view(machine, state, eagle)
        gap = mapping_difference(alone, rows_of(whole, machine, [row]), bound=session.subject.bound)
        session.checks.require("I13", "the end", None if gap is None else f"row {row} alone ends differently: {gap}")


def deferred(session: Session, twin: Subject) -> None:
    """I19: the twin that commits now (or later) gives the same results, and the same view at every moment."""
    rows = list(range(len(session.texts)))
    pair = zip(replayed(session, session.crew.leader, rows), replayed(session, twin.generated, rows), strict=True)
    for (op, one, results), (_, other, wanted) in pair:
        gap = mapping_difference(results, wanted, bound=twin.bound)
        gap = gap or mapping_difference(
            view(session.crew.leader, one, session.eagle),
            view(twin.generated, other, session.eagle),
            bound=twin.bound,
        )
        text = None if gap is None else f"deferred and immediate update differ after {op.step}: {gap}"
        session.checks.require("I19", op.step, text)


def _prefilled(session: Session, prompt: Sequence[int], cuts: Sequence[int], key: int) -> tuple[State, Tensor]:
    """A batch of one row with the prompt in chunks that end at `cuts`."""
    crew, machine = session.crew, session.crew.leader
    state = {**machine.start(1), "rng": torch.tensor([key])}
    logits, start = torch.zeros(0), 0
    for end in cuts:
        bag = {"input_ids": torch.tensor([prompt[start:end]]), "lengths": torch.tensor([end - start])}
        state, results = crew.run(machine, "prefill", state, bag)
        logits, start = results["logits"], end
    return state, logits


def split_prompts(session: Session) -> None:
    """I22: a prompt token by token, cut anywhere, or partly by plain steps, is the prompt at once."""
    machine, eagle = session.crew.leader, session.eagle
    for row, prompt in enumerate(session.example.prompts):
        size, key = len(prompt), session.keys[row]
        if size < 2:
            continue
        state, logits = _prefilled(session, prompt, [size], key)
        wanted = {**view(machine, state, eagle), "logits": logits}
        cut = 1 + Random(sum(prompt)).randrange(size - 1)
        for cuts in (list(range(1, size + 1)), [cut, size]):
            state, logits = _prefilled(session, prompt, cuts, key)
            seen = view(machine, state, eagle)
            gap = _split_difference({**seen, "logits": logits}, wanted, session.subject.bound)
            text = None if gap is None else f"prompt {list(prompt)} cut at {cuts}: {gap}"
            session.checks.require("I22", f"prefill of row {row}", text)
        gap = _split_difference(_by_plain_steps(session, prompt, cut, key), wanted, session.subject.bound)
        text = None if gap is None else f"prompt {list(prompt)}, plain steps from {cut} on: {gap}"
        session.checks.require("I22", f"prefill of row {row}", text)


def _split_difference(seen: State, wanted: State, bound: float) -> str | None:
    """Without how many drafter rows are left to catch up, which depends on the cuts."""
    one, other = ({**_target(state), **_named(state, "history", "logits")} for state in (seen, wanted))
    return mapping_difference(one, other, bound=bound)


def _by_plain_steps(session: Session, prompt: Sequence[int], cut: int, key: int) -> State:
    """The first `cut` tokens prefilled, each other one forced as the root and decoded plainly."""
    machine = session.crew.leader
    state, logits = _prefilled(session, prompt, [cut], key)
    for token in prompt[cut:]:
        forced = {"root_token": torch.tensor([token]), "finished": torch.tensor([False])}
        state, results = session.crew.run(machine, "decode", {**state, **forced}, {})
        logits = results["logits"]
    seen = view(machine, state, session.eagle)
    # A plain step counts emitted tokens and does not keep the drafter's text.
    counted = ("finished", "remaining")
    return {name: value for name, value in _target(seen).items() if name not in counted} | {"logits": logits}


def chain_as_tree(session: Session, twin: Subject) -> None:
    """I12: chains as trees in this module, and in the chain module: same logits, same acceptance, same rows."""
    subject, rows = session.subject, [row for row, prompt in enumerate(session.example.prompts) if prompt]
    machines: tuple[Any, ...] = (subject.generated, twin.generated)
    crew, keys = session.crew, [session.keys[row] for row in rows]
    texts = [list(session.example.prompts[row]) for row in rows]
    states = []
    for machine in machines:
        state = {**machine.start(len(rows)), "rng": torch.tensor(keys)}
        width = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])
        bag = {"input_ids": ids, "lengths": torch.tensor([len(text) for text in texts])}
        states.append(crew.run(machine, "prefill", state, bag)[0])
    nodes = min(subject.spec.depth, twin.spec.depth, subject.spec.num_nodes - 1)
    for plan in session.example.steps:
        roots = states[0]["root_token"].tolist()
        chains = [
            _chain(session, [*text, root], min(nodes, plan.budget), plan.seed + row)
            for row, (text, root) in enumerate(zip(texts, roots, strict=True))
        ]
        outcomes = []
        for place, (machine, owner) in enumerate(zip(machines, (subject, twin), strict=True)):
            trees = [make_tree(c.tokens, c.parent, owner.spec.num_nodes) for c in chains]
            live = ~states[place]["finished"]
            inputs = as_bag(owner, trees, plan.seed)
            seen: Results = {}
            for step in ("verify", "accept", "commit"):
                states[place], results = crew.run(machine, step, states[place], {**inputs, **seen})
                seen |= results
            count = nodes + 1
            logits = comparable("verify", {"logits": seen["logits"]}, inputs, live)["logits"][:, :count]
            accepted = {name: seen[name] for name in ("accept_length", "bonus", "emitted", "stopped")}
            state = copied(states[place])
            now = view(machine, state, session.eagle)
            outcomes.append({"logits": logits, **accepted, "path": seen["path"][:, :count], **_target(now)})
        gap = _without_capacity(outcomes[0], outcomes[1], subject.bound)
        text = None if gap is None else f"the chain as a tree differs from the chain module in {gap}"
        session.checks.require("I12", "verify", text, chains[0])
        for row in range(len(rows)):
            count = int(outcomes[0]["emitted"][row])
            emitted = [chains[row].tokens[i] for i in range(1, count)]
            texts[row] += [roots[row], *emitted] if count else []


def _named(seen: State, *names: str) -> State:
    return {name: seen[name] for name in names if name in seen}


def _target(seen: State) -> State:
    """What the target's steps leave behind."""
    return _named(seen, *TARGET_CONTROL, *slots.named(seen, (*slots.CACHES, *slots.RECURRENT)))


def _without_capacity(one: State, other: State, bound: float) -> str | None:
    """The caches of the two have different numbers of spare rows."""
    cut = alike(one, other)
    return mapping_difference(cut[0], cut[1], bound=bound)


def _chain(session: Session, text: list[int], count: int, seed: int) -> DraftTree:
    """A chain of `count` tokens after the root text[-1]: the plain continuation up to a drawn error."""
    rng = Random(seed)
    tokens = session.subject.plain.continuation(text, count)
    for place in range(count):
        if rng.random() < 0.2:
            tokens[place] = rng.randrange(session.subject.vocabulary)
    return make_tree([text[-1], *tokens], list(range(-1, count)))
