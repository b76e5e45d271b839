"""The lossless check: speculative text against plain decoding by the same module, token for token.

Where the texts differ, the position, both tokens and two numbers of plain decoding's logits are reported: the margin of
the two best tokens, and the gap between plain's token and the speculative one. A gap above the numerical bound is a
failure. After a difference the speculative decoder goes on from plain's token (teacher-forced), so that a long run
tests every step and not only those before the first difference.

The numerical bound is `RELATIVE_BOUND[dtype]` times the largest magnitude of that position's logits. Verifying N nodes
at once and decoding one token at a time group the same sums differently: for SmolLM2-135M in float32 on a CPU the
logits of the accepted nodes of a 16-node tree and those of plain decoding differed by at most 4e-6 of the largest one,
measured over two texts of the demonstration; the bound is five times that. Those of the other types are the same
multiple of their rounding unit (about 170), capped for the 16-bit types, and have not been measured. On the CPU in
float32 no difference at all is expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specc.runtime.generate import BatchResult, Request, decode_batch
from specc.runtime.module import DecoderLike, GeneratedModule

RELATIVE_BOUND = {"float64": 4e-14, "float32": 2e-5, "bfloat16": 3e-2, "float16": 2e-2}


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a speculative text left plain decoding's. A token is None where that text had already ended."""

    request: int
    name: str
    position: int
    plain: int | None
    speculative: int | None
    margin: float
    gap: float
    bound: float

    @property
    def allowed(self) -> bool:
        """Whether rounding can explain it."""
        return self.gap <= self.bound

    def as_json(self) -> dict[str, Any]:
        """JSON-ready; an infinite gap (one text ended) is null."""
        gap = None if self.gap == float("inf") else self.gap
        margin = None if self.margin == float("inf") else self.margin
        return {
            "request": self.request,
            "name": self.name,
            "position": self.position,
            "plain": self.plain,
            "speculative": self.speculative,
            "margin": margin,
            "gap": gap,
            "bound": self.bound,
            "allowed": self.allowed,
        }


@dataclass(slots=True)
class LosslessReport:
    """What was compared, and what plain decoding took."""

    tokens: int = 0
    differences: list[Difference] = field(default_factory=list)
    plain: list[BatchResult] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a difference is more than rounding."""
        return any(not item.allowed for item in self.differences)

    @property
    def plain_tokens_per_second(self) -> float:
        """Decode speed without drafts; the prefill and its token are left out."""
        tokens = sum(len(result.tokens) - 1 for batch in self.plain for result in batch.results if result.tokens)
        seconds = sum(batch.decode_seconds for batch in self.plain)
        return tokens / seconds if seconds else 0.0


def first_difference(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which the texts differ, None if they are equal; an early end is a difference."""
    for position, pair in enumerate(zip(plain, other, strict=False)):
        if pair[0] != pair[1]:
            return position
    return None if len(plain) == len(other) else min(len(plain), len(other))


def check_batch(
    report: LosslessReport,
    module: GeneratedModule,
    decoder: DecoderLike,
    speculative: BatchResult,
    max_new_tokens: int,
    seed: int = 0,
) -> None:
    """Decode the batch's requests plainly, compare, and add to `report`. An interrupted batch is compared as far as
    both texts go."""
    requests = [result.request for result in speculative.results]
    plain = decode_batch(decoder, requests, max_new_tokens, seed=seed, speculative=False)
    report.plain.append(plain)
    cut = plain.interrupted or speculative.interrupted
    for row, (ours, theirs) in enumerate(zip(plain.results, speculative.results, strict=True)):
        length = min(len(ours.tokens), len(theirs.tokens))
        wanted, text = (ours.tokens[:length], theirs.tokens[:length]) if cut else (ours.tokens, theirs.tokens)
        report.tokens += len(wanted)
        start = 0
        while (position := first_difference(wanted[start:], text)) is not None:
            where = start + position
            found = (_at(wanted, where), _at(text, position))
            report.differences.append(_difference(module, decoder, requests, row, where, found))
            start = where + 1
            if start >= len(wanted):
                break
            forced = Request(requests[row].number, requests[row].name, (*requests[row].ids, *wanted[:start]))
            text = decode_batch(decoder, [forced], max_new_tokens - start, seed=seed).results[0].tokens
            text = text[: len(wanted) - start] if cut else text


def _at(tokens: Sequence[int], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None


def _difference(
    module: GeneratedModule,
    decoder: DecoderLike,
    requests: Sequence[Request],
    row: int,
    position: int,
    found: tuple[int | None, int | None],
) -> Difference:
    plain, other = found
    margin, gap, bound = float("inf"), float("inf"), 0.0
    if plain is not None and other is not None:
        logits = plain_logits(module, decoder, requests, position)[row].double()
        best = logits.topk(2).values
        margin, gap = float(best[0] - best[1]), float(logits[plain] - logits[other])
        dtype = str(module.SPEC["runtime"]["dtype"])
        bound = RELATIVE_BOUND[dtype] * float(logits.abs().max())
    return Difference(requests[row].number, requests[row].name, position, plain, other, margin, gap, bound)


def plain_logits(
    module: GeneratedModule, decoder: DecoderLike, requests: Sequence[Request], position: int
) -> torch.Tensor:
    """The logits [B,V] from which plain decoding of this batch picked its tokens number `position`.

    The batch is decoded again up to there, so that the numbers are those of the comparison and not of another shape.
    """
    prompts = [list(request.ids) for request in requests]
    with torch.no_grad():
        if position == 0:
            width = max(map(len, prompts))
            state = module.init_state(len(prompts))
            device = state.length.device
            ids = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts], device=device)
            lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
            return module.prefill(decoder.weights, state, ids, lengths)[1]
        decoder.start(prompts, position + 1, requests=[request.number for request in requests])
        for _ in range(position - 1):
            decoder.plain_step()
        return module.decode(decoder.weights, decoder.state)[1].logits
