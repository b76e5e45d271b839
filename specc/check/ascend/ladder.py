"""The rungs that `specc check --target ascend` climbs beside the invariants: contracts, eager operators, GE graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis
from hypothesis import HealthCheck, Phase, settings

from specc import driver
from specc.backends.ascend.contracts import check_contracts
from specc.backends.ascend.harness.evaluator import Undefined, Unmodelled
from specc.backends.ascend.harness.lower import LoweringFailed
from specc.backends.ascend.harness.wheel import importable_wheel
from specc.check.ascend.half import ROWS, TARGET, Half, reduced_half
from specc.check.ascend.steps import Executed, Steps, compiled, eagerly
from specc.check.ascend.walk import Trio, Walk, walks
from specc.check.findings import CheckFailure
from specc.check.report import Rung
from specc.diagnostics import DiagnosticError, render_text
from specc.spec import LoadedSpec

CASES = (("float16", 1), ("bfloat16", ROWS))
"""Type and batch size of the walks: every type and every size once."""
FEWEST, SHARE = 2, 20
"""Walks per case: one for every SHARE examples of the check, at least FEWEST."""
TIES = 0.25
"""Share of walks that may end where rounding tips two nearly equal logits apart between eager and graph."""

SAID = 4
"""Lines of what a device says that are passed on."""

Tell = Callable[[str, int, int], None]


def contracts(loaded: LoadedSpec, halves: Sequence[Half]) -> Rung:
    """The contracts of the NPU's operators on the spec's own program, and on the reduced ones that the walks run."""
    spans = driver.spans_of(loaded)
    naive = driver.lower_spec(loaded, TARGET)
    programs = [driver.run_passes(loaded, naive, target=TARGET, verify=False).program]
    programs += [half.program for half in halves]
    found = [finding for program in programs for finding in check_contracts(program, spans)]
    graphs = sum(len(program.graphs) for program in programs)
    text = render_text(found) if found else f"{graphs} graphs of {len(programs)} programs, nothing found"
    return Rung("1 contracts", not found, text)


def graphs_executable() -> str | None:
    """Why GE graphs can't be executed here; None if they can."""
    try:
        importable_wheel()
    except DiagnosticError as problem:
        found = problem.diagnostics[0]
        return f"{found.message}; {found.help}"
    return None


def walked(trio: Trio, count: int, seed: int, tell: Tell) -> str | None:
    """Random examples on the trio: what is wrong with the smallest failing one, None if all hold."""
    done = 0

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @hypothesis.given(walks(trio.eager.batch, trio.half.exact.vocabulary))
    def example(walk: Walk) -> None:
        nonlocal done
        done += 1
        tell("walks", min(done, count), count)
        trio.run(walk)

    try:
        example()
    except CheckFailure as failure:
        return str(failure)
    except LoweringFailed as failure:
        return f"torchair could not lower a step: {failure}"
    except (Undefined, Unmodelled) as failure:
        return f"the GE graph: {failure}"
    except RuntimeError as failure:
        if trio.half.device == "cpu":
            raise
        # What the device's operators, torchair or CANN refuse is what a run on hardware is there to find out.
        return f"the device raised {type(failure).__name__}: {_lines(failure)}"
    return None


def _lines(failure: BaseException) -> str:
    """The first lines that say something."""
    return " ".join([line.strip() for line in str(failure).splitlines() if line.strip()][:SAID])


def _executed(trio: Trio) -> str:
    """How many GE graphs ran how often."""
    made = [one for one in ([] if trio.graph is None else trio.graph.executed().values()) if one.lowered is not None]
    recompiles = sum(one.lowered.recompiles for one in made if one.lowered is not None)
    return f"{len(made)} graphs, {sum(one.runs for one in made)} runs, {recompiles} recompiles"


def _recompiled(trio: Trio) -> bool:
    made = [] if trio.graph is None else list(trio.graph.executed().values())
    return any(one.lowered is not None and one.lowered.recompiles for one in made)


def _errors(trio: Trio, kind: str) -> str:
    """The largest error of a kind in units of 1e-3."""
    found = {name.split(",")[0]: error for name, error in trio.seen.errors.items() if name.endswith(kind)}
    return ", ".join(f"{name} {error:.1e}" for name, error in found.items())


def climb(
    loaded: LoadedSpec, max_examples: int, seed: int = 0, *, device: str = "cpu", tell: Tell | None = None
) -> list[Rung]:
    """All rungs. On another device than the CPU, eager operators and compiled graphs are the device's own."""
    told = tell or (lambda what, done, total: None)
    halves = [Half(reduced_half(loaded, dtype), seed, device) for dtype, _ in CASES]
    rungs = [contracts(loaded, halves)]
    missing = None if device != "cpu" else graphs_executable()
    eager, graph = [], []
    for half, (dtype, batch) in zip(halves, CASES, strict=True):
        runner = Executed if device == "cpu" else compiled
        trio = Trio(half, Steps(half, batch, eagerly), None if missing else Steps(half, batch, runner))
        told(f"{dtype}, batch {batch}", 0, 0)
        wrong = walked(trio, max(FEWEST, max_examples // SHARE), seed, told)
        where = f"{dtype}, batch {batch}: "
        ties = trio.seen.ties > max(1, TIES * trio.seen.walks)
        if wrong is None and ties:
            wrong = f"{trio.seen.ties} of {trio.seen.walks} walks ended at a tie, more than chance"
        if wrong is None and _recompiled(trio):
            wrong = f"a graph was compiled again: {_executed(trio)}"
        shown = f"{trio.seen.steps} rows' steps, {trio.seen.accepted} drafted tokens accepted; from float64: "
        eager.append((wrong is None, where + (wrong or shown + _errors(trio, "float64"))))
        graph.append((wrong is None, where + (wrong or f"{_executed(trio)}; from eager: {_errors(trio, 'GE graph')}")))
    rungs.append(_joined("2 eager operators", eager))
    if missing is None:
        rungs.append(_joined("3 GE graph by torchair" if device == "cpu" else "3 compiled graph", graph))
    else:
        rungs.append(Rung("3 GE graph by torchair", True, missing, ran=False))
    return rungs


def _joined(name: str, found: Sequence[tuple[bool, str]]) -> Rung:
    return Rung(name, all(ok for ok, _ in found), "\n      ".join(text for _, text in found))
