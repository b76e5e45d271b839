"""Whether the examples count: what their steps exercised, and the shares below which a check proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specc.check.subject import Subject
from specc.testing.draft_tree import DraftTree
from specc.testing.oracles import Acceptance
from specc.testing.planted import Exercise

SHARE_TWO, SHARE_BRANCH, SHARE_PADDING = 0.30, 0.15, 0.10
SHARE_WAITING, SHARE_FULL = 0.20, 0.05
FEWEST_WINDOWED = 40
"""With fewer steps of windowed deferral than this, their shares are not judged."""


@dataclass(slots=True)
class Windows:
    """Live rows of verifies with windowed deferral: how many, with factors that wait on, with a window that is full."""

    steps: int = 0
    waiting: int = 0
    full: int = 0

    def shortfalls(self) -> list[str]:
        """What was exercised too rarely."""
        wanted = (("waiting factors", self.waiting, SHARE_WAITING), ("a full window", self.full, SHARE_FULL))
        return [
            f"windowed steps with {name}: {count} of {self.steps}, at least {share:.0%} needed"
            for name, count, share in wanted
            if self.steps >= FEWEST_WINDOWED and count < share * self.steps
        ]


@dataclass(slots=True)
class Tally:
    """Steps of all variations, of those that can accept two nodes, of trees, and of windowed deferral."""

    everything: Exercise = field(default_factory=Exercise)
    deep: Exercise = field(default_factory=Exercise)
    trees: Exercise = field(default_factory=Exercise)
    windows: Windows = field(default_factory=Windows)
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

    def pending(self, counts: Sequence[int], window: int) -> None:
        """Count the live rows of a verify by their pending factors, where several steps' may wait."""
        for count in counts:
            self.windows.steps += 1
            self.windows.waiting += 0 < count < window
            self.windows.full += count >= window

    def shortfalls(self) -> list[str]:
        """What was exercised too rarely (design 03, "Make the examples count")."""
        missing = self.everything.shortfalls(0.0, 0.0, SHARE_PADDING)
        if self.deep.steps:
            missing += self.deep.shortfalls(SHARE_TWO, 0.0, 0.0)
        if self.trees.steps:
            missing += self.trees.shortfalls(0.0, SHARE_BRANCH, 0.0)
        return missing + self.windows.shortfalls()

    def as_json(self) -> dict[str, dict[str, int]]:
        """The counts."""

        def plain(counts: Exercise) -> dict[str, int]:
            names = ("steps", "accept_two", "accept_branch", "accept_none", "padding")
            return {name: getattr(counts, name) for name in names}

        kinds = {"all": plain(self.everything), "deep": plain(self.deep), "trees": plain(self.trees)}
        windows = {name: getattr(self.windows, name) for name in ("steps", "waiting", "full")}
        return kinds | ({"windowed": windows} if self.windows.steps else {})
