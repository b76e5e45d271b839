"""I7, I9, I23: what accept takes of a draft, against the rules in plain Python; on real and on made-up logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specc.check.drafts import as_bag, truncated
from specc.check.machines import State
from specc.testing import invariants as static
from specc.testing.draft_tree import PADDING_TOKEN, DraftTree
from specc.testing.oracles import Acceptance
from specc.testing.tensors import acceptances

if TYPE_CHECKING:
    from specc.check.session import Session

Bag = Mapping[str, Tensor | None]
NAMES = ("path", "accept_length", "bonus", "stopped", "emitted", "emitted_tokens", "logits")
WANTED_LOGIT = 9.0
"""Added to one token's logit, so that it is the target's choice (and likely under sampling)."""


def compared(
    session: Session, where: str, trees: Sequence[DraftTree], bag: Bag, state: State, live: Tensor
) -> list[Acceptance | None]:
    """I7, I9, I14: what every row accepts is what the rule gives for these logits; rows that are not live accept
    nothing. Returns what the rule gives, None for those."""
    checks, spec = session.checks, session.subject.spec
    got = {name: value for name in NAMES if (value := bag[name]) is not None}
    found = acceptances(got["path"], got["accept_length"], got["bonus"], got["stopped"])
    q_probs, out = bag.get("q_probs"), list[Acceptance | None]()
    for row, outcome in enumerate(found):
        emitted = int(got["emitted"][row])
        length, remaining = int(state["length"][row]), int(state["remaining"][row])
        limit = min(remaining, spec.runtime.max_sequence_length - length)
        if not bool(live[row]) or limit <= 0:
            ends = bool(live[row])  # a row without room is ended by the step, a finished one says nothing
            blank = (emitted, outcome.accept_length, any(outcome.path), outcome.stopped) == (0, 0, False, ends)
            gap = None if blank else f"row {row} may take no step, but accepts {outcome}, emits {emitted}"
            checks.require("I14", where, gap, trees[row])
            out.append(None)
            continue
        law = None if q_probs is None else q_probs[row].tolist()
        key, logits = session.keys[row], got["logits"][row].tolist()
        wanted = session.subject.expected.step(trees[row], logits, law, key, length, limit)
        with checks.check("I7", where):
            static.check_path(trees[row], outcome.path, outcome.accept_length)
        gap = None if outcome == wanted else f"row {row} accepted {outcome}, the rule gives {wanted}"
        checks.require("I7", where, gap, trees[row], wanted.path)
        text, shown = wanted.emitted(trees[row]), got["emitted_tokens"][row].tolist()
        right = emitted == len(text) and shown == [*text, *[0] * (len(outcome.path) - len(text))]
        gap = None if right else f"row {row} emits {emitted} of {shown}, not {text}"
        checks.require("I9", where, gap, trees[row], wanted.path)
        out.append(wanted)
    return out


def accepted(session: Session, trees: Sequence[DraftTree], bag: Bag, live: Tensor) -> list[Acceptance | None]:
    """The step's own acceptance; under greedy decoding also I23: the tokens are those of plain decoding."""
    spec, where = session.subject.spec, f"{session.crew.where}, accept"
    out = compared(session, where, trees, bag, session.crew.state, live)
    if spec.sampling.temperature == 0.0 and spec.accept.method != "typical":
        for row, outcome in enumerate(out):
            if outcome is not None:
                text = outcome.emitted(trees[row])
                plain = session.subject.plain.continuation(session.texts[row], len(text))
                gap = None if plain == text else f"row {row} emits {text}, plain decoding {plain}"
                session.checks.require("I23", where, gap, trees[row], outcome.path)
    return out


def synthetic(session: Session, trees: Sequence[DraftTree], seed: int) -> None:
    """I7 on logits that want children, padding's token, stop tokens: what a model rarely does, in every step."""
    if not session.checks.wants("I7", "I9", "I14"):
        return
    rng, spec, crew = Random(seed), session.subject.spec, session.crew
    cut = [truncated(tree, rng.randint(0, tree.num_nodes - 1)) for tree in trees]
    bag = as_bag(session.subject, cut, seed)
    noise = torch.Generator().manual_seed(seed)
    logits = torch.randn((len(cut), spec.num_nodes, session.subject.vocabulary), generator=noise, dtype=torch.float64)
    for row, tree in enumerate(cut):
        for node in range(tree.num_nodes):
            children = [tree.tokens[child] for child in tree.children(node)]
            token = rng.choice([*children, *children, PADDING_TOKEN, *spec.accept.stop_tokens])
            logits[row, node, token] += WANTED_LOGIT
    rows = range(len(cut))
    longest = spec.runtime.max_sequence_length
    lengths = [rng.choice((0, longest - 1, longest - 2, longest, rng.randint(0, longest))) for _ in rows]
    state = session.fork()
    state["length"] = torch.tensor(lengths)
    state["remaining"] = torch.tensor([rng.choice((0, 1, 2, 3, 64, 64)) for _ in rows])
    state["finished"] = torch.tensor([rng.random() < 0.15 for _ in rows])
    live = ~state["finished"]
    bag |= {"logits": session.subject.as_computed(logits), "features": _features(session, len(cut))}
    _, results = crew.run(crew.leader, "accept", dict(state), bag)
    compared(session, f"{crew.where}, accept on made-up logits", cut, {**bag, **results}, state, live)


def _features(session: Session, rows: int) -> Tensor | None:
    """Features that accept does not look at."""
    spec = session.subject.spec
    head = spec.eagle_geometry
    if head is None:
        return None
    return torch.zeros((rows, spec.num_nodes, head.features_width), dtype=torch.float64)
