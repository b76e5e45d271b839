"""What the paper reports (SpecLA, arXiv:2607.16673; one H100, GDN-1.3B, batch 1), to stand beside measured numbers.

Ranges are over the paper's shapes of tree, which are not given figure by figure. The 9B figure is the paper's own
projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reported:
    """A reported factor, or the range of one; `what` says over what."""

    what: str
    low: float
    high: float

    @property
    def text(self) -> str:
        """As a table shows it."""
        return f"{self.low:.2f}x" if self.low == self.high else f"{self.low:.2f}x to {self.high:.2f}x"


HYBRID = Reported("hybrid verify over root-to-leaf replay", 1.80, 7.11)
FACTORS = Reported("state recovery from factors over replaying the tokens", 2.74, 4.28)
DEFERRED = Reported("deferred update over a separate commit", 1.15, 1.44)
END_TO_END: Mapping[str, Reported] = {
    "gsm8k": Reported("decoding GSM8K over plain decoding", 1.70, 1.70),
    "mixed": Reported("decoding mixed prompts over plain decoding", 1.42, 1.42),
    "humaneval": Reported("decoding HumanEval over plain decoding", 1.06, 1.06),
}
BREAK_EVEN = 0.7
"""About the acceptance probability above which speculation pays."""
ORACLE = Reported("every draft right, 1.3B", 3.71, 3.71)
ORACLE_9B = Reported("every draft right, projected to 9B", 4.61, 4.61)
CHAIN_ACCEPTANCE, TREE_ACCEPTANCE = 3.47, 5.00
"""Acceptance lengths, second-hand: a chain of 8, and trees of at most 16 nodes."""
