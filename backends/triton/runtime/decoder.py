"""The generate loop of a Triton module: one replay and one read-back per step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from specc.backends.printing.runtime.abi import SEED, State, Weights, run_prefill
from specc.backends.printing.runtime.decoder import (
    PREFILL_CHUNK,
    Generation,
    Step,
    generation,
    padded,
    row_keys,
    step_of,
)
from specc.backends.printing.runtime.loader import load_weights
from specc.backends.printing.runtime.rows import clear
from specc.backends.triton.runtime.ahead import Ahead
from specc.backends.triton.runtime.captured import (
    Captured,
    captured_size,
    first_rows,
    take_over,
    unpack,
)


class Decoder:
    """Generates text with one set of weights. Re-usable; `close` releases the memory.

    On CUDA devices every step is one CUDA graph, captured per batch size when it is first
    used; a batch between two captured sizes is padded with finished rows. `eager=True` starts
    the same kernels one by one, for debugging. `generate` starts a step before it has read the
    one in front of it; `step` and `plain_step`, called one by one, do not.
    """

    def __init__(self, weights: Weights, device: torch.device | str = "cuda", eager: bool = False) -> None:
        self._weights: Weights | None = weights
        self.device = torch.device(device)
        self._graphs = self.device.type == "cuda" and not eager
        self._look_ahead = self._graphs
        self._ahead: Ahead | None = None
        self._captured: dict[int, Captured] = {}
        self._current: Captured | None = None
        self._batch = 0
        self._finished = torch.ones(0, dtype=torch.bool)
        # Whether a speculative step may have left its commit pending.
        self._pending = False

    @classmethod
    def from_pretrained(
        cls,
        directory: str | os.PathLike[str],
        draft_directory: str | os.PathLike[str] | None = None,
        device: torch.device | str = "cuda",
        eager: bool = False,
    ) -> Self:
        """A decoder for a checkpoint folder (and the drafter's, where there is one)."""
        return cls(load_weights(directory, draft_directory, device), device, eager)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release weights, state and graphs; the decoder can't be used afterwards."""
        self._weights = self._current = None
        self._captured.clear()

    @property
    def weights(self) -> Weights:
        """The weights. Raises RuntimeError after `close`."""
        if self._weights is None:
            raise RuntimeError("this decoder is closed")
        return self._weights

    @property
    def state(self) -> State:
        """The state of the batch under way. Raises RuntimeError before `start`."""
        return first_rows(self._running().state, self._batch)

    def _running(self) -> Captured:
        if self._current is None:
            raise RuntimeError("nothing is being decoded: call start or generate first")
        return self._current

    def _steps_of(self, batch: int) -> Captured:
        """The steps of a batch size with an empty state; captured if it is the first such batch."""
        size = captured_size(batch) if self._graphs else batch
        if size not in self._captured:
            self._captured[size] = Captured(self.weights, size, self.device, self._graphs)
        clear(self._captured[size].state)
        return self._captured[size]

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
        weights = self.weights
        ids, lengths = padded(input_ids)
        batch = len(lengths)
        keys = row_keys(batch, max_new_tokens, seed, requests)
        self._current = None
        with torch.no_grad():
            current = self._steps_of(batch)
            state, empty = current.state, current.state.length.shape[0] - batch
            state.rng.copy_(torch.tensor(keys + [0] * empty))
            total = torch.tensor(lengths + [0] * empty, device=self.device)
            ids = torch.nn.functional.pad(ids, (0, 0, 0, empty)).to(self.device)
            for first in range(0, ids.shape[1], PREFILL_CHUNK):
                chunk = ids[:, first : first + PREFILL_CHUNK]
                count = (total - first).clamp(0, chunk.shape[1])
                take_over(state, run_prefill(weights, state, chunk, count)[0])
            state.remaining.fill_(max_new_tokens - 1)
            if max_new_tokens == 1:
                state.finished.fill_(True)
        self._current, self._batch, self._pending = current, batch, False
        self._finished = self.state.finished.cpu()
        return [int(token) for token in self.state.root_token.tolist()]

    def _read(self, name: str) -> Tensor:
        """Run a step and copy its record to the host: the only synchronisation of a step."""
        current = self._running()
        # A step changes its state in place: one that is cut short leaves nothing to go on from.
        self._current = None
        with torch.no_grad():
            read = current.run(name)[: self._batch].cpu() if self._ahead is None else self._ahead.take()
        self._current = current
        return read

    def step(self) -> Step:
        """One speculative step: draft, verify, accept, commit."""
        began = time.perf_counter()
        read = self._read("step")
        ended = time.perf_counter()
        self._pending = True
        stepped = self._running().stepped
        assert stepped is not None
        self._finished, parts = unpack(stepped, read)
        return step_of(parts, ended - began)

    def plain_step(self) -> list[list[int]]:
        """One step without drafts; returns the new token of every row that is not finished."""
        self.flush()
        read = self._read("plain")
        self._finished = read[:, 0].bool()
        return [[token] if count else [] for _, token, count in read.tolist()]

    def flush(self) -> None:
        """Apply whatever a deferred commit has left pending."""
        if self._pending:
            with torch.no_grad():
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
        `speculative=False` the same model decodes one token at a time. If it raises, what was
        decoded can't be gone on with.
        """

        def start() -> list[int]:
            first = self.start(input_ids, max_new_tokens, seed=seed, requests=requests)
            if self._look_ahead:
                name = "step" if speculative else "plain"
                self._ahead = Ahead(self._running(), name, self._batch, max_new_tokens - 1)
            return first

        done = False
        try:
            made = generation(
                start,
                self._next_step if speculative else None,
                self._next_plain,
                # A step's record says who is finished: the device is not asked again.
                lambda: bool(self._finished.all()),
                self._end,
                on_tokens,
            )
            done = True
        finally:
            self._ahead = None
            if not done:
                self._current = None
        return made

    def _next_step(self) -> Step:
        step = self.step()
        if self._ahead is not None:
            self._ahead.gave(step.emitted)
        return step

    def _next_plain(self) -> list[list[int]]:
        emitted = self.plain_step()
        if self._ahead is not None:
            self._ahead.gave(emitted)
        return emitted

    def _end(self) -> None:
        if self._ahead is not None:
            self._ahead.end()
        self.flush()
