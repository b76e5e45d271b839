"""Bits per byte of held-out documents by the neural model.

A document is read as END, tokens, END in windows of up to `WINDOW` tokens that overlap by half: every token but those
of the first window is predicted from at least half a window of text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from specc.train.bpe import END_ID
from specc.train.dataset import HeldOut, Tokens
from specc.train.gated_delta import GatedDeltaModel

WINDOW = 1024
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Score:
    """Held-out score of one domain (or of `all`): bits over predicted tokens and UTF-8 bytes."""

    bits: float
    tokens: int
    bytes: int

    @property
    def bits_per_byte(self) -> float:
        return self.bits / self.bytes

    @property
    def perplexity(self) -> float:
        """Per token."""
        return float(2 ** (self.bits / self.tokens))

    def to_json(self) -> dict[str, Any]:
        return {
            "bits_per_byte": round(self.bits_per_byte, 5),
            "perplexity": round(self.perplexity, 4),
            "tokens": self.tokens,
            "bytes": self.bytes,
        }


def scores(held_out: HeldOut, bits: np.ndarray[Any, Any]) -> dict[str, Score]:
    """Scores by domain, and `all`, from the bits of each domain."""
    lengths = np.diff(held_out.starts) + 1
    found = {
        name: Score(float(bits[place]), int(lengths[held_out.domain == place].sum()), held_out.bytes_of(place))
        for place, name in enumerate(held_out.domains)
    }
    found["all"] = Score(
        sum(s.bits for s in found.values()), sum(s.tokens for s in found.values()), sum(s.bytes for s in found.values())
    )
    return found


def windows(tokens: Tokens, window: int) -> Iterator[tuple[list[int], list[int]]]:
    """(inputs, targets) of a document; targets that an earlier window scores are IGNORED."""
    whole = [END_ID, *tokens.tolist(), END_ID]
    start = scored = 0
    while scored < len(whole) - 1:
        stop = min(start + window, len(whole) - 1)
        targets = whole[start + 1 : stop + 1]
        targets[: scored - start] = [IGNORED] * (scored - start)
        yield whole[start:stop], targets
        start, scored = start + window // 2, stop


def neural_bits(
    model: GatedDeltaModel, held_out: HeldOut, device: torch.device, batch: int | None = None, window: int = WINDOW
) -> np.ndarray[Any, Any]:
    """-log2 p of the held-out documents, summed by domain, in float32 (full precision matrix products)."""
    pieces = [
        (len(inputs), int(domain), inputs, targets)
        for domain, document in zip(held_out.domain, held_out.documents(), strict=True)
        for inputs, targets in windows(document, window)
    ]
    pieces.sort(key=lambda piece: piece[0])
    batch = batch or (64 if device.type == "cuda" else 8)
    bits = np.zeros(len(held_out.domains))
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.inference_mode():
            for first in range(0, len(pieces), batch):
                part = pieces[first : first + batch]
                longest = part[-1][0]
                ids = torch.tensor([p[2] + [END_ID] * (longest - p[0]) for p in part], device=device)
                targets = torch.tensor([p[3] + [IGNORED] * (longest - p[0]) for p in part], device=device)
                logits = model(ids).float()
                loss = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
                np.add.at(bits, [p[1] for p in part], loss.double().sum(1).cpu().numpy() / math.log(2))
    finally:
        torch.set_float32_matmul_precision(precision)
    return bits
