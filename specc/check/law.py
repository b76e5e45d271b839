"""I11: stochastic acceptance emits the target's law, tested by chi-square on the generated module.

The same prompt goes into thousands of rows whose random streams differ. The root is forced, so that every row drafts
below the same text; one whole step (draft, verify, accept) gives each row's next tokens. Their counts are compared with
the law of plain sampling: the first token, and the second one given the likeliest first. The test has a fixed seed and
level 1e-6, so a right module passes always; and it must reject a planted wrong rule, or it proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from specc.check.expected import Law
from specc.check.findings import Checks
from specc.check.machines import Bag, Interpreted, Machine, State
from specc.check.pages import TABLE, repeated
from specc.check.subject import Stage, Subject
from specc.ir import ops
from specc.ir.interpreter import Event
from specc.testing.chi_square import ALPHA, p_value

ROWS, FEW_ROWS = 4000, 400
"""Few rows where kernels are interpreted: each takes a program, and a program about 20 ms."""
PROMPT = (7, 23, 41)
ROOT = 17
LEAST_SECOND = 300


def applies(subject: Subject) -> bool:
    """Whether the spec samples and promises the target's law."""
    return subject.spec.accept.method == "rejection" and subject.spec.sampling.temperature > 0.0


def one_step(machine: Machine, seed: int, rows: int = ROWS) -> tuple[State, dict[str, Tensor | None]]:
    """`rows` rows with different streams after PROMPT and ROOT, drafted and verified: state, and what accept reads."""
    keys = torch.randint(-(2**62), 2**62, (rows,), generator=torch.Generator().manual_seed(seed))
    prompt = {"input_ids": torch.tensor([PROMPT]), "lengths": torch.tensor([len(PROMPT)])}
    single, _ = machine.step("prefill", machine.start(1), prompt)
    copies = torch.zeros(rows, dtype=torch.int64)
    own = {name: value for name, value in single.items() if machine.slots[name].batch_dim >= 0}
    state = {name: value.index_select(machine.slots[name].batch_dim, copies) for name, value in own.items()}
    if TABLE in single:
        state |= repeated(single, rows, machine.start(rows))
    state["rng"] = keys
    state["root_token"] = torch.full((rows,), ROOT)
    state["finished"] = torch.zeros(rows, dtype=torch.bool)
    if "history" in state:
        state["history"][:, len(PROMPT)] = ROOT
    if "recent_tokens" in state:
        state["recent_tokens"][torch.arange(rows), state["recent_count"] - 1] = ROOT
    bag: dict[str, Tensor | None] = {}
    for step in ("draft", "verify"):
        state, results = machine.step(step, state, bag)
        bag |= results
    return state, bag


def emitted(machine: Machine, state: State, bag: Bag) -> list[tuple[int, ...]]:
    """The tokens that every row emits when `machine` accepts."""
    _, results = machine.step("accept", dict(state), bag)
    rows = zip(results["emitted_tokens"].tolist(), results["emitted"].tolist(), strict=True)
    return [tuple(row[:count]) for row, count in rows]


def law_gap(texts: Sequence[tuple[int, ...]], subject: Subject) -> str | None:
    """Why these emitted tokens don't follow the target's law, or None."""
    plain, expected = subject.plain, subject.expected
    text = (*PROMPT, ROOT)
    first = expected.law(plain.logits(text).tolist())
    gap = _gap("first", Counter(row[0] for row in texts if row), first)
    if gap is not None:
        return gap
    stop = subject.spec.accept.stop_tokens
    counts = Counter(row[0] for row in texts if len(row) > 1 and row[0] not in stop)
    if not counts or counts.most_common(1)[0][1] < LEAST_SECOND:
        return None
    head = counts.most_common(1)[0][0]
    second = expected.law(plain.logits((*text, head)).tolist())
    return _gap("second", Counter(row[1] for row in texts if len(row) > 1 and row[0] == head), second)


def _gap(which: str, counts: Counter[int], law: Law) -> str | None:
    observed = [counts.get(token, 0) for token in range(len(law))]
    p = p_value(observed, law)
    return None if p >= ALPHA else f"the {which} token's law is wrong: chi-square p = {p:.1e} over {sum(observed)} rows"


def _zero(event: Event) -> Tensor | None:
    """A planted fault: every uniform is 0, so that each draft is accepted (vllm-ascend PR 13470)."""
    return torch.zeros_like(event.value) if event.node.target is ops.counter_uniform else None


def check_law(subject: Subject, checks: Checks, seed: int) -> None:
    """I11 on the generated module, and the same test on a planted wrong rule, which it must reject. A float32 module
    gets the draft and the logits of the program: its acceptance is what is tested."""
    if not applies(subject) or not checks.wants("I11"):
        return
    rows = FEW_ROWS if subject.single and subject.device == "cpu" else ROWS
    where = f"{rows} rows of the generated module"
    good = subject.interpreted(Stage(subject.stages[-1].name, subject.program))
    state, bag = one_step(good if subject.single else subject.generated, seed, rows)
    checks.require("I11", where, law_gap(emitted(subject.generated, state, bag), subject))
    wrong = Interpreted("planted fault", good.program, good.weights, hooks=(_zero,))
    rejected = law_gap(emitted(wrong, state, bag), subject) is not None
    checks.require("I11", where, None if rejected else "the test does not reject a planted wrong rule (u = 0)")
