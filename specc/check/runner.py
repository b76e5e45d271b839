"""The property-based run: hypothesis draws examples, shrinks what fails, and the examples must count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import hypothesis
from hypothesis import HealthCheck, Phase, settings

from specc.check import by_spec
from specc.check.example import USUAL, Example, examples, parse_token
from specc.check.findings import CheckFailure, Checks, Finding
from specc.check.report import Counterexample, Report
from specc.check.session import Session
from specc.check.subject import REFERENCE
from specc.check.tally import Tally
from specc.check.where import runnable
from specc.check.workbench import Workbench, enough_variations
from specc.diagnostics import DiagnosticError, error
from specc.invariants import INVARIANTS, Applies, invariant
from specc.spec import LoadedSpec, Spec

SHRINK_SECONDS = 20.0
FEWEST_TO_JUDGE = 60
"""With fewer examples than this, shares of steps are not judged."""
FEWEST_PER_PASS = 20
"""Every pass of the compiled variations is validated in at least this many examples (fewer in short runs)."""

MOST_TIES, SHARE_TIES = 1, 0.02
"""Examples of a float32 module that may end at a tie: this many, or this share of all."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def selected_ids(names: Iterable[str] | None) -> frozenset[str]:
    """Ids of these names or ids; None: all. Raises DiagnosticError (SPC502) for an unknown one."""
    if names is None:
        return frozenset(entry.id for entry in INVARIANTS)
    found = set()
    for name in names:
        try:
            found.add(invariant(name).id)
        except KeyError:
            known = ", ".join(entry.name for entry in INVARIANTS)
            message = f"there is no invariant `{name}`"
            raise DiagnosticError([error("SPC502", message, help=f"invariants: {known}")]) from None
    return frozenset(found)


def features_of(spec: Spec) -> frozenset[Applies]:
    """What a spec's target has that invariants speak of."""
    kinds = {layer.mixer for layer in spec.target.geometry.layers}
    found = {"attention": Applies.KV, "delta": Applies.RECURRENT}
    paged = {Applies.PAGED} if spec.runtime.kv_layout == "paged" and "attention" in kinds else set[Applies]()
    return frozenset(found[kind] for kind in kinds) | paged


@dataclass
class Run:
    """One run over a workbench."""

    bench: Workbench
    checks: Checks
    max_examples: int
    shrink: bool
    progress: Progress
    tally: Tally = field(default_factory=Tally)
    failures: dict[Example, Finding] = field(default_factory=dict)
    found_at: float = 0.0
    ties: set[Example] = field(default_factory=set)

    def one(self, example: Example) -> Finding | None:
        """Run one example; remember what it finds. Past the time for shrinking only known failures fail."""
        if example in self.failures:
            return self.failures[example]
        if example in self.ties or (self.failures and time.monotonic() - self.found_at > SHRINK_SECONDS):
            return None
        if not self.failures:
            self.tally.examples += 1
            self.progress("examples", self.tally.examples, self.max_examples)
        tally = Tally() if self.failures else self.tally
        try:
            Session(self.bench.subject(example.variation), example, self.checks, tally).run()
        except CheckFailure as failure:
            if self._tied(example):
                self.ties.add(example)
                return None
            if not self.failures:
                self.found_at = time.monotonic()
            self.failures[example] = failure.finding
            return failure.finding
        return None

    def _tied(self, example: Example) -> bool:
        """Whether a failure of a float32 module is gone with other weights (see `single`). Float64 has no ties."""
        if not self.bench.subject(example.variation).single:
            return False
        for seed in (self.bench.seed + 1, self.bench.seed + 2):
            subject = self.bench.reseeded(example.variation, seed)
            try:
                Session(subject, example, Checks(self.checks.selected), Tally()).run()
            except CheckFailure:
                return False
        return True

    def shortfalls(self) -> list[str]:
        """Too many examples that ended at a tie, which proved nothing."""
        most = max(MOST_TIES, int(SHARE_TIES * self.tally.examples))
        text = f"examples that ended at a tie of float32: {len(self.ties)}, at most {most} can be chance"
        return [text] if len(self.ties) > most else []

    def search(self, numbers: Sequence[int], against: Sequence[str], count: int) -> Counterexample | None:
        """Draw `count` examples until one fails; the smallest failing one found in time."""
        phases = [Phase.generate, Phase.shrink] if self.shrink else [Phase.generate]

        @hypothesis.seed(self.bench.seed + len(against))
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        @hypothesis.given(examples(numbers, against, self.bench.vocabulary))
        def drawn(example: Example) -> None:
            finding = self.one(example)
            if finding is not None:
                raise CheckFailure(finding)  # always here: hypothesis tells failures apart by where they come from

        try:
            drawn()
        except CheckFailure as failure:
            example = self._smallest(failure.finding)
            return Counterexample(failure.finding, example, self.bench.variations[example.variation].name)
        return None

    def validate_passes(self, wanted: int) -> Counterexample | None:
        """More examples for every pass of the compiled variations that fewer than `wanted` have compared."""
        users: dict[str, list[int]] = {}
        for number, subject in self.bench.subjects.items():
            for stage in subject.stages[1:]:
                users.setdefault(stage.name, []).append(number)
        for name, numbers in users.items():
            missing = wanted - self.checks.passes.get(name, 0)
            found = self.search(sorted(numbers), ["stages"], missing) if missing > 0 else None
            if found is not None:
                return found
        return None

    def validate_twins(self, wanted: int) -> Counterexample | None:
        """More examples where fewer than `wanted` tests compared twins: rows alone, deferred and immediate, chain as
        tree."""
        subjects = self.bench.subjects
        users = {
            "I13": list(subjects),
            "I19": [number for number, subject in subjects.items() if subject.deferred_twin is not None],
            "I12": [number for number, subject in subjects.items() if subject.chain_twin is not None],
        }
        for id, numbers in users.items():
            if self.checks.wants(id) and numbers and self.checks.counts.get(id, 0) < wanted:
                found = self.search(sorted(numbers), ["twins"], wanted)
                if found is not None:
                    return found
        return None

    def _smallest(self, finding: Finding) -> Example:
        same = [example for example, other in self.failures.items() if other is finding]
        return same[-1]


def run(
    loaded: LoadedSpec,
    max_examples: int = 200,
    invariants: Iterable[str] | None = None,
    seed: int = 0,
    *,
    shrink: bool = True,
    judge: bool | None = None,
    progress: Progress | None = None,
    bench: Workbench | None = None,
    against: Sequence[str] = USUAL,
    once: bool = True,
    target: str = REFERENCE,
    device: str = "cpu",
) -> Report:
    """Check a spec: passes, invariants, the generated module. Stops at the first counterexample.

    `invariants`: names or ids, None for all. `judge`: fail where the examples exercise too little (default: if there
    are at least 60, and all invariants are on). `shrink` False: report the first failing example as it is. `against`:
    what examples compare the module with (names of `example.AGAINST`). `once`: also what needs no example (laws,
    fingerprints, mutated programs). `bench` holds what is compiled already. `target`, `device`: whose module is
    checked, and where it runs. Raises DiagnosticError for what can't be compiled or run, SpecError for a spec whose
    reduction is not legal.
    """
    runnable(target, device)
    started = time.monotonic()
    checks = Checks(selected_ids(invariants))
    recurrent = loaded.spec.target.geometry.recurrent
    bench = bench or Workbench.of(loaded, seed, enough_variations(max_examples, recurrent), target, device)
    tell = progress or (lambda what, done, total: None)
    bench.on_compile = lambda name: tell(f"compile: {name}", 0, 0)
    run_ = Run(bench, checks, max_examples, shrink, tell)
    notes: dict[str, str] = {}
    counterexample = by_spec.static_checks(bench, checks, notes) if once else None
    if counterexample is None:
        counterexample = run_.search(range(len(bench.variations)), against, max_examples)
    if counterexample is None and "stages" in against:
        counterexample = run_.validate_passes(min(FEWEST_PER_PASS, max_examples // 10))
    if counterexample is None and "twins" in against:
        counterexample = run_.validate_twins(max(2, min(FEWEST_PER_PASS, max_examples // 10)))
    if counterexample is None and once:
        tell("laws, mutated programs", 0, 0)
        counterexample = by_spec.expensive_checks(bench, checks, notes, max_examples)
    shortfalls: list[str] = []
    everything = invariants is None
    if counterexample is None and (judge if judge is not None else everything and max_examples >= FEWEST_TO_JUDGE):
        shortfalls = run_.tally.shortfalls()
    shortfalls += run_.shortfalls()
    return Report(
        name=loaded.spec.name,
        examples=run_.tally.examples,
        seconds=time.monotonic() - started,
        seed=seed,
        variations=tuple(bench.compiled),
        counts=dict(checks.counts),
        passes=dict(checks.passes),
        exercise=run_.tally.as_json(),
        shortfalls=tuple(shortfalls),
        counterexample=counterexample,
        notes=notes,
        selected=checks.selected,
        features=features_of(loaded.spec),
        target=bench.target,
        device=bench.device,
        ties=len(run_.ties),
    )


def replay(
    loaded: LoadedSpec,
    token: str,
    invariants: Iterable[str] | None = None,
    seed: int = 0,
    *,
    target: str = REFERENCE,
    device: str = "cpu",
) -> Report:
    """Run one example again. Raises DiagnosticError (SPC501) for a token that is none."""
    runnable(target, device)
    started, example = time.monotonic(), parse_token(token)
    checks, tally = Checks(selected_ids(invariants)), Tally(examples=1)
    bench = Workbench.of(loaded, seed, target=target, device=device)
    if example.variation >= len(bench.variations):
        message = "the replay token names a variation that this spec does not have"
        raise DiagnosticError([error("SPC501", message, help="give the spec and the --seed that printed it")])
    found = None
    try:
        Session(bench.subject(example.variation), example, checks, tally).run()
    except CheckFailure as failure:
        found = Counterexample(failure.finding, example, bench.variations[example.variation].name)
    return Report(
        name=loaded.spec.name,
        examples=1,
        seconds=time.monotonic() - started,
        seed=seed,
        variations=tuple(bench.compiled),
        counts=dict(checks.counts),
        passes=dict(checks.passes),
        exercise=tally.as_json(),
        counterexample=found,
        selected=checks.selected,
        features=features_of(loaded.spec),
        target=target,
        device=device,
    )
