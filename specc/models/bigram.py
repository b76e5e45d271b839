"""A bigram drafter: for every token the K tokens that follow it most often, with their log-probabilities. No network.

Its folder has config.json (`model_type: bigram`) and model.safetensors with two tables [V,K]: `next_token` (int32 or
int64) and `next_log_prob` (float32). The tokens of a row are distinct, the most probable first (by id among equals);
log-probabilities are at most 0 and may sum to less than 1 as probabilities, because they are those of a whole law of
which K entries are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specc.diagnostics import Diagnostic, DiagnosticError, error
from specc.models.checkpoint import check_checkpoint
from specc.models.families import read_config
from specc.models.weights import WeightEntry

REBUILD = "build the tables again: specc train draft SPEC"
MODEL_TYPE = "bigram"
NEXT_TOKEN, NEXT_LOG_PROB = "next_token", "next_log_prob"


@dataclass(frozen=True, slots=True)
class BigramGeometry:
    """V tokens of the target, K candidates for what follows each."""

    vocab_size: int
    candidates_per_token: int

    @property
    def shape(self) -> tuple[int, int]:
        """Of both tables."""
        return self.vocab_size, self.candidates_per_token


def bigram_weight_table(geometry: BigramGeometry) -> tuple[WeightEntry, ...]:
    """The two tables. Log-probabilities stay float32 whatever the target computes in: they rank candidates."""
    return (
        WeightEntry(NEXT_TOKEN, geometry.shape, (NEXT_TOKEN,), per_layer=False, kind="int64"),
        WeightEntry(NEXT_LOG_PROB, geometry.shape, (NEXT_LOG_PROB,), per_layer=False, kind="float32"),
    )


def bigram_config(geometry: BigramGeometry) -> dict[str, Any]:
    """config.json of such a folder."""
    return {
        "model_type": MODEL_TYPE,
        "vocab_size": geometry.vocab_size,
        "candidates_per_token": geometry.candidates_per_token,
    }


def table_faults(next_token: Tensor, next_log_prob: Tensor) -> Iterator[str]:
    """What is wrong with two tables [V,K] of one shape, in words; nothing if they are a bigram drafter's."""
    vocabulary = next_token.shape[0]
    if bool(((next_token < 0) | (next_token >= vocabulary)).any()):
        yield f"`{NEXT_TOKEN}` has ids outside the vocabulary of {vocabulary} tokens"
    ordered = next_token.sort(-1).values
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        yield f"`{NEXT_TOKEN}` lists a token twice in a row: siblings of a tree must differ"
    if not bool((next_log_prob <= 0).all()):
        yield f"`{NEXT_LOG_PROB}` has values above 0, or that are no numbers"
    elif bool((next_log_prob[:, 1:] > next_log_prob[:, :-1]).any()):
        yield f"`{NEXT_LOG_PROB}` has rows that are not sorted, the most probable first"


def read_bigram(folder: Path, geometry: BigramGeometry) -> tuple[Tensor, Tensor]:
    """`next_token` int64 and `next_log_prob` float32 [V,K] of a folder.

    Raises DiagnosticError. SPC410: config.json is of another kind or size; SPC418: values that are no bigram drafter's;
    SPC401 to SPC409: the folder itself.
    """
    config = read_config(folder)
    findings: list[Diagnostic] = []
    for key, value in bigram_config(geometry).items():
        if config.get(key) != value:
            message = f"{folder / 'config.json'} has {key} {config.get(key)!r}, the spec's drafter {value!r}"
            findings.append(error("SPC410", message, help="the spec describes another drafter"))
    if findings:
        raise DiagnosticError(findings)
    tables: dict[str, Tensor] = {}
    for item in check_checkpoint(folder, bigram_weight_table(geometry), 1):
        if item.header is not None:
            tables[item.entry.name] = _tensor(item.header.file, item.stored_name)
    next_token, next_log_prob = tables[NEXT_TOKEN].to(torch.int64), tables[NEXT_LOG_PROB]
    faults = list(table_faults(next_token, next_log_prob))
    if faults:
        raise DiagnosticError([error("SPC418", f"{folder}: {fault}", help=REBUILD) for fault in faults])
    return next_token, next_log_prob


def _tensor(file: Path, name: str) -> Tensor:
    try:
        with safe_open(file, framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
    except SafetensorError as problem:
        message = f"the weight file {file} is malformed: {problem}"
        raise DiagnosticError([error("SPC404", message, help=REBUILD)]) from None
    return tensor
