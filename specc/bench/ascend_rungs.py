"""Which rungs of the Ascend ladder a spec climbs, in its small geometry: one row of the table of specs and rungs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specc import driver
from specc.backends.ascend import cpu
from specc.backends.ascend.contracts import check_contracts
from specc.backends.ascend.harness.evaluator import Undefined, Unmodelled
from specc.backends.ascend.harness.lower import LoweringFailed
from specc.check.ascend.exported import Exported, reduced_export
from specc.check.ascend.half import TARGET, Half, reduced_half
from specc.check.ascend.ladder import walked
from specc.check.ascend.steps import Executed, Steps, eagerly
from specc.check.ascend.walk import Trio
from specc.check.example import AGAINST, Example, StepPlan
from specc.check.findings import CheckFailure, Checks
from specc.check.session import Session
from specc.check.tally import Tally
from specc.check.variations import Variation
from specc.diagnostics import DiagnosticError
from specc.spec import LoadedSpec

CASES = (("float16", 1), ("bfloat16", 4))
WALKS = 3
SHORT = 100
WITNESSES = {"onnx": "ONNX Runtime", "mlir": "IREE"}
NOT_BITWISE = frozenset({"I24"})
"""IREE contracts sums differently in two graphs, so that equal steps of different graphs may differ in the last bit."""
EXAMPLE = Example(
    0,
    ((5, 9, 33, 2, 11, 40), (7,), (), (3, 3, 3)),
    6,
    (64, 64, 64, 4),
    (StepPlan(0, 3), StepPlan(0, 8), StepPlan(1, 1)),
    AGAINST.index("naive"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One rung of one spec."""

    rung: str
    ok: bool
    text: str


def contracts(loaded: LoadedSpec) -> Cell:
    """The contracts on the spec's own program and on its reduced one in half precision."""
    naive = driver.lower_spec(loaded, TARGET)
    programs = [driver.run_passes(loaded, naive, target=TARGET, verify=False).program]
    programs.append(Half(reduced_half(loaded, CASES[0][0])).program)
    found = [finding.code for program in programs for finding in check_contracts(program, driver.spans_of(loaded))]
    return Cell("contracts", not found, "ok" if not found else ", ".join(sorted(set(found))))


def half_precision(loaded: LoadedSpec, dtype: str, batch: int) -> Iterator[Cell]:
    """Eager operators against float64, GE graphs against eager operators: the largest errors."""
    cpu.register()
    half = Half(reduced_half(loaded, dtype))
    trio = Trio(half, Steps(half, batch, eagerly), Steps(half, batch, Executed))
    name = f"{dtype}, batch {batch}"
    try:
        wrong = walked(trio, WALKS, 0, lambda what, done, total: None)
    except LoweringFailed as problem:
        wrong = str(problem)
    except (Undefined, Unmodelled) as problem:
        wrong = f"undefined: {problem}"
    for rung, kind in (("eager", "float64"), ("GE graph", "GE graph")):
        errors = [error for key, error in trio.seen.errors.items() if key.endswith(kind)]
        ok = wrong is None and bool(errors)
        yield Cell(f"{rung}, {name}", ok, f"{max(errors):.1e}" if ok else f"fails: {short(str(wrong))}")


def short(text: str) -> str:
    """The first line, for a cell of a table."""
    line = text.strip().splitlines()[0].replace("|", "/")
    return line if len(line) <= SHORT else line[:SHORT] + " ..."


def witness(loaded: LoadedSpec, target: str) -> Cell:
    """The exported steps in float32, a batch of 4, against the naive program (IREE's compiler crashes on some of 1)."""
    name, rows = f"{WITNESSES[target]}, float32", len(EXAMPLE.prompts)
    checks = Checks()
    kept = Checks(checks.selected - NOT_BITWISE) if target == "mlir" else checks
    try:
        subject = Exported(Variation(loaded.spec.name, reduced_export(loaded)), 1, target=target, batch=rows)
        Session(subject, EXAMPLE, kept, Tally()).run()
    except DiagnosticError as problem:
        return Cell(name, False, problem.diagnostics[0].code)
    except CheckFailure as failure:
        return Cell(name, False, f"fails: {short(failure.finding.where)}: {short(failure.finding.message)}")
    return Cell(name, True, "ok")


def row(loaded: LoadedSpec) -> list[Cell]:
    """All rungs of a spec."""
    cells = [contracts(loaded)]
    for dtype, batch in CASES:
        cells += half_precision(loaded, dtype, batch)
    return cells + [witness(loaded, target) for target in WITNESSES]
