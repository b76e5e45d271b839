"""Whether the examples count: what their steps exercised, and the shares below which a check proves nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from specc.check.subject import Subject
from specc.testing.draft_tree import DraftTree
from specc.testing.oracles import Acceptance
from specc.testing.planted import Exercise

SHARE_TWO, SHARE_BRANCH, SHARE_PADDING = 0.30, 0.15, 0.10


@dataclass(slots=True)
class Tally:
    """Steps of all variations, of those that can accept two nodes, and of trees."""

    everything: Exercise = field(default_factory=Exercise)
    deep: Exercise = field(default_factory=Exercise)
    trees: Exercise = field(default_factory=Exercise)
    examples: int = 0

    def step(self, subject: Subject, tree: DraftTree, outcome: Acceptance) -> None:
        """Count one live row of one step."""
        self.everything.record(tree, outcome)
        if subject.spec.depth >= 2:
            self.deep.record(tree, outcome)
        if not subject.spec.is_chain:
            self.trees.record(tree, outcome)

    def idle(self, rows: int) -> None:
        """Count rows that were finished or had no request."""
        for _ in range(rows):
            self.everything.record_idle()

    def shortfalls(self) -> list[str]:
        """What was exercised too rarely (design 03, "Make the examples count")."""
        missing = self.everything.shortfalls(0.0, 0.0, SHARE_PADDING)
        if self.deep.steps:
            missing += self.deep.shortfalls(SHARE_TWO, 0.0, 0.0)
        if self.trees.steps:
            missing += self.trees.shortfalls(0.0, SHARE_BRANCH, 0.0)
        return missing

    def as_json(self) -> dict[str, dict[str, int]]:
        """The counts."""

        def plain(counts: Exercise) -> dict[str, int]:
            names = ("steps", "accept_two", "accept_branch", "accept_none", "padding")
            return {name: getattr(counts, name) for name in names}

        return {"all": plain(self.everything), "deep": plain(self.deep), "trees": plain(self.trees)}
