"""What a run of `specc check` found, as text and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specc.check.example import Example
from specc.check.findings import Finding
from specc.invariants import INVARIANTS, Applies, Invariant

NOT_TESTED = "not tested"


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A finding, and the smallest example that shows it (None: it does not depend on an example)."""

    finding: Finding
    example: Example | None
    variation: str = ""

    def command(self, spec: str, overrides: Sequence[str] = (), seed: int = 0, where: Sequence[str] = ()) -> str:
        """The command that shows it again; `where`: its options for target and device."""
        words = ["specc check", shlex.quote(spec), *(f"--set {shlex.quote(text)}" for text in overrides), *where]
        words += [f"--seed {seed}"] if seed else []
        if self.example is None:
            return " ".join([*words, f"--invariant {self.finding.invariant.name}"])
        return " ".join([*words, f"--replay {self.example.token}"])


@dataclass(frozen=True, slots=True)
class Rung:
    """What one rung of a target's test ladder found. `ran` False: it was skipped, and `text` says what is missing."""

    name: str
    ok: bool
    text: str
    ran: bool = True

    def line(self) -> str:
        """For a person."""
        state = ("ok" if self.ok else "FAILED") if self.ran else "skipped"
        return f"  {self.name}, {state}: {self.text}"


@dataclass(frozen=True, slots=True)
class Report:
    """`counts`: tests per invariant id; `passes`: examples that compared before and after a pass; `notes`: why an
    invariant was not tested."""

    name: str
    examples: int
    seconds: float
    seed: int
    variations: tuple[str, ...]
    counts: Mapping[str, int]
    passes: Mapping[str, int]
    exercise: Mapping[str, Mapping[str, int]]
    shortfalls: tuple[str, ...] = ()
    counterexample: Counterexample | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    selected: frozenset[str] = frozenset()
    features: frozenset[Applies] = frozenset({Applies.KV})
    target: str = "reference"
    device: str = "cpu"
    ties: int = 0
    ladder: tuple[Rung, ...] = ()

    @property
    def where(self) -> list[str]:
        """The options for target and device, where they are not the usual ones."""
        words = [f"--target {self.target}"] if self.target != "reference" else []
        return words + ([f"--device {self.device}"] if self.device != "cpu" else [])

    @property
    def ok(self) -> bool:
        """Nothing found, and the examples count."""
        return self.counterexample is None and not self.shortfalls and all(rung.ok for rung in self.ladder)

    def status(self, entry: Invariant) -> str:
        """`n tests`, or why there are none."""
        count = self.counts.get(entry.id, 0)
        if count:
            return f"{count} test{'s' if count > 1 else ''}"
        if entry.id in self.notes:
            return self.notes[entry.id]
        if self.features.isdisjoint(entry.applies_to):
            what = "/".join(sorted(kind.value for kind in entry.applies_to))
            return f"not applicable: {what} targets only"
        return NOT_TESTED if entry.id in self.selected else "not selected"

    def as_json(self, spec: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
        """The report as plain values; keys are only ever added."""
        found = self.counterexample
        return {
            "spec": self.name,
            "target": self.target,
            "device": self.device,
            "ties": self.ties,
            "ok": self.ok,
            "examples": self.examples,
            "seconds": round(self.seconds, 2),
            "seed": self.seed,
            "variations": list(self.variations),
            "invariants": {
                entry.id: {
                    "name": entry.name,
                    "equality": entry.equality.value,
                    "tests": self.counts.get(entry.id, 0),
                    "status": self.status(entry),
                }
                for entry in INVARIANTS
            },
            "passes": dict(self.passes),
            "exercise": {name: dict(counts) for name, counts in self.exercise.items()},
            "shortfalls": list(self.shortfalls),
            "ladder": [asdict(rung) for rung in self.ladder],
            "counterexample": None
            if found is None
            else _found(found, found.command(spec, overrides, self.seed, self.where)),
        }

    def as_text(self, spec: str, overrides: Sequence[str] = ()) -> str:
        """What is printed at the end."""
        lines = [
            f"{self.name}: {self.examples} examples over {len(self.variations)} compiled variations, seed {self.seed}"
        ]
        lines += [
            f"  {entry.id:>3} {entry.name:<18} {entry.equality.value:<12} {self.status(entry)}" for entry in INVARIANTS
        ]
        if self.ties:
            lines.append(f"  examples that ended at a tie of float32, which prove nothing: {self.ties}")
        if self.passes:
            shown = ", ".join(f"{name} {count}" for name, count in self.passes.items())
            lines.append(f"  validated by execution, examples: {shown}")
        lines += [
            f"  exercised, {name}: {_shares(counts)}" for name, counts in self.exercise.items() if counts["steps"]
        ]
        if self.counterexample is not None:
            command = self.counterexample.command(spec, overrides, self.seed, self.where)
            lines += ["", *_counterexample(self.counterexample, command)]
        lines += [f"the examples don't count: {text}" for text in self.shortfalls]
        lines += [rung.line() for rung in self.ladder]
        lines.append("all hold" if self.ok else "FAILED")
        return "\n".join(lines)


def _shares(counts: Mapping[str, int]) -> str:
    steps = counts["steps"]
    words = {"accept_two": "accept >= 2", "accept_branch": "a branch", "accept_none": "nothing", "padding": "padding"}
    words |= {"waiting": "factors wait", "full": "the window is full"}
    shown = [f"{text} {counts[name] / steps:.0%}" for name, text in words.items() if name in counts]
    return f"{steps} steps, " + ", ".join(shown)


def _found(found: Counterexample, command: str) -> dict[str, Any]:
    entry = found.finding.invariant
    return {
        "id": entry.id,
        "name": entry.name,
        "statement": entry.statement,
        "variation": found.variation,
        "where": found.finding.where,
        "message": found.finding.message,
        "tree": found.finding.drawing,
        "token": None if found.example is None else found.example.token,
        "command": command,
    }


def _counterexample(found: Counterexample, command: str) -> list[str]:
    entry = found.finding.invariant
    lines = [f"{entry.id} {entry.name} does not hold: {entry.statement} ({entry.equality.value})"]
    if found.variation:
        lines.append(f"  variation: {found.variation}")
    lines += [f"  where: {found.finding.where}", f"  {found.finding.message}"]
    if found.example is not None:
        prompts = "; ".join(" ".join(map(str, prompt)) or "(no request)" for prompt in found.example.prompts)
        lines.append(f"  prompts: {prompts}")
    lines += [f"    {line}" for line in found.finding.drawing.splitlines()]
    return [*lines, "replay it with", f"  {command}"]
