"""The soak's comparison: speculative texts against plain ones, teacher-forced after a difference."""

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
class Work:
    """A text to decode speculatively: `prompt` may end with plain's own tokens, `done` of them."""

    number: int
    prompt: tuple[int, ...]
    plain: PlainText
    done: int = 0

    def after(self, at: int) -> Work:
        """Going on from plain's token at position `at` of what is left."""
        taken = self.plain.tokens[: at + 1]
        return Work(self.number, (*self.prompt, *taken), self.plain.part(at + 1), self.done + at + 1)


@dataclass(frozen=True, slots=True)
class Parting:
    """A position at which speculative text took another token than plain decoding.

    `margin`: plain's two best logits there; `gap`: plain's token over the other; `first`: the text's first token, which
    prefill gives (after a difference, of a text that plain decoding made token by token).
    """

    number: int
    position: int
    plain: int
    speculative: int
    margin: float
    gap: float
    first: bool


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
    at_first: int = 0
    above: int = 0
    partings: list[Parting] = field(default_factory=list)

    def add(self, found: Parting, bound: float) -> None:
        """Count a difference; `bound` is the numerical one, fixed beforehand."""
        self.count += 1
        self.at_first += found.first
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
            "differences_at_first_token": self.at_first,
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


def speculative_texts(decoder: Any, works: Sequence[Work], tally: Tally) -> list[list[int]]:
    """Texts as long as each work's plain one, by the module's own `step`; synchronisations of steps are counted."""
    wanted = [work.plain.length for work in works]
    first = decoder.start([list(work.prompt) for work in works], max(wanted), requests=[w.number for w in works])
    texts = [[token] for token in first]
    began = time.perf_counter()
    while any(len(text) < count for text, count in zip(texts, wanted, strict=True)):
        emitted = counted_step(decoder, tally)
        if not any(emitted):
            break  # capacity: what is missing counts as a difference
        for text, new, count in zip(texts, emitted, wanted, strict=True):
            taken = new[: max(0, count - len(text))]
            tally.row_steps += bool(taken)
            tally.emitted += len(taken)
            text.extend(taken)
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


def compare(works: Sequence[Work], texts: Sequence[Sequence[int]], tally: Tally, bound: float) -> list[Work]:
    """Count the positions compared and the first difference of each; returns what is left, from plain's token on."""
    left = []
    for work, text in zip(works, texts, strict=True):
        at = next((i for i, pair in enumerate(zip(work.plain.tokens, text, strict=False)) if pair[0] != pair[1]), None)
        if at is None and len(text) == work.plain.length:
            tally.tokens += len(text)
            continue
        at = len(text) if at is None else at
        tally.tokens += at + 1
        if at >= len(text):
            tally.add(Parting(work.number, work.done + at, work.plain.tokens[at], -1, 0.0, float("inf"), False), bound)
        else:
            gap = work.plain.gap(at, text[at])
            found = (work.plain.tokens[at], text[at], work.plain.margin(at), gap, at == 0)
            tally.add(Parting(work.number, work.done + at, *found), bound)
        if at + 1 < work.plain.length:
            left.append(work.after(at))
    return left


def check_all(decoder: Any, works: Sequence[Work], batch: int, tally: Tally, bound: float) -> None:
    """All texts to their ends: those that parted go on from plain's token, sorted by what is left of them."""
    waiting = list(works)
    while waiting:
        waiting.sort(key=lambda work: -work.plain.length)
        now, waiting = waiting[:batch], waiting[batch:]
        waiting += compare(now, speculative_texts(decoder, now, tally), tally, bound)
