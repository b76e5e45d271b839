"""Which rungs of the Ascend ladder a spec climbs, in its small geometry: the cells of specs, rungs, types and batches.

Every rung goes through the same random walks (specc/check/ascend/walk.py) and is held against the float64 reference;
a GE graph is held against the eager operators as well, from which it should not differ at all.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from specc import driver
from specc.backends.ascend import cpu
from specc.backends.ascend.contracts import check_contracts
from specc.backends.ascend.harness import counts
from specc.backends.ascend.harness.evaluator import Undefined, Unmodelled
from specc.backends.ascend.harness.lower import LoweringFailed
from specc.backends.ascend.harness.wheel import importable_wheel
from specc.backends.export.packages import check_installed
from specc.check.ascend.bounds import half_bound, same_rounding_bound
from specc.check.ascend.half import TARGET, Half, reduced_half
from specc.check.ascend.ladder import walked
from specc.check.ascend.steps import Executed, Steps, eagerly
from specc.check.ascend.walk import Trio
from specc.check.ascend.witness import Witness, witness_half
from specc.diagnostics import DiagnosticError
from specc.spec import LoadedSpec

DTYPES = ("float32", "float16", "bfloat16")
BATCHES = (1, 4)
CONTRACTS, REFERENCE, EAGER, GRAPH = "contracts", "reference", "eager npu", "GE executed"
WITNESSES = {"ONNX Runtime": "onnx", "IREE": "mlir"}
RUNGS = (CONTRACTS, REFERENCE, EAGER, GRAPH, *WITNESSES)
WALKS = 3
SHORT = 160
FAILURES = (LoweringFailed, Undefined, Unmodelled)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cell stands; contracts have no type and no batch."""

    spec: str
    rung: str
    dtype: str = ""
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """One rung of one spec. `outcome`: equal (bit for bit what the eager operators give), within (the bound), ok (of
    contracts), refused (can't run, `why` says it) or fails. `error`: the largest, of logits, cached rows and states, as
    a share of the largest value; `source`: digest of the module that was run; `commit`: of the tree that ran it."""

    place: Place
    outcome: str
    error: float | None = None
    bound: float | None = None
    why: str = ""
    graphs: int = 0
    runs: int = 0
    recompiles: int = 0
    source: str = ""
    seconds: float = 0.0
    commit: str = ""

    @property
    def ok(self) -> bool:
        """Whether the rung was climbed, or is known not to exist here."""
        return self.outcome != "fails"

    def as_json(self) -> dict[str, Any]:
        """Flat."""
        made = asdict(self)
        return {**made.pop("place"), **made}


def places(names: Sequence[str], rungs: Sequence[str], dtypes: Sequence[str], batches: Sequence[int]) -> list[Place]:
    """The product, in the order of a table."""
    found = []
    for name in names:
        for rung in rungs:
            if rung == CONTRACTS:
                found.append(Place(name, rung))
                continue
            found += [Place(name, rung, dtype, batch) for dtype in dtypes for batch in batches]
    return found


def check_rungs(rungs: Sequence[str]) -> None:
    """Raises DiagnosticError (SPC205, SPC426) where one of the rungs needs what is not installed here."""
    if GRAPH in rungs:
        importable_wheel()
    for name, target in WITNESSES.items():
        if name in rungs:
            check_installed(target)


def thinned(names: Sequence[str], rungs: Sequence[str], dtypes: Sequence[str], batches: Sequence[int]) -> list[Place]:
    """One cell of every spec and rung; which type and batch goes round, so that all pairs occur."""
    pairs = [(dtype, batch) for batch in batches for dtype in dtypes]
    found = []
    for row, name in enumerate(names):
        for shift, rung in enumerate(rungs):
            # Rungs of one spec share the pair, so that they can be compared; specs differ.
            pair = pairs[(row + (shift if rung in WITNESSES else 0)) % len(pairs)]
            found.append(Place(name, rung) if rung == CONTRACTS else Place(name, rung, *pair))
    return found


def digest(half: Half) -> str:
    """Of the module's text: cells of equal ones need no second run."""
    return hashlib.sha256(half.source.encode()).hexdigest()[:16]


def half_of(loaded: LoadedSpec, place: Place) -> Half:
    """What a cell runs. Raises DiagnosticError where the target does not have it."""
    if place.rung in (EAGER, GRAPH):
        return Half(reduced_half(loaded, place.dtype))
    return witness_half(loaded, place.dtype, WITNESSES.get(place.rung, REFERENCE))


def contracts(loaded: LoadedSpec, place: Place) -> Cell:
    """The contracts on the spec's own program and on its reduced one in half precision."""
    naive = driver.lower_spec(loaded, TARGET)
    programs = [driver.run_passes(loaded, naive, target=TARGET, verify=False).program]
    programs.append(Half(reduced_half(loaded, "float16")).program)
    found = [finding.code for program in programs for finding in check_contracts(program, driver.spans_of(loaded))]
    return Cell(place, "fails" if found else "ok", why=", ".join(sorted(set(found))))


def trio_of(half: Half, place: Place) -> Trio:
    """The machines of a cell."""
    if place.rung not in (EAGER, GRAPH):
        return Trio(half, Witness(half, place.batch), None)
    cpu.register()
    graph = Steps(half, place.batch, Executed) if place.rung == GRAPH else None
    return Trio(half, Steps(half, place.batch, eagerly), graph)


def short(text: str) -> str:
    """The first line, for a cell of a table."""
    line = text.strip().splitlines()[0].replace("|", "/")
    return line if len(line) <= SHORT else line[:SHORT] + " ..."


def compared(place: Place, half: Half) -> list[Cell]:
    """Walks of one cell; of GE graphs, the eager operators' cell besides. What a runtime can't do is `refused`."""
    trio = trio_of(half, place)
    try:
        wrong = walked(trio, WALKS, 0, lambda what, done, total: None)
    except FAILURES as problem:
        wrong = f"{type(problem).__name__}: {problem}"
    except DiagnosticError as problem:
        found = problem.diagnostics[0]
        return [Cell(place, "refused", why=short(f"{found.code}: {found.message}"))]
    except RuntimeError as problem:  # what onnxruntime and IREE can't load or compile
        return [Cell(place, "refused", why=short(str(problem)))]
    if place.rung != GRAPH:
        return [judged(place, trio, wrong)]
    # A fault of either fails both: one of them alone says which.
    return [judged(place, trio, wrong), judged(replace(place, rung=EAGER), trio, wrong)]


def judged(place: Place, trio: Trio, wrong: str | None) -> Cell:
    """What the walks of a trio have shown of one of its machines."""
    geometry, dtype, graph = trio.half.loaded.spec.target.geometry, trio.half.dtype, place.rung == GRAPH
    kept, spelled = trio.half.state_dtype, not trio.eager.fused
    bound = same_rounding_bound(geometry, dtype, kept) if graph else half_bound(geometry, dtype, spelled, kept)
    kind = "GE graph" if graph else "float64"
    error = max((value for name, value in trio.seen.errors.items() if name.endswith(kind)), default=0.0)
    graphs, runs, again = graph_numbers(trio) if graph else (0, 0, 0)
    if wrong is None and again:
        wrong = f"{again} recompiles or copies of whole tensors"
    if wrong is not None:
        return Cell(place, "fails", error, bound, short(wrong), graphs, runs, again)
    left = trio.eager.left if isinstance(trio.eager, Witness) else {}
    why = "; ".join(f"{step} in PyTorch: {short(reason)}" for step, reason in left.items())
    return Cell(place, "equal" if graph and error == 0.0 else "within", error, bound, why, graphs, runs, again)


def graph_numbers(trio: Trio) -> tuple[int, int, int]:
    """Graphs, their runs, how often one was compiled again; copies of whole tensors count as that, too."""
    made = [] if trio.graph is None else [one for one in trio.graph.executed().values() if one.lowered is not None]
    again = sum(one.lowered.recompiles for one in made if one.lowered is not None)
    moved = sum(len(counts.copies(one.lowered.graph)) for one in made if one.lowered is not None)
    return len(made), sum(one.runs for one in made), again + moved


def cells(loaded: LoadedSpec, wanted: Sequence[Place], known: Sequence[Cell] = ()) -> Iterator[Cell]:
    """The cells of these places of one spec as they come; those of `known` whose module is the same are not run again.

    GE graphs come first, as their walks have run the eager operators, too.
    """
    before = {(cell.place, cell.source): cell for cell in known if cell.ok and cell.source}
    left = dict.fromkeys(sorted(wanted, key=lambda one: one.rung != GRAPH))
    while left:
        for cell in fresh(loaded, next(iter(left)), before):
            if cell.place in left:
                del left[cell.place]
                yield cell


def fresh(loaded: LoadedSpec, place: Place, before: Mapping[tuple[Place, str], Cell]) -> list[Cell]:
    """The cell of a place, with what else its run has shown; as it was before where the module has not changed."""
    began = time.perf_counter()
    if place.rung == CONTRACTS:
        return [contracts(loaded, place)]
    try:
        half = half_of(loaded, place)
        source = digest(half)
    except DiagnosticError as problem:
        said = problem.diagnostics[0]
        return [Cell(place, "refused", why=short(f"{said.code}: {said.message}"))]
    if (place, source) in before:
        return [before[(place, source)]]
    found = compared(place, half)
    seconds = round(time.perf_counter() - began, 1)
    return [replace(cell, source=source, seconds=seconds) for cell in found]
