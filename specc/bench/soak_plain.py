"""Plain decoding for the soak run: along given texts, with the best logits of every position, read back at the end.

The module's `run_decode` over a state of fixed addresses, as one CUDA graph on a GPU and called as it is elsewhere. It
also measures the numerical bound: how far the logits of plain decoding move when a row is decoded alone instead of
among 16 (attention groups its sums by the batch; nothing else of a plain step depends on it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specc.bench.step_stand import DEFAULT_CHUNK, captured, take_over

WHOLE = 16
"""Rows of the batch that the bound compares with rows alone."""


@dataclass(frozen=True, slots=True)
class PlainText:
    """Plain decoding of one prompt, alone or along a given text.

    tokens: what it picked at each of T positions; values [T,2]: the two largest logits there; own [T]: the logit of the
    given text's token (of nothing where no text was given).
    """

    tokens: list[int]
    values: Tensor
    own: Tensor

    def margin(self, at: int) -> float:
        """The two best logits' distance."""
        return float(self.values[at, 0] - self.values[at, 1])

    def gap(self, at: int) -> float:
        """How far the given text's token lies below the best."""
        return float(self.values[at, 0] - self.own[at])


class PlainRunner:
    """Plain decoding of up to `batch` prompts at once, up to `count` tokens each; used again and again."""

    def __init__(self, module: Any, weights: Any, batch: int, count: int, device: torch.device | str) -> None:
        self.module, self.weights, self.batch, self.count = module, weights, batch, count
        self.device = torch.device(device)
        self.state: Any = module.init_state(batch, self.device)
        self.step = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.tokens = torch.zeros(count, batch, dtype=torch.int64, device=self.device)
        # The text to go along, -1 where plain decoding goes its own way.
        self.given = torch.full_like(self.tokens, -1)
        self.values = torch.zeros(count, batch, 2, device=self.device)
        self.own = torch.zeros(count, batch, device=self.device)
        self._call: Callable[[], None] | None = None

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Start over with these prompts (as many as the batch); logits [B,V] after each one's last token."""
        for value, slot in zip(self.state, self.module.SLOTS.values(), strict=True):
            value.fill_(slot.fill)
        width = max(map(len, prompts))
        ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts], device=self.device)
        total = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        chunk = int(getattr(self.module, "PREFILL_CHUNK", DEFAULT_CHUNK))
        last = torch.zeros(len(prompts), self.module.VOCAB_SIZE, device=self.device)
        for first in range(0, width, chunk):
            part = ids[:, first : first + chunk].contiguous()
            count = (total - first).clamp(0, part.shape[1])
            made, logits = self.module.run_prefill(self.weights, self.state, part, count)
            take_over(self.state, made)
            last = torch.where((count > 0).unsqueeze(1), logits.float(), last)
        return last

    def decode_one(self) -> Tensor:
        """One token of every row; logits [B,V]."""
        made, decoded = self.module.run_decode(self.weights, self.state)
        take_over(self.state, made)
        logits: Tensor = decoded.logits
        return logits

    def _step(self) -> None:
        before = self.given.index_select(0, self.step - 1).squeeze(0)
        self.state.root_token.copy_(torch.where(before >= 0, before, self.state.root_token))
        logits = self.decode_one().float()
        given = self.given.index_select(0, self.step).clamp(min=0)
        self.own.index_copy_(0, self.step, logits.gather(1, given.T).T)
        self.values.index_copy_(0, self.step, logits.topk(2).values.unsqueeze(0))
        self.tokens.index_copy_(0, self.step, self.state.root_token.unsqueeze(0))
        self.step.add_(1)

    def run(
        self, prompts: Sequence[Sequence[int]], along: Sequence[Sequence[int]] = (), count: int | None = None
    ) -> list[PlainText]:
        """Plain decoding of each prompt, `count` tokens (default: those of the constructor).

        With `along`, texts of at most that many tokens, every token is picked after the text's own tokens before it.
        """
        count = self.count if count is None else count
        rows = [*prompts, *[prompts[0]] * (self.batch - len(prompts))]
        if self._call is None:
            self._call = self._captured(rows)
        self.given.fill_(-1)
        for row, text in enumerate(along):
            self.given[: len(text), row] = torch.tensor(list(text), device=self.device)
        logits = self.prefill(rows)
        self.values[0], self.tokens[0] = logits.topk(2).values, self.state.root_token
        self.own[0] = logits.gather(1, self.given[:1].clamp(min=0).T).squeeze(1)
        self.step.fill_(1)
        for _ in range(count - 1):
            self._call()
        tokens, values, own = self.tokens[:count].T.tolist(), self.values[:count].cpu(), self.own[:count].cpu()
        return [PlainText(tokens[row], values[:, row], own[:, row]) for row in range(len(prompts))]

    def _captured(self, rows: Sequence[Sequence[int]]) -> Callable[[], None]:
        """The step as a graph; the warm-up takes steps of its own."""
        if self.device.type != "cuda":
            return self._step
        self.prefill(rows)
        self.step.fill_(1)
        return captured(self._step).replay


@dataclass(frozen=True, slots=True)
class Bound:
    """How plain decoding differs from itself: rows alone against rows among `WHOLE`.

    `largest`: max |difference of a logit| over all positions, the numerical bound; `typical`: the mean over positions
    of each one's largest; `flips`: positions whose best token differs.
    """

    positions: int
    largest: float
    typical: float
    flips: int

    def as_json(self) -> dict[str, Any]:
        """JSON-ready, with flips per 10,000 positions."""
        return {
            "positions": self.positions,
            "max_logit_difference": self.largest,
            "mean_max_logit_difference": self.typical,
            "flips": self.flips,
            "flips_per_10k": round(self.flips / max(self.positions, 1) * 1e4, 3),
        }


class _Alone:
    """One row decoded alone along given tokens, its logits compared with given ones; everything stays on the device."""

    def __init__(self, module: Any, weights: Any, count: int, device: torch.device | str) -> None:
        self.runner = PlainRunner(module, weights, 1, count, device)
        place = self.runner.device
        self.theirs = torch.zeros(count, module.VOCAB_SIZE, device=place)
        self.roots = torch.zeros(count + 1, dtype=torch.int64, device=place)
        self.largest, self.total = torch.zeros(1, device=place), torch.zeros(1, device=place)
        self.flips = torch.zeros(1, dtype=torch.int64, device=place)
        self.step = self.runner.step
        self._call: Callable[[], None] | None = None

    def _one(self) -> None:
        self.runner.state.root_token.copy_(self.roots.index_select(0, self.step))
        logits = self.runner.decode_one().float()
        theirs = self.theirs.index_select(0, self.step)
        largest = (logits - theirs).abs().amax(1)
        self.largest.copy_(torch.maximum(self.largest, largest))
        self.total.add_(largest)
        self.flips.add_((logits.argmax(1) != theirs.argmax(1)).long())
        self.step.add_(1)

    def follow(self, prompt: Sequence[int], roots: Tensor, logits: Tensor) -> None:
        """`roots` [T]: the token decoded at each step; `logits` [T,V]: what the row had among others."""
        if self._call is None:
            self._call = self._one
            if self.runner.device.type == "cuda":
                self.runner.prefill([prompt])
                self._call = captured(self._one).replay
                for counter in (self.largest, self.total, self.flips):
                    counter.zero_()
        self.runner.prefill([prompt])
        self.theirs.copy_(logits)
        self.roots[: len(roots)] = roots
        self.step.zero_()
        for _ in range(len(logits)):
            self._call()


def measure_bound(module: Any, weights: Any, prompts: Sequence[Sequence[int]], count: int, groups: int,
                  device: torch.device | str) -> Bound:  # fmt: skip
    """Over groups of `WHOLE` prompts, `count` positions of each: groups * WHOLE * count positions."""
    together = PlainRunner(module, weights, WHOLE, count, device)
    alone = _Alone(module, weights, count, device)
    kept = torch.zeros(count, WHOLE, module.VOCAB_SIZE, device=together.device)
    roots = torch.zeros(count, WHOLE, dtype=torch.int64, device=together.device)
    # The graph keeps every logit, unlike the runner's own.
    step = torch.zeros(1, dtype=torch.int64, device=together.device)

    def whole() -> None:
        roots.index_copy_(0, step, together.state.root_token.unsqueeze(0))
        kept.index_copy_(0, step, together.decode_one().float().unsqueeze(0))
        step.add_(1)

    call: Callable[[], None] | None = None
    for group in range(groups):
        rows = [prompts[(group * WHOLE + row) % len(prompts)] for row in range(WHOLE)]
        if call is None:
            together.prefill(rows)
            call = captured(whole).replay if together.device.type == "cuda" else whole
        together.prefill(rows)
        step.zero_()
        for _ in range(count):
            call()
        for row, prompt in enumerate(rows):
            alone.follow(prompt, roots[:, row], kept[:, row])
    positions = groups * WHOLE * count
    return Bound(positions, float(alone.largest), float(alone.total) / positions, int(alone.flips))
