"""The generate loop of an Ascend module: one graph and one read-back per step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from specc.backends.ascend.runtime.abi import PENDING, PREFILL_CHUNK, RECORD
from specc.backends.ascend.runtime.build import Steps, bucket, build, chunk_size
from specc.backends.printing.runtime.abi import SEED, SLOTS, State, Weights
from specc.backends.printing.runtime.decoder import (
    Generation,
    Step,
    generation,
    padded,
    row_keys,
    step_of,
)
from specc.backends.printing.runtime.loader import load_weights
from specc.backends.printing.runtime.rows import clear


def unpack(read: Tensor) -> dict[str, Tensor]:
    """The fields of RECORD by name, from the record of a step on the host."""
    parts: dict[str, Tensor] = {}
    place = 2
    for name, (columns, dtype) in RECORD.items():
        part = read[:, place : place + max(columns, 1)].to(dtype)
        parts[name] = part if columns else part.squeeze(1)
        place += max(columns, 1)
    return parts


class Decoder:
    """Generates text with one set of weights. Re-usable; `close` releases the memory.

    Every step is one graph of fixed shapes, compiled by torchair when a batch size is first
    used; a batch between two compiled sizes is padded with finished rows. `eager=True` runs the
    same functions operator by operator, on any device that has the operators.
    """

    def __init__(
        self,
        weights: Weights,
        device: torch.device | str = "npu",
        eager: bool = False,
        mode: str = "max-autotune",
    ) -> None:
        self._weights: Weights | None = weights
        self.device = torch.device(device)
        self.eager, self.mode = eager, mode
        self._steps: dict[int, Steps] = {}
        self._current: Steps | None = None
        self._batch = 0
        self._finished = torch.ones(0, dtype=torch.bool)
        # Whether a speculative step may have left its commit pending.
        self._pending = False

    @classmethod
    def from_pretrained(
        cls,
        directory: str | os.PathLike[str],
        draft_directory: str | os.PathLike[str] | None = None,
        device: torch.device | str = "npu",
        eager: bool = False,
        mode: str = "max-autotune",
    ) -> Self:
        """A decoder for a checkpoint folder (and the drafter's, where there is one)."""
        weights = load_weights(directory, draft_directory, device)
        return cls(weights, device, eager, mode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release weights, state and graphs; the decoder can't be used afterwards."""
        self._weights = self._current = None
        self._steps.clear()

    @property
    def weights(self) -> Weights:
        """The weights. Raises RuntimeError after `close`."""
        if self._weights is None:
            raise RuntimeError("this decoder is closed")
        return self._weights

    @property
    def state(self) -> State:
        """The state of the batch under way: views of its rows. Raises RuntimeError before `start`."""
        state = self._running().state
        rows = [
            value.narrow(slot.batch_dim, 0, self._batch)
            for value, slot in zip(state, SLOTS.values(), strict=True)
        ]
        return State._make(rows)

    def _running(self) -> Steps:
        if self._current is None:
            raise RuntimeError("nothing is being decoded: call start or generate first")
        return self._current

    def _steps_of(self, batch: int) -> Steps:
        """The steps of a batch size with an empty state; made if it is the first such batch."""
        size = batch if self.eager else bucket(batch)
        if size not in self._steps:
            self._steps[size] = build(
                self.weights, size, self.device, self.mode, eager=self.eager
            )
        clear(self._steps[size].state)
        return self._steps[size]

    def start(
        self,
        input_ids: Tensor | Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        seed: int = SEED,
        requests: Sequence[int] | None = None,
    ) -> list[int]:
        """Prefill the prompts; returns the first new token of every row.

        `requests` name the rows' random streams (default 0, 1, ...), so that a row's text
        does not depend on the batch it is in.
        """
        ids, lengths = padded(input_ids)
        batch = len(lengths)
        keys = row_keys(batch, max_new_tokens, seed, requests)
        self._current = None
        with torch.no_grad():
            current = self._steps_of(batch)
            state, empty = current.state, current.state.length.shape[0] - batch
            state.rng.copy_(torch.tensor(keys + [0] * empty))
            total = torch.tensor(lengths + [0] * empty)
            ids = torch.nn.functional.pad(ids, (0, 0, 0, empty))
            for first in range(0, ids.shape[1], PREFILL_CHUNK):
                self._prefill(
                    current, ids[:, first : first + PREFILL_CHUNK], total - first
                )
            state.remaining.fill_(max_new_tokens - 1)
            if max_new_tokens == 1:
                state.finished.fill_(True)
        self._current, self._batch, self._pending = current, batch, False
        self._finished = self.state.finished.cpu()
        return [int(token) for token in self.state.root_token.tolist()]

    def _prefill(self, steps: Steps, chunk: Tensor, left: Tensor) -> None:
        """One chunk on the host, `left` [B] tokens of every row from its start; padded to the size of a graph."""
        count = left.clamp(0, chunk.shape[1])
        if not self.eager:
            size = chunk_size(chunk.shape[1])
            chunk = torch.nn.functional.pad(chunk, (0, size - chunk.shape[1]))
        steps.run("prefill", chunk.to(self.device), count.to(self.device))

    def _read(self, name: str) -> Tensor:
        """Run a step and copy its record to the host: the only synchronisation of a step."""
        current = self._running()
        # A step changes its state in place: one that is cut short leaves nothing to go on from.
        self._current = None
        read = current.run(name)[: self._batch].cpu()
        self._current = current
        self._finished = read[:, 0].bool()
        return read

    def step(self) -> Step:
        """One speculative step: draft, verify, accept, commit."""
        began = time.perf_counter()
        read = self._read("step")
        ended = time.perf_counter()
        self._pending = PENDING
        parts = unpack(read)
        return step_of(parts, ended - began)

    def plain_step(self) -> list[list[int]]:
        """One step without drafts; returns the new token of every row that is not finished."""
        self.flush()
        read = self._read("plain")
        return [[token] if count else [] for _, token, count in read.tolist()]

    def flush(self) -> None:
        """Apply whatever a deferred commit has left pending."""
        if self._pending:
            self._running().run("flush")
            self._pending = False

    def generate(
        self,
        input_ids: Tensor | Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        speculative: bool = True,
        on_tokens: Callable[[int, list[int]], None] | None = None,
        seed: int = SEED,
        requests: Sequence[int] | None = None,
    ) -> Generation:
        """Decode every prompt until a stop token, `max_new_tokens` or the capacity.

        `on_tokens(row, tokens)` is called as soon as a row has new tokens. With
        `speculative=False` the same model decodes one token at a time.
        """
        return generation(
            lambda: self.start(input_ids, max_new_tokens, seed=seed, requests=requests),
            self.step if speculative else None,
            self.plain_step,
            # A step's record says who is finished: the device is not asked again.
            lambda: bool(self._finished.all()),
            self.flush,
            on_tokens,
        )
