"""One example: which variation, which prompts, what happens before each step. Plain numbers, so that it can be named.

`token` writes an example as a short text, `parse_token` reads it back: a counterexample is replayed by its token.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hypothesis import strategies as st

from specc.check.reduce import VOCABULARY
from specc.diagnostics import DiagnosticError, error

MAX_BATCH = 3
MAX_PROMPT = 9
MAX_STEPS = 5
SMALL_BUDGETS, WHOLE_TREE = 4, 99

PLANTED, OWN = 0, 1
ACTIONS = ("none", "flush", "snapshot", "ghost", "restart", "poison", "leak", "superset", "plain")
"""What is done around a step: nothing; flush; snapshot, step, restore; verify another tree first; give the row to a
new prompt; poison rows that nobody may read; change nodes that are no ancestors; verify a tree that is contained in
this one; decode plainly on a copy."""
AGAINST = ("oracle", "naive", "stages", "twins")
"""What the generated module is compared with, besides the oracle: nothing; the naive program; the program after every
pass, each with the one before; itself in other circumstances (rows alone, prompts split, a deferred or chain twin)."""
USUAL = ("oracle", "naive", "naive", "stages", "twins")
"""The proportions of a usual run."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One speculative step. `drafts`: planted or the module's own; `budget`: at most this many drafted nodes;
    `seed` draws the planted trees; `action` and `row` say what happens around it, to which row."""

    drafts: int = PLANTED
    seed: int = 0
    budget: int = WHOLE_TREE
    action: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True)
class Example:
    """`prompts` (an empty one is a row without a request), `chunk` (tokens per prefill call), `limits` (tokens that a
    row may emit), the steps, and what the module is compared with."""

    variation: int
    prompts: tuple[tuple[int, ...], ...]
    chunk: int
    limits: tuple[int, ...]
    steps: tuple[StepPlan, ...]
    against: int = 0

    @property
    def token(self) -> str:
        """The example as text of letters, digits, - and _."""
        packed = zlib.compress(json.dumps(asdict(self), separators=(",", ":")).encode(), 9)
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def parse_token(text: str) -> Example:
    """The example of a token. Raises DiagnosticError (SPC501) for any other text."""
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        inflate = zlib.decompressobj()
        text_of = inflate.decompress(packed, 1 << 16)
        if not inflate.eof:
            raise ValueError("the token is cut off")
        return _example(json.loads(text_of))
    except (ValueError, TypeError, KeyError, zlib.error) as failure:
        message = "the replay token is not one that `specc check` printed"
        raise DiagnosticError([error("SPC501", message, help="copy the whole command line")]) from failure


def _example(values: Any) -> Example:
    steps = tuple(StepPlan(**{key: int(value) for key, value in step.items()}) for step in values["steps"])
    prompts = tuple(tuple(int(token) for token in prompt) for prompt in values["prompts"])
    limits = tuple(int(limit) for limit in values["limits"])
    variation, chunk, against = (int(values[key]) for key in ("variation", "chunk", "against"))
    legal = (
        0 < len(prompts) <= MAX_BATCH
        and len(limits) == len(prompts)
        and chunk >= 1
        and variation >= 0
        and 0 <= against < len(AGAINST)
        and all(0 <= token < VOCABULARY for prompt in prompts for token in prompt)
        and all(len(prompt) <= MAX_PROMPT for prompt in prompts)
        and all(limit >= 1 for limit in limits)
        and all(0 <= step.action < len(ACTIONS) and 0 <= step.row < len(prompts) for step in steps)
    )
    if not legal:
        raise ValueError("a value of the token is out of range")
    return Example(variation, prompts, chunk, limits, steps, against)


@st.composite
def step_plans(draw: st.DrawFn, rows: int) -> StepPlan:
    """Steps, three planted ones to one of the module's own."""
    drafts = draw(st.sampled_from((PLANTED, PLANTED, PLANTED, OWN)))
    # Small budgets only sometimes, but shrinking goes towards them.
    budget = draw(st.integers(0, 19))
    budget = budget if budget < SMALL_BUDGETS else WHOLE_TREE
    action = draw(st.integers(0, len(ACTIONS) - 1)) if draw(st.booleans()) else 0
    return StepPlan(drafts, draw(st.integers(0, 4095)), budget, action, draw(st.integers(0, rows - 1)))


@st.composite
def examples(
    draw: st.DrawFn, variations: Sequence[int], against: Sequence[str] = USUAL, vocabulary: int = VOCABULARY
) -> Example:
    """Examples over these numbers of variations; `against` is what the module may be compared with."""
    rows = draw(st.sampled_from((1, 1, 2, 2, 3)))
    token = st.integers(0, vocabulary - 1)
    prompts = []
    for row in range(rows):
        idle = rows > 1 and row > 0 and draw(st.integers(0, 7)) == 7
        size = 0 if idle else draw(st.sampled_from((1, 2, 3, 5, MAX_PROMPT)))
        prompts.append(tuple(draw(st.lists(token, min_size=size, max_size=size))))
    limits = tuple(draw(st.sampled_from((64, 64, 64, 64, 9, 5, 2, 1))) for _ in range(rows))
    steps = draw(st.lists(step_plans(rows), min_size=1, max_size=MAX_STEPS))
    chunk = draw(st.sampled_from((MAX_PROMPT, 1, 2, 4)))
    compared = AGAINST.index(draw(st.sampled_from(against)))
    return Example(draw(st.sampled_from(variations)), tuple(prompts), chunk, limits, tuple(steps), compared)
