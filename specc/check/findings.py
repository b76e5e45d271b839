"""What a check finds, and which checks are on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from specc.invariants import INVARIANTS, Invariant, invariant
from specc.testing.draft_tree import DraftTree, render_tree
from specc.testing.invariants import InvariantViolation

PASS_INVARIANT = {
    "rewrite-negative-indices": "I6",
    "insert-tree-masks": "I3",
    "layer-major": "I18",
    "fuse-deferred-state-update": "I19",
    "select-schedule": "I16",
    "plan-buffers": "I8",
    "page-caches": "I8",
}
"""The invariant that stands for a pass: a difference between before and after that pass is reported under it."""


def invariant_of_pass(name: str) -> str:
    """The id for a difference made by this pass; passes that only simplify count as layer-major equivalence."""
    return PASS_INVARIANT.get(name, "I18")


@dataclass(frozen=True, slots=True)
class Finding:
    """A violated invariant: where it was seen (variation, step), what differs, and the tree that shows it."""

    id: str
    where: str
    message: str
    tree: DraftTree | None = None
    path: tuple[int, ...] = ()

    @property
    def invariant(self) -> Invariant:
        """The invariant's entry."""
        return invariant(self.id)

    @property
    def drawing(self) -> str:
        """The tree as text, empty where there is none."""
        return "" if self.tree is None else render_tree(self.tree, self.path)


class CheckFailure(AssertionError):
    """Raised inside an example; carries the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.id} {finding.invariant.name}: {finding.where}: {finding.message}")
        self.finding = finding


@dataclass(slots=True)
class Checks:
    """Which invariants are on, how often each was tested, and in how many examples each pass was, before and after."""

    selected: frozenset[str] = frozenset(entry.id for entry in INVARIANTS)
    counts: dict[str, int] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)

    def wants(self, *ids: str) -> bool:
        """Whether one of these is selected."""
        return not self.selected.isdisjoint(ids)

    @contextmanager
    def check(self, id: str, where: str) -> Iterator[None]:
        """Run a check of `specc.testing` for invariant `id`; what it raises becomes a CheckFailure."""
        try:
            yield
        except InvariantViolation as violation:
            if violation.id in self.selected:
                finding = Finding(violation.id, where, violation.message, violation.tree)
                raise CheckFailure(finding) from violation
        if id in self.selected:
            self.counts[id] = self.counts.get(id, 0) + 1

    def require(
        self,
        id: str,
        where: str,
        difference: str | None,
        tree: DraftTree | None = None,
        path: Sequence[int] = (),
    ) -> None:
        """Count a test of `id`; raise CheckFailure where `difference` says what is wrong, if `id` is selected."""
        if id not in self.selected:
            return
        self.counts[id] = self.counts.get(id, 0) + 1
        if difference is not None:
            raise CheckFailure(Finding(id, where, difference, tree, tuple(path)))
