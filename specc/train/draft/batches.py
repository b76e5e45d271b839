"""Texts as batches: one text per row, rows of similar length together, padded on the right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MULTIPLE = 64
"""Rows are padded to a multiple of this many tokens: few shapes, and aligned matrix products."""
LEAST_PREDICTED = 2
REPEATED_RUN = 8

FACTORS = np.array([pow(0x9E3779B97F4A7C15, power, 1 << 64) for power in range(1, REPEATED_RUN + 1)], dtype=np.uint64)

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Text:
    """The tokens of a prompt and of the target's continuation; the first `prompt` of them are the prompt's."""

    ids: Ids
    prompt: int


@dataclass(frozen=True, slots=True)
class Batch:
    """ids [B,T]; `rows` [n]: which of the flattened [B * (T - 1)] rows count.

    Row t pairs position t with token t + 1 and predicts token t + 2; it counts where that token is the target's own.
    """

    ids: Tensor
    rows: Tensor

    @property
    def tokens(self) -> int:
        """Positions that are computed, padding included."""
        return self.ids.numel()

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        return Batch(self.ids.to(device, non_blocking=True), self.rows.to(device, non_blocking=True))


def usable(texts: Iterable[tuple[Any, int]], longest: int, loop_tokens: int | None = None) -> list[Text]:
    """Texts cut to `longest` tokens; those with fewer than two predicted tokens left are dropped.

    With `loop_tokens` a text ends that many tokens behind the place where its continuation begins to repeat itself: a
    small model decoded greedily often ends in a loop, which soon teaches nothing more.
    """
    found = []
    for ids, prompt in texts:
        cut = np.asarray(ids, dtype=np.int32)[:longest]
        if loop_tokens is not None:
            cut = cut[: prompt + first_repeat(cut[prompt:]) + loop_tokens]
        if prompt >= 1 and predicted_rows(len(cut), prompt).size >= LEAST_PREDICTED:
            found.append(Text(cut, int(prompt)))
    return found


def first_repeat(ids: Ids) -> int:
    """Where the first run of 8 tokens ends that was there before (tokens up to and with it); else the length."""
    if len(ids) <= REPEATED_RUN:
        return len(ids)
    # A run is known by a 64-bit hash: sums of products that wrap around.
    runs = np.lib.stride_tricks.sliding_window_view(ids.astype(np.uint64), REPEATED_RUN) @ FACTORS
    _, first, inverse = np.unique(runs, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[inverse] != np.arange(len(runs)))
    return int(again[0]) + REPEATED_RUN if again.size else len(ids)


def predicted_rows(length: int, prompt: int) -> npt.NDArray[np.int64]:
    """Rows of a text whose predicted token t + 2 belongs to the continuation."""
    return np.arange(max(prompt - 2, 0), length - 2, dtype=np.int64)


def split(texts: Sequence[Text], every: int) -> tuple[list[Text], list[Text]]:
    """Training texts, and those of every `every`-th prompt (at least one where there are two prompts) held out: all
    kinds of prompts are in both parts, and all continuations of a prompt in the same."""
    numbers: dict[bytes, int] = {}
    prompt = [numbers.setdefault(text.ids[: text.prompt].tobytes(), len(numbers)) for text in texts]
    first = min(every, len(numbers)) - 1
    if first < 1:
        return list(texts), []
    out = [number >= first and (number - first) % every == 0 for number in prompt]
    train = [text for text, held_out in zip(texts, out, strict=True) if not held_out]
    return train, [text for text, held_out in zip(texts, out, strict=True) if held_out]


def make_batch(texts: Sequence[Text]) -> Batch:
    """One batch on the CPU."""
    width = -(-max(len(text.ids) for text in texts) // MULTIPLE) * MULTIPLE
    ids = np.zeros((len(texts), width), dtype=np.int64)
    rows = []
    for number, text in enumerate(texts):
        ids[number, : len(text.ids)] = text.ids
        rows.append(predicted_rows(len(text.ids), text.prompt) + number * (width - 1))
    return Batch(torch.from_numpy(ids), torch.from_numpy(np.concatenate(rows)))


@dataclass(frozen=True, slots=True)
class Plan:
    """Which texts make up each batch of an epoch: a pure function of texts and seed.

    A batch has about `budget` positions. The cut is the same in every epoch (so that what was computed of a batch can
    be kept), the order is not. With several processes each takes every `world`-th text of a batch.
    """

    groups: tuple[tuple[int, ...], ...]
    seed: int

    @classmethod
    def of(cls, texts: Sequence[Text], budget: int, seed: int, world: int = 1) -> Plan:
        """Shuffle, sort by padded length, cut. A last batch with fewer texts than processes is left out."""
        order = np.random.default_rng([seed, 0]).permutation(len(texts))
        padded = np.array([-(-len(texts[i].ids) // MULTIPLE) * MULTIPLE for i in order])
        order = order[np.argsort(padded, kind="stable")]
        groups: list[tuple[int, ...]] = []
        start = 0
        while start < len(order):
            end, width = start, 0
            while end < len(order):
                width = max(width, -(-len(texts[order[end]].ids) // MULTIPLE) * MULTIPLE)
                if end > start and width * (end + 1 - start) > budget:
                    break
                end += 1
            if end - start >= world:
                groups.append(tuple(int(i) for i in order[start:end]))
            start = end
        return cls(tuple(groups), seed)

    def group(self, step: int) -> int:
        """The number of the group of a step."""
        epoch, place = divmod(step, len(self.groups))
        return int(np.random.default_rng([self.seed, 1 + epoch]).permutation(len(self.groups))[place])


def in_batches(texts: Sequence[Text], budget: int) -> Iterator[Batch]:
    """All texts, for evaluation."""
    for group in Plan.of(texts, budget, 0).groups:
        yield make_batch([texts[i] for i in group])
