"""The soak's comparison: at every position, the speculative token against the one that plain decoding picks there.

Plain decoding goes along the speculative text (teacher-forced): it picks every token after the same tokens, so that all
positions of a long run are tested, those after an allowed difference too. Where none differs the texts are equal.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specc.bench.soak_plain import PlainText

SYNCHRONISES = "called a synchronizing"
"""In torch's warning of an operation that waits for the device."""
KEPT = 200
"""Differences that are written out; all are counted."""


@dataclass(frozen=True, slots=True)
class Parting:
    """A position at which speculative text took another token than plain decoding.

    `margin`: plain's two best logits there; `gap`: plain's token over the other.
    """

    number: int
    position: int
    plain: int
    speculative: int
    margin: float
    gap: float


@dataclass(slots=True)
class Tally:
    """What the comparison has seen."""

    tokens: int = 0
    steps: int = 0
    row_steps: int = 0
    syncs: int = 0
    most_syncs: int = 0
    emitted: int = 0
    seconds: float = 0.0
    longest_margin: float = 0.0
    longest_gap: float = 0.0
    count: int = 0
    above: int = 0
    partings: list[Parting] = field(default_factory=list)

    def add(self, found: Parting, bound: float) -> None:
        """Count a difference; `bound` is the numerical one, fixed beforehand."""
        self.count += 1
        self.above += found.gap > bound
        self.longest_margin, self.longest_gap = max(self.longest_margin, found.margin), max(self.longest_gap, found.gap)
        if len(self.partings) < KEPT or found.gap > bound:
            self.partings.append(found)

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_row_step": round(self.emitted / max(self.row_steps, 1), 3),
            "differences": self.count,
            "differences_per_10k": round(self.count / max(self.tokens, 1) * 1e4, 3),
            "differences_above_bound": self.above,
            "largest_margin": self.longest_margin,
            "largest_gap": self.longest_gap,
            "most_synchronisations_of_a_step": self.most_syncs,
            "synchronisations": self.syncs,
            "decode_seconds": round(self.seconds, 2),
            "tokens_per_second": round(self.emitted / self.seconds, 1) if self.seconds else None,
            "examples": [
                {name: getattr(item, name) for name in Parting.__dataclass_fields__} for item in self.partings[:KEPT]
            ],
        }


def speculative_texts(
    decoder: Any, prompts: Sequence[Sequence[int]], numbers: Sequence[int], count: int, tally: Tally
) -> list[list[int]]:
    """Texts of `count` tokens by the module's own `step`, whose synchronisations are counted."""
    first = decoder.start([list(prompt) for prompt in prompts], count, requests=list(numbers))
    texts = [[token] for token in first]
    began = time.perf_counter()
    while any(len(text) < count for text in texts):
        emitted = counted_step(decoder, tally)
        if not any(emitted):
            break  # what is missing counts as a difference
        for text, new in zip(texts, emitted, strict=True):
            tally.row_steps += bool(new)
            tally.emitted += len(new)
            text.extend(new)
    tally.seconds += time.perf_counter() - began
    return texts


def counted_step(decoder: Any, tally: Tally) -> list[list[int]]:
    """One step. Whatever waits for the device warns, which is counted: the read-back is the only thing that may."""
    on_device = torch.cuda.is_available()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if on_device:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            emitted: list[list[int]] = decoder.step().emitted
        finally:
            if on_device:
                torch.cuda.set_sync_debug_mode("default")
    count = sum(SYNCHRONISES in str(item.message) for item in caught)
    tally.steps += 1
    tally.syncs += count
    tally.most_syncs = max(tally.most_syncs, count)
    return emitted


def compare(
    numbers: Sequence[int], texts: Sequence[Sequence[int]], plain: Sequence[PlainText], tally: Tally, bound: float
) -> None:
    """Count every position, and those at which plain decoding along the text picks another token."""
    for number, text, other in zip(numbers, texts, plain, strict=True):
        tally.tokens += len(text)
        for at, pair in enumerate(zip(other.tokens, text, strict=False)):
            if pair[0] != pair[1]:
                tally.add(Parting(number, at, *pair, other.margin(at), other.gap(at)), bound)
        if len(text) < len(other.tokens):
            tally.add(Parting(number, len(text), other.tokens[len(text)], -1, 0.0, float("inf")), bound)
