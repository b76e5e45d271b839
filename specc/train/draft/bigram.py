"""A bigram drafter from training text: how often each token followed each other one where the target wrote.

The law of a row is a Dirichlet-smoothed bigram (MacKay and Peto 1995): with c(a,b) times that b followed a, and c(a)
their sum,

    p(b | a) = (c(a,b) + s p(b)) / (c(a) + s),        p(b) = (c(b) + 1) / (n + V),

where c(b) counts the target's own tokens, n of them. A row holds the K most probable tokens of that law, so that a
token which was never seen is followed by the most frequent ones, and siblings always differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from specc.diagnostics import DiagnosticError, error
from specc.models.bigram import NEXT_LOG_PROB, NEXT_TOKEN, BigramGeometry, bigram_config
from specc.models.checkpoint import SINGLE
from specc.output import make_folder, replacing, write_json

CANDIDATES = 8
STRENGTH = 1.0


@dataclass(frozen=True, slots=True)
class Bigram:
    """Tables [V,K] (int32, float32), and what was counted: `pairs` of tokens in `texts` texts; `tokens_seen` different
    tokens were followed by another one."""

    next_token: Tensor
    next_log_prob: Tensor
    texts: int
    pairs: int
    tokens_seen: int

    @property
    def geometry(self) -> BigramGeometry:
        """V and K."""
        return BigramGeometry(*self.next_token.shape)

    @property
    def facts(self) -> dict[str, Any]:
        """Counts, for a recipe."""
        return {"texts": self.texts, "pairs": self.pairs, "tokens_seen": self.tokens_seen, "strength": STRENGTH}


def build_bigram(texts: Iterable[tuple[Tensor, int]], vocab_size: int, k: int = CANDIDATES) -> Bigram:
    """Count texts, given as (ids, prompt length): pairs whose second token the target wrote.

    Raises DiagnosticError: SPC476 where there is no such pair, SPC478 for ids beyond the vocabulary; ValueError unless
    1 <= k <= vocab_size.
    """
    if not 1 <= k <= vocab_size:
        raise ValueError(f"a row of {k} different tokens of {vocab_size} can't be")
    parts, count = [torch.zeros(0, dtype=torch.int64)], 0
    for ids, prompt in texts:
        wide, count = ids.to(torch.int64), count + 1
        if wide.numel() and not 0 <= int(wide.min()) <= int(wide.max()) < vocab_size:
            message = f"text {count - 1} has token ids that are not below the target's {vocab_size}"
            raise DiagnosticError([error("SPC478", message, help="the text is of another model")])
        first = max(prompt - 1, 0)
        parts.append(wide[first:-1] * vocab_size + wide[first + 1 :])
    pairs = torch.cat(parts)
    if not pairs.numel():
        message = f"none of the {count} texts has a token that the target wrote"
        raise DiagnosticError([error("SPC476", message, help="let the target write longer texts")])
    keys, counts = torch.unique(pairs, return_counts=True)
    next_token, next_log_prob = _tables(keys, counts, vocab_size, k)
    seen = int(torch.unique(keys // vocab_size).numel())
    return Bigram(next_token, next_log_prob, count, pairs.numel(), seen)


def _tables(keys: Tensor, counts: Tensor, vocab_size: int, k: int) -> tuple[Tensor, Tensor]:
    """The K best of every row, from the distinct pairs a * V + b [n], ascending, and how often each was seen [n]."""
    followed = torch.zeros(vocab_size, dtype=torch.int64).index_add(0, keys // vocab_size, counts)
    written = torch.zeros(vocab_size, dtype=torch.int64).index_add(0, keys % vocab_size, counts)
    overall = (written + 1.0).double() / float(counts.sum() + vocab_size)
    # Of the tokens that never followed a, none is better than the K best overall: a row needs no others.
    common = overall.sort(stable=True, descending=True).indices[:k]
    fallback = (torch.arange(vocab_size)[:, None] * vocab_size + common).flatten()
    every = torch.cat([keys, fallback])
    times = torch.cat([counts, torch.zeros_like(fallback)])
    every, place = torch.unique(every, return_inverse=True)
    times = torch.zeros_like(every).index_add(0, place, times)
    first, second = every // vocab_size, every % vocab_size
    law = (times + STRENGTH * overall[second]) / (followed[first] + STRENGTH)
    log_prob = law.log().float().clamp_max(0.0)
    # By row, then by log-probability, then by id: stable sorts, the last key first. `every` is in order of id already.
    order = log_prob.sort(stable=True, descending=True).indices
    order = order[first[order].sort(stable=True).indices]
    size = torch.bincount(first, minlength=vocab_size)
    begin = size.cumsum(0) - size
    best = order[begin[:, None] + torch.arange(k)]
    return second[best].to(torch.int32), log_prob[best]


def write_bigram(folder: Path, made: Bigram, facts: Mapping[str, Any] | None = None) -> None:
    """Write model.safetensors, config.json and recipe.json (the counts and `facts`), each whole or not at all.

    Raises DiagnosticError (SPC460) where the folder can't be written to.
    """
    make_folder(folder)
    tables = {NEXT_TOKEN: made.next_token.contiguous(), NEXT_LOG_PROB: made.next_log_prob.contiguous()}
    with replacing(folder / SINGLE, SafetensorError) as temporary:
        save_file(tables, temporary, metadata={"format": "pt"})
    write_json(folder / "config.json", bigram_config(made.geometry))
    write_json(folder / "recipe.json", {"kind": "bigram", **made.facts, **(facts or {})})
