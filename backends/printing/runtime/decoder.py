"""The generate loop around the step functions; the host reads back accepted tokens and counts only."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from specc.backends.printing.runtime.abi import (
    MAX_SEQUENCE_LENGTH,
    SEED,
    VOCAB_SIZE,
    State,
    Weights,
    flush,
    init_state,
    run_accept,
    run_commit,
    run_decode,
    run_draft,
    run_prefill,
    run_verify,
)
from specc.backends.printing.runtime.edge import check_batch
from specc.backends.printing.runtime.loader import load_weights

# A prompt is prefilled in chunks of this many tokens, which bounds the attention mask.
PREFILL_CHUNK = 512


class Step(NamedTuple):
    """One step of the whole batch.

    tokens, valid [B,N] and parent [B,N] (None: a chain) are the draft; path [B,P],
    accept_length [B] and bonus [B] what was taken of it; emitted the new tokens of every
    row; seconds the time of each stage.
    """

    tokens: Tensor
    parent: Tensor | None
    valid: Tensor | None
    path: Tensor
    accept_length: Tensor
    bonus: Tensor
    emitted: list[list[int]]
    seconds: dict[str, float]


class Generation(NamedTuple):
    """The new tokens of every row, and the steps that made them (none for plain decoding)."""

    tokens: list[list[int]]
    steps: list[Step]
    prefill_seconds: float
    decode_seconds: float

    @property
    def acceptance_length(self) -> float:
        """tau: tokens per step of a row that took the step, the bonus included; 0 for none."""
        counts = [len(row) for step in self.steps for row in step.emitted if row]
        return sum(counts) / len(counts) if counts else 0.0


def stream_key(seed: int, request: int) -> int:
    """The int64 key of a request's random numbers."""
    digest = hashlib.sha256(f"{seed}:{request}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def padded(input_ids: Tensor | Sequence[Sequence[int]]) -> tuple[Tensor, list[int]]:
    """Prompts as int64 [B,T] padded with 0, and their lengths. Raises ValueError."""
    rows = input_ids.tolist() if isinstance(input_ids, Tensor) else list(input_ids)
    if not rows or isinstance(rows[0], int):
        raise ValueError(
            "input_ids must be a list of prompts, each a list of token ids"
        )
    prompts = [[int(token) for token in row] for row in rows]
    lengths = [len(prompt) for prompt in prompts]
    if min(lengths) == 0 or max(lengths) > MAX_SEQUENCE_LENGTH:
        raise ValueError(
            f"a prompt must have 1 to {MAX_SEQUENCE_LENGTH} tokens, "
            f"these have {min(lengths)} to {max(lengths)}"
        )
    for prompt in prompts:
        if min(prompt) < 0 or max(prompt) >= VOCAB_SIZE:
            raise ValueError(f"token ids must lie in 0 to {VOCAB_SIZE - 1}")
    ids = torch.zeros((len(prompts), max(lengths)), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt, dtype=torch.int64)
    return ids, lengths


def row_keys(
    rows: int, max_new_tokens: int, seed: int, requests: Sequence[int] | None
) -> list[int]:
    """The keys of the rows' random streams. Raises ValueError for a request that makes no sense."""
    check_batch(rows)
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}, it must be at least 1")
    names = list(range(rows)) if requests is None else list(requests)
    if len(names) != rows:
        raise ValueError(f"{len(names)} requests for {rows} prompts")
    return [stream_key(seed, request) for request in names]


def collect(
    first: list[int],
    finished: Callable[[], bool],
    advance: Callable[[], list[list[int]]],
    on_tokens: Callable[[int, list[int]], None] | None,
) -> list[list[int]]:
    """Every row's tokens: its first one, then what each `advance` adds until all are finished."""
    tokens: list[list[int]] = [[] for _ in first]

    def take(emitted: list[list[int]]) -> None:
        for row, new in enumerate(emitted):
            tokens[row].extend(new)
            if new and on_tokens is not None:
                on_tokens(row, list(new))

    take([[token] for token in first])
    while not finished():
        take(advance())
    return tokens


def generation(
    start: Callable[[], list[int]],
    step: Callable[[], Step] | None,
    plain_step: Callable[[], list[list[int]]],
    finished: Callable[[], bool],
    end: Callable[[], None],
    on_tokens: Callable[[int, list[int]], None] | None,
) -> Generation:
    """Whole texts: `start`, then `step` (None: `plain_step`) until all are `finished`, then `end`; timed."""
    began = time.perf_counter()
    first = start()
    prefilled = time.perf_counter()
    steps: list[Step] = []

    def advance() -> list[list[int]]:
        if step is None:
            return plain_step()
        steps.append(step())
        return steps[-1].emitted

    tokens = collect(first, finished, advance, on_tokens)
    end()
    ended = time.perf_counter()
    return Generation(tokens, steps, prefilled - began, ended - prefilled)


def step_of(parts: dict[str, Tensor], seconds: float) -> Step:
    """A step from the fields of its record, for decoders that read a whole step at once."""
    counts, tokens = parts["emitted"].tolist(), parts["emitted_tokens"].tolist()
    return Step(
        tokens=parts["tokens"],
        parent=parts.get("parent"),
        valid=parts.get("valid"),
        path=parts["path"],
        accept_length=parts["accept_length"],
        bonus=parts["bonus"],
        emitted=[row[:count] for row, count in zip(tokens, counts, strict=True)],
        seconds={"step": seconds},
    )


class Decoder:
    """Generates text with one set of weights. Re-usable; `close` releases the memory."""

    def __init__(self, weights: Weights, device: torch.device | str = "cpu") -> None:
        self._weights: Weights | None = weights
        self._state: State | None = None
        self.device = torch.device(device)

    @classmethod
    def from_pretrained(
        cls,
        directory: str | os.PathLike[str],
        draft_directory: str | os.PathLike[str] | None = None,
        device: torch.device | str = "cpu",
    ) -> Self:
        """A decoder for a checkpoint folder (and the drafter's, where there is one)."""
        return cls(load_weights(directory, draft_directory, device), device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release weights and state; the decoder can't be used afterwards."""
        self._weights = self._state = None

    @property
    def weights(self) -> Weights:
        """The weights. Raises RuntimeError after `close`."""
        if self._weights is None:
            raise RuntimeError("this decoder is closed")
        return self._weights

    @property
    def state(self) -> State:
        """The state of the batch under way. Raises RuntimeError before `start`."""
        if self._state is None:
            raise RuntimeError("nothing is being decoded: call start or generate first")
        return self._state

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
        keys = row_keys(len(lengths), max_new_tokens, seed, requests)
        # Released first, so that two states never exist at once.
        self._state = None
        state = init_state(len(lengths), self.device)
        state = state._replace(rng=torch.tensor(keys, device=self.device))
        total, ids = torch.tensor(lengths, device=self.device), ids.to(self.device)
        with torch.no_grad():
            for first in range(0, ids.shape[1], PREFILL_CHUNK):
                chunk = ids[:, first : first + PREFILL_CHUNK]
                count = (total - first).clamp(0, chunk.shape[1])
                state = run_prefill(weights, state, chunk, count)[0]
        left = torch.full_like(state.remaining, max_new_tokens - 1)
        self._state = state._replace(
            remaining=left, finished=state.finished | (left <= 0)
        )
        return [int(token) for token in self._state.root_token.tolist()]

    def step(self) -> Step:
        """One speculative step: draft, verify, accept, commit."""
        weights, state = self.weights, self.state
        # A step changes its state in place: one that is cut short leaves nothing to go on from.
        self._state = None
        with torch.no_grad():
            times = [time.perf_counter()]
            state, draft = run_draft(weights, state)
            times.append(time.perf_counter())
            state, verified = run_verify(
                weights, state, draft.tokens, draft.parent, draft.valid
            )
            times.append(time.perf_counter())
            state, accepted = run_accept(state, verified, draft)
            times.append(time.perf_counter())
            self._state = run_commit(state, verified, accepted)
            times.append(time.perf_counter())
            column = accepted.emitted.unsqueeze(1)
            read = torch.cat((column, accepted.emitted_tokens), dim=1).tolist()
        stages = ("draft", "verify", "accept", "commit")
        return Step(
            tokens=draft.tokens,
            parent=draft.parent,
            valid=draft.valid,
            path=accepted.path,
            accept_length=accepted.accept_length,
            bonus=accepted.bonus,
            emitted=[row[1 : 1 + row[0]] for row in read],
            seconds={
                stage: times[number + 1] - times[number]
                for number, stage in enumerate(stages)
            },
        )

    def plain_step(self) -> list[list[int]]:
        """One step without drafts; returns the new token of every row that is not finished."""
        weights, state = self.weights, self.state
        self._state = None
        with torch.no_grad():
            # A speculative step before this one may have left its commit pending.
            self._state, decoded = run_decode(weights, flush(state))
            pair = torch.stack((decoded.emitted, self._state.root_token)).tolist()
        return [[token] if count else [] for count, token in zip(*pair, strict=True)]

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
            lambda: bool(self.state.finished.all()),
            self._end,
            on_tokens,
        )

    def _end(self) -> None:
        """Apply what the last step may have left pending."""
        self._state = flush(self.state)
