"""Small exports of specs, driven by the checks of `specc check`: every step runs in onnxruntime or IREE.

The checks compare each step with the naive program in the interpreter (float64) and with plain decoding of whole texts,
as they do for a module; only the step functions are the exported files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from specc.check.ascend.exported import Exported, reduced_export
from specc.check.example import AGAINST, Example, step_plans
from specc.check.findings import CheckFailure, Checks
from specc.check.reduce import VOCABULARY
from specc.check.session import Session
from specc.check.tally import Tally
from specc.check.variations import Variation
from specc.spec import load

SPECS = Path(__file__).parents[3] / "specs"
NAMES = tuple(sorted(path.stem for path in SPECS.glob("*.yaml")))
NAIVE = AGAINST.index("naive")
BITWISE = frozenset({"I14", "I24"})
"""A verify leaves the committed state, and a finished row, bit for bit: with a commit pending, what `flush` makes of it
before and what `verify` itself has made of it after are equal. IREE contracts products and sums differently in the two
graphs (seen: one unit in the last place of float32), so this holds in the module and in onnxruntime only."""


@cache
def exported(name: str, target: str, batch: int) -> Exported:
    """The export of a shipped spec, made once."""
    made = Exported(Variation(name, reduced_export(load(SPECS / f"{name}.yaml", []))), 1, target=target, batch=batch)
    assert made.module is not None  # exported here, so that subjects with other weights share the files
    return made


@st.composite
def sessions(draw: st.DrawFn, rows: int) -> Example:
    """Examples of exactly `rows` rows, the exported batch; rows without a request among them."""
    token = st.integers(0, VOCABULARY - 1)
    sizes = [draw(st.sampled_from((1, 2, 5, 9) if row == 0 else (1, 3, 7, 0))) for row in range(rows)]
    prompts = tuple(tuple(draw(st.lists(token, min_size=size, max_size=size))) for size in sizes)
    limits = tuple(draw(st.sampled_from((64, 64, 9, 4))) for _ in range(rows))
    steps = draw(st.lists(step_plans(rows), min_size=2, max_size=4))
    return Example(0, prompts, draw(st.sampled_from((9, 4))), limits, tuple(steps), NAIVE)


def checks_of(target: str) -> Checks:
    """All invariants that a runtime can keep."""
    made = Checks()
    return Checks(made.selected - BITWISE) if target == "mlir" else made


def run(subject: Exported, example: Example) -> str | None:
    """Run an example; what was found, or None. A finding counts if it stands with two sets of weights: see `single`."""
    found = None
    for seed in (subject.seed, subject.seed + 1):
        try:
            Session(subject.with_seed(seed), example, checks_of(subject.target), Tally()).run()
        except CheckFailure as failure:
            found = str(failure)
        else:
            return None
    return found
