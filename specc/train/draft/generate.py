"""Continuing many prompts with a frozen target: rows of a fixed batch, a row is given to the next prompt when its text
has ended, one CUDA graph per step, and the host looks at the rows only every few steps.

What a text becomes does not depend on the rows beside it, but for the rounding of batched products: a sampled token is
read off its own uniform number, not off a generator that all rows share.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specc.train.draft.targets import Decoding, FrozenTarget

LOOK = 16
"""Steps between two looks of the host."""
REFILL_SHARE = 8
"""Rows are given to new prompts when one in so many is free."""
PREFILL_TOKENS = 1 << 16
"""Prompt tokens, padding with them, of one prefill."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`batch` texts at a time, at most `new_tokens` new ones each, of prompts of at most `prompt_tokens`."""

    batch: int
    new_tokens: int
    prompt_tokens: int

    @property
    def capacity(self) -> int:
        """Tokens that a row must hold."""
        return self.prompt_tokens + self.new_tokens


def draw(logits: Tensor, uniform: Tensor, temperature: float = 1.0) -> Tensor:
    """One token per row: logits [n,V], uniform numbers [n] in [0, 1). The token is the first whose cumulated
    probability is above the number.
    """
    cumulated = torch.softmax(logits.float() / temperature, -1).cumsum(-1)
    below = cumulated <= uniform[:, None] * cumulated[:, -1:]
    # A number just below 1 can be rounded up to the total: the last token with any probability is meant.
    return torch.minimum(below.sum(-1), cumulated.argmax(-1))


class Generator:
    """Rows of texts under way on the target's device. `sampled`: draw tokens at a temperature, else take the
    likeliest."""

    def __init__(
        self,
        target: FrozenTarget,
        stop_tokens: Sequence[int],
        limits: Limits,
        *,
        sampled: bool,
        temperature: float = 1.0,
    ) -> None:
        self.limits, self.sampled, self.temperature = limits, sampled, temperature
        self.device = target.embedding.device
        self.decoding: Decoding = target.open(limits.batch, limits.capacity)
        self.stops = torch.tensor([*stop_tokens] or [-1], device=self.device)
        rows = limits.batch
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.written = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.done = torch.ones(rows, dtype=torch.bool, device=self.device)
        self.rows = torch.arange(rows, device=self.device)
        # One column more: what rows write that are done.
        self.new = torch.zeros(rows, limits.new_tokens + 1, dtype=torch.int64, device=self.device)
        self.uniform = torch.zeros(rows, limits.new_tokens + 1, device=self.device) if sampled else None
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        if self.device.type == "cuda":
            self._capture()

    def _choose(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Next tokens of some rows from logits [n,V]."""
        if self.uniform is None:
            return logits.argmax(-1)
        return draw(logits, self.uniform[rows, self.written[rows]], self.temperature)

    def _record(self, chosen: Tensor, rows: Tensor) -> None:
        """Write the tokens [n] of some rows down, and see whose text ends with them."""
        active = ~self.done[rows]
        column = self.written[rows].masked_fill(self.done[rows], self.limits.new_tokens)
        self.new.index_put_((rows, column), chosen)
        self.written.index_add_(0, rows, active.long())
        self.tokens.index_copy_(0, rows, chosen)
        ended = (chosen[:, None] == self.stops).any(-1) | (self.written[rows] >= self.limits.new_tokens)
        self.done.index_copy_(0, rows, self.done[rows] | ended)

    def _step(self) -> None:
        """One token of every row; nothing leaves the device."""
        logits = self.decoding.step(self.tokens, ~self.done)
        self._record(self._choose(logits, self.rows), self.rows)

    def _capture(self) -> None:
        """A graph of one step for every number of columns that a step may read. All rows are done: what the steps
        before a capture write is written over by prefill.
        """
        side = torch.cuda.Stream(self.device)
        pool = torch.cuda.graph_pool_handle()
        for size in reversed(self.decoding.attended_sizes):
            self.decoding.attended = size
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                self._step()
            torch.cuda.current_stream(self.device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._step()
            self._graphs[size] = graph

    def _steps(self, count: int, longest: int) -> None:
        """`count` steps of rows that are at most `longest` tokens long after them."""
        size = next(size for size in self.decoding.attended_sizes if size >= longest)
        self.decoding.attended = size
        for _ in range(count):
            if size in self._graphs:
                self._graphs[size].replay()
            else:
                self._step()

    def run(
        self, prompts: Sequence[Sequence[int]], uniform: Tensor | None = None, deadline: float = math.inf
    ) -> dict[int, list[int]]:
        """New tokens by prompt number, stop token included; `uniform` [prompts, new tokens] where tokens are drawn.

        At the deadline (of time.monotonic) the texts that have not ended are left out.
        """
        waiting = deque(sorted(range(len(prompts)), key=lambda number: len(prompts[number])))
        live: dict[int, _Live] = {}
        free = list(range(self.limits.batch))
        found: dict[int, list[int]] = {}
        while (waiting or live) and time.monotonic() < deadline:
            if waiting and (not live or len(free) * REFILL_SHARE >= self.limits.batch):
                taken = [(free.pop(), waiting.popleft()) for _ in range(min(len(free), len(waiting)))]
                self._fill(taken, prompts, uniform)
                for row, number in taken:
                    length = len(prompts[number])
                    live[row] = _Live(number, length + 1, length + self.limits.new_tokens)
            else:
                count = min(LOOK, max(item.most - item.length for item in live.values()))
                for item in live.values():
                    item.length = min(item.length + count, item.most)
                self._steps(count, max(item.length for item in live.values()))
            ended = [row for row, done in enumerate(self.done.tolist()) if done and row in live]
            for row, new in self._collected(ended):
                found[live.pop(row).number] = new
                free.append(row)
        self.done.fill_(True)
        return found

    def _collected(self, rows: Sequence[int]) -> list[tuple[int, list[int]]]:
        """The new tokens of rows that are done."""
        if not rows:
            return []
        index = torch.tensor(rows, device=self.device)
        new, written = self.new[index].tolist(), self.written[index].tolist()
        return [(row, ids[:count]) for row, ids, count in zip(rows, new, written, strict=True)]

    def _fill(self, taken: Sequence[tuple[int, int]], prompts: Sequence[Sequence[int]], uniform: Tensor | None) -> None:
        """Prompts into rows, and their first tokens. Prompts come from short to long: one prefill is little padded."""
        start = 0
        while start < len(taken):
            longest, stop = 0, start
            while stop < len(taken):
                longest = max(longest, len(prompts[taken[stop][1]]))
                if stop > start and longest * (stop + 1 - start) > PREFILL_TOKENS:
                    break
                stop += 1
            self._prefill(taken[start:stop], prompts, uniform)
            start = stop

    def _prefill(
        self, part: Sequence[tuple[int, int]], prompts: Sequence[Sequence[int]], uniform: Tensor | None
    ) -> None:
        texts = [prompts[number] for _, number in part]
        width = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts], device=self.device)
        lengths = torch.tensor([len(text) for text in texts], device=self.device)
        rows = torch.tensor([row for row, _ in part], device=self.device)
        self.written.index_fill_(0, rows, 0)
        self.done.index_fill_(0, rows, False)
        if self.uniform is not None:
            if uniform is None:
                raise ValueError("tokens are drawn by uniform numbers: give them")
            numbers = torch.tensor([number for _, number in part])
            width = self.limits.new_tokens
            self.uniform[:, :width].index_copy_(0, rows, uniform[numbers, :width].to(self.device))
        logits = self.decoding.prefill(ids, lengths, rows)
        self._record(self._choose(logits, rows), rows)


@dataclass(slots=True)
class _Live:
    """A prompt in a row: how long its text can be by now, and how long it can become."""

    number: int
    length: int
    most: int
