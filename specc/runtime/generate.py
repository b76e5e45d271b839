"""The generate loop: batches of requests through a generated module's Decoder, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specc.diagnostics import DiagnosticError, error
from specc.runtime.module import DecoderLike, GeneratedModule
from specc.runtime.trace import StepTrace, prefill_trace, step_traces

Finish = Literal["stop", "limit", "interrupted"]
OnTokens = Callable[[int, list[int]], None]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to decode. `number` names its random stream, so that its text does not depend on its batch."""

    number: int
    name: str
    ids: tuple[int, ...]


@dataclass(slots=True)
class RequestResult:
    """What a request got: its tokens, its steps (none for plain decoding), and seconds of the steps it took part in."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    traces: list[StepTrace] = field(default_factory=list)
    seconds: float = 0.0
    finish: Finish = "interrupted"


@dataclass(slots=True)
class BatchResult:
    """The results of one batch, and what its stages took for all rows together."""

    results: list[RequestResult]
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    stage_seconds: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False


def check_requests(requests: Sequence[Request], module: GeneratedModule) -> None:
    """Raise DiagnosticError (SPC414) for every prompt that the compiled module can't take."""
    capacity, vocabulary = module.MAX_SEQUENCE_LENGTH, module.VOCAB_SIZE
    found = []
    for request in requests:
        name, count = request.name, len(request.ids)
        if not count:
            found.append(error("SPC414", f"prompt `{name}` has no tokens", help="give a text"))
        elif count >= capacity:
            message = f"prompt `{name}` has {count} tokens; runtime.max_sequence_length is {capacity}"
            found.append(error("SPC414", message, help="shorten the prompt, or raise runtime.max_sequence_length"))
        elif max(request.ids) >= vocabulary:
            message = f"prompt `{name}` has the token {max(request.ids)}; the target's vocab_size is {vocabulary}"
            found.append(error("SPC414", message, help="the folder's tokenizer is not this model's"))
    if found:
        raise DiagnosticError(found)


def batches(requests: Sequence[Request], size: int) -> list[Sequence[Request]]:
    """The requests in order, at most `size` at once."""
    return [requests[first : first + size] for first in range(0, len(requests), size)]


def decode_batch(
    decoder: DecoderLike,
    requests: Sequence[Request],
    max_new_tokens: int,
    *,
    seed: int = 0,
    speculative: bool = True,
    on_tokens: OnTokens | None = None,
) -> BatchResult:
    """Decode every request to a stop token, `max_new_tokens` or the module's capacity.

    `on_tokens(row, tokens)` is called with the new tokens of a row. Ctrl-C ends the batch; the result then holds what
    was produced before the step that it interrupted.
    """
    batch = BatchResult([RequestResult(request) for request in requests])
    try:
        _decode(decoder, batch, max_new_tokens, seed, speculative, on_tokens)
    except KeyboardInterrupt:
        batch.interrupted = True
    return batch


def _decode(
    decoder: DecoderLike,
    batch: BatchResult,
    max_new_tokens: int,
    seed: int,
    speculative: bool,
    on_tokens: OnTokens | None,
) -> None:
    results = batch.results
    numbers = [result.request.number for result in results]
    prompts = [list(result.request.ids) for result in results]
    began = time.perf_counter()
    first = decoder.start(prompts, max_new_tokens, seed=seed, requests=numbers)
    finished = decoder.state.finished.tolist()
    batch.prefill_seconds = time.perf_counter() - began
    for row, token in enumerate(first):
        results[row].traces += [prefill_trace(numbers[row], token, batch.prefill_seconds)] if speculative else []
        _take(results, row, [token], max_new_tokens, finished, on_tokens)
    count = 0
    while not all(finished):
        count += 1
        began = time.perf_counter()
        step = decoder.step() if speculative else None
        emitted = decoder.plain_step() if step is None else step.emitted
        finished = decoder.state.finished.tolist()
        seconds = time.perf_counter() - began
        batch.decode_seconds += seconds
        if step is not None:
            for row, trace in step_traces(step, numbers, count).items():
                results[row].traces.append(trace)
            for stage, spent in step.seconds.items():
                batch.stage_seconds[stage] = batch.stage_seconds.get(stage, 0.0) + spent
        for row, new in enumerate(emitted):
            if new:
                results[row].seconds += seconds
                _take(results, row, new, max_new_tokens, finished, on_tokens)


def _take(
    results: list[RequestResult],
    row: int,
    new: list[int],
    max_new_tokens: int,
    finished: Sequence[bool],
    on_tokens: OnTokens | None,
) -> None:
    """Add a row's new tokens and say why it ended, if it did."""
    result = results[row]
    result.tokens += new
    if finished[row]:
        result.finish = "limit" if len(result.tokens) >= max_new_tokens else "stop"
    if on_tokens is not None:
        on_tokens(row, new)
