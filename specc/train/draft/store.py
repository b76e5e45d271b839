"""Stored training text: token ids in shards, each written whole.

    index.json                schema, target, options, what was kept and dropped by source, the shards
    shard-00000.safetensors   tokens int32 [n]; text i is tokens[starts[i]:starts[i + 1]] (starts int64 [k + 1]), of
                              which the first prompt_lengths[i] (int32 [k]) are the prompt, which carries no loss

Shards that hold more than texts (prompts on their way) may have further tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from specc.diagnostics import DiagnosticError, error
from specc.output import make_folder, replacing, write_json

SCHEMA = "specc.training_text/1"
INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts in one stream; shapes as in a shard. Iterating gives (ids, prompt length)."""

    tokens: Tensor
    starts: Tensor
    prompt_lengths: Tensor

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        ids = self.tokens[int(self.starts[number]) : int(self.starts[number + 1])]
        return ids, int(self.prompt_lengths[number])

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return (self[number] for number in range(len(self)))

    @property
    def continuation_tokens(self) -> int:
        """Tokens that the target wrote itself."""
        return self.tokens.numel() - int(self.prompt_lengths.sum())


def pack(texts: Sequence[Sequence[int]], prompt_lengths: Sequence[int]) -> Texts:
    """Texts from lists of ids."""
    starts = torch.zeros(len(texts) + 1, dtype=torch.int64)
    starts[1:] = torch.tensor([len(ids) for ids in texts], dtype=torch.int64).cumsum(0)
    tokens = torch.tensor([token for ids in texts for token in ids], dtype=torch.int32)
    return Texts(tokens, starts, torch.tensor(prompt_lengths, dtype=torch.int32))


@dataclass(frozen=True, slots=True)
class StoreIndex:
    """What index.json says: `target` is the fingerprint of the model, `shards` have `file`, `texts` and `tokens`,
    `counts` and `dropped` (by reason) are by source.
    """

    target: str
    options: dict[str, Any]
    counts: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, dict[str, int]] = field(default_factory=dict)
    shards: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write index.json, whole or not at all."""
        make_folder(folder)
        content = {
            "schema": SCHEMA,
            "target": self.target,
            "options": self.options,
            "counts": self.counts,
            "dropped": self.dropped,
            "facts": self.facts,
            "shards": self.shards,
        }
        write_json(folder / INDEX, content)

    @property
    def tokens(self) -> int:
        """Tokens of all shards, prompts with them."""
        return sum(int(shard["tokens"]) for shard in self.shards)


def read_index(folder: Path) -> StoreIndex:
    """Read index.json. SPC478 if the folder is no store."""
    try:
        content = json.loads((folder / INDEX).read_text("utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"its schema is {content['schema']!r}, not {SCHEMA!r}")
        names = ("target", "options", "counts", "dropped", "shards", "facts")
        return StoreIndex(**{name: content[name] for name in names})
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise _no_store(folder, problem) from None


def write_shard(path: Path, texts: Texts, **further: Tensor) -> None:
    """Write one shard under a temporary name and rename it. SPC460 if it can't be written."""
    tensors = {"tokens": texts.tokens, "starts": texts.starts, "prompt_lengths": texts.prompt_lengths} | further
    with replacing(path, SafetensorError) as temporary:
        save_file(tensors, temporary)


def read_shard(path: Path) -> tuple[Texts, dict[str, Tensor]]:
    """The texts of one shard, and its further tensors. SPC478 if it is none."""
    try:
        tensors = load_file(path)
        texts = Texts(*(tensors.pop(name) for name in ("tokens", "starts", "prompt_lengths")))
    except (OSError, SafetensorError, KeyError) as problem:
        raise _no_store(path.parent, problem) from None
    ends = texts.starts[-1] if len(texts.starts) else torch.tensor(-1)
    if len(texts.starts) != len(texts) + 1 or int(ends) != texts.tokens.numel():
        raise _no_store(path.parent, f"the tensors of {path.name} do not fit each other")
    return texts, tensors


def read_store(folder: Path) -> Texts:
    """All texts of a store, shard after shard. SPC478 if the folder is no store."""
    parts = [read_shard(folder / str(shard["file"]))[0] for shard in read_index(folder).shards]
    return joined(parts)


def joined(parts: Sequence[Texts]) -> Texts:
    """Texts of several shards in one stream."""
    if not parts:
        return pack([], [])
    sizes = torch.tensor([0, *(part.tokens.numel() for part in parts)]).cumsum(0)
    starts = [part.starts[1:] + int(offset) for part, offset in zip(parts, sizes[:-1], strict=True)]
    first = torch.zeros(1, dtype=torch.int64)
    lengths = torch.cat([part.prompt_lengths for part in parts])
    return Texts(torch.cat([part.tokens for part in parts]), torch.cat([first, *starts]), lengths)


def _no_store(folder: Path, problem: object) -> DiagnosticError:
    message = f"{folder} is no store of training text: {problem}"
    return DiagnosticError([error("SPC478", message, help="give another folder, or remove it to make it anew")])
