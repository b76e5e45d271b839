"""Reads safetensors by torch alone: headers are checked against the weight table before anything is allocated."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specc.backends.printing.runtime.abi import (
    MATRICES_BY_COLUMNS,
    VOCAB_SIZE,
    WEIGHTS,
    WeightLayout,
    Weights,
)
from specc.backends.printing.runtime.prepared import prepared, stored_shape

STORED_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "BOOL": torch.bool,
}
MAX_HEADER_BYTES = 100_000_000
INDEX_FILE = "model.safetensors.index.json"


class StoredTensor(NamedTuple):
    """Where a tensor's bytes lie: file, first byte, last byte + 1; its dtype and shape."""

    file: Path
    start: int
    stop: int
    dtype: torch.dtype
    shape: tuple[int, ...]


def checked_entry(
    path: Path, name: str, entry: Any, base: int, size: int
) -> StoredTensor:
    """One header entry. Raises ValueError unless its bytes lie in the file and fit its shape."""
    try:
        dtype, shape = STORED_TYPES[entry["dtype"]], tuple(entry["shape"])
        start, stop = entry["data_offsets"]
        sizes = [int(item) for item in (*shape, start, stop)]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}: tensor {name!r} has a malformed header") from None
    count = 1
    for item in sizes[:-2]:
        count *= item
    wanted = count * torch.empty((), dtype=dtype).element_size()
    if min(sizes) < 0 or stop - start != wanted or base + stop > size:
        raise ValueError(f"{path}: tensor {name!r} does not fit its file")
    return StoredTensor(path, base + start, base + stop, dtype, shape)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors that a safetensors file declares. Raises ValueError if it is malformed."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise ValueError(f"{path} is not a safetensors file")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise ValueError(f"{path} has a malformed header") from None
    entries = header.items() if isinstance(header, dict) else [("header", None)]
    return {
        name: checked_entry(path, name, entry, 8 + length, size)
        for name, entry in entries
        if name != "__metadata__"
    }


def inside(folder: Path, name: str) -> Path:
    """`folder/name`. Raises ValueError if it is not a file of that folder."""
    root = folder.resolve()
    roots = [root]
    if root.parent.name == "snapshots":
        # A hub cache links its files to the blobs of the same repository.
        roots.append(root.parent.parent / "blobs")
    path = (root / name).resolve()
    if os.path.isabs(name) or not any(path.is_relative_to(item) for item in roots):
        raise ValueError(f"{name!r} lies outside the checkpoint folder {folder}")
    if not path.is_file():
        raise ValueError(f"the checkpoint folder {folder} has no file {name!r}")
    return path


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint folder. Raises ValueError if it has none."""
    if not folder.is_dir():
        raise ValueError(f"the checkpoint folder {folder} does not exist")
    if (folder / "model.safetensors").exists():
        return read_header(inside(folder, "model.safetensors"))
    if not (folder / INDEX_FILE).exists():
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        if len(names) != 1:
            raise ValueError(f"{folder} has no model.safetensors and no {INDEX_FILE}")
        return read_header(inside(folder, names[0]))
    try:
        text = inside(folder, INDEX_FILE).read_text(encoding="utf-8")
        files = dict(json.loads(text)["weight_map"])
        shards = sorted({str(name) for name in files.values()})
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{folder / INDEX_FILE} is malformed") from None
    found: dict[str, StoredTensor] = {}
    for shard in shards:
        found.update(read_header(inside(folder, shard)))
    return found


def tensor_names(weight: WeightLayout, index: int) -> list[str]:
    """The stored tensors that tensor `index` of a weight is the concatenation of."""
    layer = str(weight.first_layer + index * weight.layer_step)
    return [
        source.replace("{layer}", layer).replace("{expert}", str(expert))
        for expert in range(max(weight.experts, 1))
        for source in weight.sources
    ]


def check_weight(
    weight: WeightLayout, stored: dict[str, StoredTensor], names: list[str]
) -> None:
    """Raise ValueError unless the tensors `names` exist and make up this weight.

    The tensors of every expert have as many rows together as those of any other.
    """
    missing = [name for name in names if name not in stored]
    if missing:
        raise ValueError(f"the checkpoint has no tensor {missing[0]!r}")
    parts = [stored[name] for name in names]
    shape = stored_shape(weight.form, weight.shape)
    for name, part in zip(names, parts, strict=True):
        if part.dtype.is_floating_point != weight.dtype.is_floating_point:
            raise ValueError(f"tensor {name!r} has dtype {part.dtype}")
        if part.shape[1:] != shape[1:] or not part.shape:
            raise ValueError(
                f"tensor {name!r} has shape {part.shape}, expected {shape}"
            )
    size = len(weight.sources)
    wanted = shape[0] // max(weight.experts, 1)
    for first in range(0, len(names), size):
        rows = sum(part.shape[0] for part in parts[first : first + size])
        if rows != wanted:
            raise ValueError(
                f"tensors {names[first : first + size]} have {rows} rows together, "
                f"expected {wanted}"
            )


# Tensors that may be stored although nothing reads them: a tied output projection, rope
# buffers, the layers for multi-token prediction (`mtp.`), and of an EAGLE-3 head its copy
# of the target's embeddings and the mask `t2d`.
UNREAD = ("lm_head.weight", "embed_tokens.weight", "t2d")
# An EAGLE-3 head's only layer has one of two names in public checkpoints.
HEAD_LAYER = ("layers.0.", "midlayer.")


def known_names(
    stored: dict[str, StoredTensor], wanted: set[str]
) -> dict[str, StoredTensor]:
    """The tensors under the names that the weights are looked for by."""
    other, own = HEAD_LAYER
    renamed = {
        own + name.removeprefix(other) if name.startswith(other) else name: tensor
        for name, tensor in stored.items()
    }
    is_head = any(name.startswith(own) for name in wanted)
    return renamed if is_head and len(renamed) == len(stored) else stored


def check_offsets(name: str, value: Tensor) -> None:
    """Raise ValueError unless target id = id + d2t[id] rises and stays in the vocabulary."""
    if not name.endswith("d2t"):
        return
    target = value + torch.arange(value.shape[0], device=value.device)
    rises = bool((target[1:] > target[:-1]).all())
    if not rises or int(target.min()) < 0 or int(target.max()) >= VOCAB_SIZE:
        raise ValueError(f"{name!r} does not map to distinct ids below {VOCAB_SIZE}")


def check_followers(name: str, value: Tensor) -> None:
    """Raise ValueError unless the rows of a bigram drafter's table are distinct ids.

    The table [V,K] has a row for every token of the vocabulary.
    """
    if not name.endswith("next_token"):
        return
    ordered = value.sort(-1).values
    if int(value.min()) < 0 or int(value.max()) >= VOCAB_SIZE:
        raise ValueError(f"{name!r} has ids that are not below {VOCAB_SIZE}")
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise ValueError(f"{name!r} has a row that lists a token twice")


def check_finite(name: str, value: Tensor) -> None:
    """Raise ValueError for NaN or an infinity: a sum has one if any value is one.

    A sum may also overflow, so that only then every value is looked at.
    """
    if not value.is_floating_point() or bool(value.sum().isfinite()):
        return
    if not bool(value.isfinite().all()):
        raise ValueError(f"tensor {name!r} has values that are no finite numbers")


def check_unused(stored: dict[str, StoredTensor], used: set[str], folder: Path) -> None:
    """Raise ValueError for a tensor that no weight reads: the spec describes another model."""
    for name in sorted(set(stored) - used):
        unread = name in UNREAD or name.startswith("mtp.")
        if not unread and not name.endswith("rotary_emb.inv_freq"):
            raise ValueError(
                f"{folder} has a tensor {name!r} that the spec does not know"
            )


def read_tensor(files: dict[Path, Tensor], stored: StoredTensor) -> Tensor:
    """A tensor on the file's mapped memory (a copy where its bytes are not aligned)."""
    if stored.file not in files:
        size = stored.file.stat().st_size
        files[stored.file] = torch.from_file(
            str(stored.file), shared=False, size=size, dtype=torch.uint8
        )
    data = files[stored.file][stored.start : stored.stop]
    if stored.start % torch.empty((), dtype=stored.dtype).element_size():
        data = data.clone()
    return data.view(stored.dtype).view(stored.shape)


def stored_by_columns(value: Tensor) -> Tensor:
    """The same matrix [out, in] with its columns contiguous.

    `x @ value.T` then streams the weights for a few rows of x too; on CPUs it is as fast
    for 1 row and 1.3 to 1.8 times as fast for 4 to 12 rows. A matrix of all experts is read
    expert by expert, a block of rows each: by columns, those blocks would be scattered
    (1.15 times slower for 1 row, 1.5 times for 4 to 8).
    """
    return value.t().contiguous().t() if value.dim() == 2 else value


def load_weights(
    directory: str | os.PathLike[str],
    draft_directory: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
) -> Weights:
    """The weights of a checkpoint folder in the Hugging Face layout, and of the drafter's folder.

    Only safetensors files are read. Raises ValueError where the folder does not hold the
    model that the spec describes.
    """
    folders = {"target": Path(directory)}
    if any(weight.model == "draft" for weight in WEIGHTS):
        if draft_directory is None:
            raise ValueError("this module has a drafter: draft_directory is needed")
        folders["draft"] = Path(draft_directory)
    wanted = {source for weight in WEIGHTS for source in weight.sources}
    stored = {
        model: known_names(stored_tensors(folder), wanted)
        for model, folder in folders.items()
    }
    plan: list[list[list[str]]] = []
    used: dict[str, set[str]] = {model: set() for model in folders}
    for weight in WEIGHTS:
        count = 1 if weight.layers is None else weight.layers
        layers = [tensor_names(weight, index) for index in range(count)]
        for names in layers:
            check_weight(weight, stored[weight.model], names)
            used[weight.model].update(names)
        plan.append(layers)
    for model, folder in folders.items():
        check_unused(stored[model], used[model], folder)
    files: dict[Path, Tensor] = {}
    values: list[Any] = []
    for weight, layers in zip(WEIGHTS, plan, strict=True):
        made = []
        for names in layers:
            parts = [read_tensor(files, stored[weight.model][name]) for name in names]
            for name, part in zip(names, parts, strict=True):
                check_finite(name, part)
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
            placed = whole.to(device=device, dtype=weight.dtype, copy=True)
            check_offsets(weight.name, placed)
            check_followers(weight.name, placed)
            placed = prepared(weight.form, placed)
            by_columns = MATRICES_BY_COLUMNS and weight.experts == 0
            made.append(stored_by_columns(placed) if by_columns else placed)
        values.append(made[0] if weight.layers is None else tuple(made))
    return Weights(*values)
