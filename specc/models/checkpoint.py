"""Checkpoints in the Hugging Face layout: safetensors in, tensors under logical names out, and back.

Only safetensors is read, never pickle. Headers are checked against the weight table before anything is
allocated, and everything that is wrong is reported at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from specc.diagnostics import Diagnostic, DiagnosticError, error
from specc.models.families import LAYOUT
from specc.models.finite import all_finite, check_finite, finding
from specc.models.geometry import Geometry
from specc.models.safetensors_header import TensorHeader, read_header
from specc.models.weights import Kind, WeightEntry
from specc.output import make_folder, replacing, write_json

Weights: TypeAlias = dict[str, torch.Tensor | tuple[torch.Tensor, ...]]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 << 20
MAX_LISTED = 8
COPY_AGAIN = "fetch or copy the checkpoint again"
DESCRIBES = "does the spec describe this checkpoint (family, layers, biases, tied embeddings)?"
ALLOWED_TYPES: Mapping[Kind, frozenset[str]] = {
    "float": frozenset({"F64", "F32", "F16", "BF16"}),
    "float32": frozenset({"F32"}),
    "int64": frozenset({"I64", "I32"}),
    "bool": frozenset({"BOOL"}),
}
FIXED_TYPES: Mapping[Kind, torch.dtype] = {"float32": torch.float32, "int64": torch.int64, "bool": torch.bool}
# Buffers that old checkpoints store although they follow from the config.
IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)
# Multi-token-prediction layers that hybrid checkpoints carry beside the model.
IGNORED_PREFIXES = ("mtp.",)
UNTIED_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Where one part of a tensor of the table lies: `header` is None for an absent optional weight."""

    entry: WeightEntry
    layer: int
    shape: tuple[int, ...]
    stored_name: str
    header: TensorHeader | None


def load_checkpoint(
    folder: Path,
    table: Sequence[WeightEntry],
    geometry: Geometry,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Weights:
    """The weights of `table` from `folder`, by logical name; a tuple of one tensor per layer if `per_layer`.

    Floating-point weights are converted to `dtype`; `d2t` becomes int64 and `t2d` stays bool. Absent optional
    weights have no key. Raises DiagnosticError with all findings (SPC401 and SPC403 to SPC409; SPC419 for NaN).
    """
    findings: list[Diagnostic] = []
    wanted = check_checkpoint(folder, table, geometry.num_hidden_layers)
    with _trusted(folder), ExitStack() as stack:
        files: dict[Path, Any] = {}

        def read(item: _Wanted, header: TensorHeader) -> torch.Tensor:
            if header.file not in files:
                files[header.file] = stack.enter_context(safe_open(header.file, framework="pt", device="cpu"))
            tensor: torch.Tensor = files[header.file].get_tensor(item.stored_name)
            if not all_finite(tensor):
                findings.append(finding(header.file, item.stored_name, tensor))
            return tensor.to(device=device, dtype=FIXED_TYPES.get(item.entry.kind, dtype))

        collected: dict[str, dict[int, list[torch.Tensor]]] = {}
        for item in wanted:
            if item.header is not None:
                layers = collected.setdefault(item.entry.name, {})
                layers.setdefault(item.layer, []).append(read(item, item.header))
    if findings:
        raise DiagnosticError(findings[:MAX_LISTED])
    whole = {
        name: tuple(parts[0] if len(parts) == 1 else torch.cat(parts) for parts in layers.values())
        for name, layers in collected.items()
    }
    per_layer = {entry.name: entry.per_layer for entry in table}
    return {name: found if per_layer[name] else found[0] for name, found in whole.items()}


def check_checkpoint(folder: Path, table: Sequence[WeightEntry], num_layers: int) -> list[_Wanted]:
    """Where each tensor of `table` lies in `folder`; only headers are read.

    Raises DiagnosticError with all findings (SPC401 and SPC403 to SPC409).
    """
    headers = checkpoint_headers(folder)
    wanted, findings = _match(headers, table, num_layers)
    findings += _tied_head(headers, table)
    if findings:
        raise DiagnosticError(findings)
    return wanted


def check_values(folder: Path, table: Sequence[WeightEntry], num_layers: int) -> None:
    """`check_checkpoint`, then every tensor of `table` is read: SPC419 for one with NaN or an infinity."""
    wanted = check_checkpoint(folder, table, num_layers)
    check_finite((item.header.file, item.stored_name) for item in wanted if item.header is not None)


@contextmanager
def _trusted(folder: Path) -> Iterator[None]:
    """Turn what `safetensors` itself refuses (overlaps, holes, a file cut meanwhile) into SPC404."""
    try:
        yield
    except SafetensorError as problem:
        message = f"a weight file of {folder} is malformed: {problem}"
        raise DiagnosticError([error("SPC404", message, help=COPY_AGAIN)]) from None


def checkpoint_headers(folder: Path) -> dict[str, TensorHeader]:
    """Every tensor that the checkpoint declares, by its stored name; reads no tensor data."""
    if not folder.is_dir():
        raise DiagnosticError([error("SPC401", f"the model folder {folder} does not exist", help=LAYOUT)])
    if (folder / SINGLE).exists():
        return read_header(_inside(folder, SINGLE))
    if (folder / INDEX).exists():
        return _indexed_headers(folder)
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(others) == 1:
        return read_header(_inside(folder, others[0]))
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    hint = f"it has {', '.join(pickles[:3])}: pickle is never read; " if pickles else ""
    raise DiagnosticError(
        [
            error(
                "SPC403",
                f"{folder} has no {SINGLE} and no {INDEX}",
                help=f"{hint}convert the weights to safetensors",
            )
        ]
    )


def _indexed_headers(folder: Path) -> dict[str, TensorHeader]:
    path = _inside(folder, INDEX)
    try:
        if path.stat().st_size > MAX_INDEX_BYTES:
            raise ValueError(f"it is larger than {MAX_INDEX_BYTES} bytes")
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if not all(isinstance(name, str) for name in weight_map.values()):
            raise ValueError("weight_map must map tensor names to file names")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise DiagnosticError([error("SPC404", f"{path} is malformed: {problem}", help=COPY_AGAIN)]) from None
    shards = {name: read_header(_inside(folder, name)) for name in sorted(set(weight_map.values()))}
    absent = [name for name, shard in weight_map.items() if name not in shards[shard]]
    if absent:
        message = f"{path} lists tensors that their files do not have: {_listed(absent)}"
        raise DiagnosticError([error("SPC404", message, help=COPY_AGAIN)])
    return {name: shards[shard][name] for name, shard in weight_map.items()}


def _inside(folder: Path, name: str) -> Path:
    """`folder/name`, refused (SPC405) if it leads out of the folder by its name or by a link.

    The one exception is the hub's own cache layout, where the files of `snapshots/<revision>/` are links into
    `blobs/` of the same repository.
    """
    root = folder.resolve()
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    target = (root / name).resolve()
    if os.path.isabs(name) or not any(target.is_relative_to(allowed) for allowed in roots):
        message = f"{folder / INDEX} names {name!r}, which lies outside the checkpoint folder"
        raise DiagnosticError([error("SPC405", message, help="copy the file into the folder")])
    if not target.is_file():
        raise DiagnosticError([error("SPC404", f"{folder} has no file {name!r}", help=COPY_AGAIN)])
    return target


def _match(
    headers: Mapping[str, TensorHeader], table: Sequence[WeightEntry], num_layers: int
) -> tuple[list[_Wanted], list[Diagnostic]]:
    """Pair table and headers; findings: missing, unexpected, wrongly shaped and wrongly typed tensors."""
    wanted: list[_Wanted] = []
    missing: list[str] = []
    findings: list[Diagnostic] = []
    for entry in table:
        for layer, part in ((number, part) for number in entry.layers(num_layers) for part in entry.parts(number)):
            stored = next((known for known in (part.name, *part.aliases) if known in headers), None)
            if stored is None and not entry.optional:
                missing.append(part.name)
            header = None if stored is None else headers[stored]
            wanted.append(_Wanted(entry, layer, part.shape, stored or part.name, header))
    for item in wanted:
        if item.header is None:
            continue
        if item.header.shape != item.shape:
            message = f"tensor `{item.stored_name}` has shape {_shape(item.header.shape)}"
            expected = f"the spec's geometry gives {_shape(item.shape)}"
            findings.append(error("SPC408", f"{message}; {expected}", help=DESCRIBES))
        if item.header.dtype not in ALLOWED_TYPES[item.entry.kind]:
            known = ", ".join(sorted(ALLOWED_TYPES[item.entry.kind]))
            message = f"tensor `{item.stored_name}` has type {item.header.dtype}"
            findings.append(error("SPC409", message, help=f"convert it to one of {known}"))
    used = {item.stored_name for item in wanted}
    tied = all(entry.checkpoint_name != UNTIED_HEAD for entry in table)
    unexpected = [
        name
        for name in headers
        if name not in used
        and not name.endswith(IGNORED_SUFFIXES)
        and not name.startswith(IGNORED_PREFIXES)
        and not (tied and name == UNTIED_HEAD)
    ]
    if missing:
        text = f"the checkpoint lacks {len(missing)} tensors: {_listed(missing)}"
        findings.insert(0, error("SPC406", text, help=DESCRIBES))
    if unexpected:
        text = f"the checkpoint has {len(unexpected)} tensors that the spec does not know: {_listed(unexpected)}"
        findings.append(error("SPC407", text, help=DESCRIBES))
    return wanted, findings


def _tied_head(headers: Mapping[str, TensorHeader], table: Sequence[WeightEntry]) -> list[Diagnostic]:
    """Tied checkpoints may store the head once more; a head that differs from the embeddings is refused."""
    names = {entry.name: entry.checkpoint_name for entry in table}
    head, embedding = headers.get(UNTIED_HEAD), headers.get(names.get("embed_tokens", ""))
    if "lm_head" in names or head is None or embedding is None:
        return []
    with (
        _trusted(head.file.parent),
        safe_open(head.file, framework="pt") as a,
        safe_open(embedding.file, framework="pt") as b,
    ):
        if torch.equal(a.get_tensor(UNTIED_HEAD), b.get_tensor(names["embed_tokens"])):
            return []
    message = f"the embeddings are tied by the spec, but `{UNTIED_HEAD}` differs from them"
    return [error("SPC407", message, help="set tie_word_embeddings: false")]


def save_checkpoint(
    folder: Path,
    weights: Mapping[str, torch.Tensor | tuple[torch.Tensor, ...]],
    table: Sequence[WeightEntry],
    config: Mapping[str, Any],
    *,
    num_shards: int = 1,
) -> None:
    """Write `weights` and config.json so that `load_checkpoint` and transformers can load them.

    With `num_shards` > 1 the tensors are dealt out over that many files and an index. Every file is written
    under a temporary name and renamed. Raises KeyError if a weight that is not optional is absent, DiagnosticError
    (SPC460) if a file can't be written.
    """
    make_folder(folder)
    tensors = stored_tensors(weights, table)
    shards: list[dict[str, torch.Tensor]] = [{} for _ in range(num_shards)]
    for position, (name, tensor) in enumerate(sorted(tensors.items())):
        shards[position % num_shards][name] = tensor.detach().contiguous().cpu()
    weight_map: dict[str, str] = {}
    for position, shard in enumerate(shards):
        name = SINGLE if num_shards == 1 else f"model-{position + 1:05}-of-{num_shards:05}.safetensors"
        with replacing(folder / name, SafetensorError) as temporary:
            save_file(shard, temporary, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    if num_shards > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    write_json(folder / "config.json", config)


def stored_tensors(
    weights: Mapping[str, torch.Tensor | tuple[torch.Tensor, ...]], table: Sequence[WeightEntry]
) -> dict[str, torch.Tensor]:
    """Logical weights -> tensors under their checkpoint names (a state dict of the Hugging Face class)."""
    tensors: dict[str, torch.Tensor] = {}
    for entry in table:
        if entry.name not in weights and entry.optional:
            continue
        value = weights[entry.name]
        values = value if isinstance(value, tuple) else (value,)
        layers = entry.layers(entry.first_layer + 1 + (len(values) - 1) * entry.layer_step)
        for layer, tensor in zip(layers, values, strict=True):
            parts = entry.parts(layer)
            split = tensor.split([part.shape[0] for part in parts]) if len(parts) > 1 else (tensor,)
            tensors.update((part.name, piece) for part, piece in zip(parts, split, strict=True))
    return tensors


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _listed(names: Iterable[str]) -> str:
    """The first few names, quoted, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    return ", ".join(f"`{name}`" for name in found[:MAX_LISTED]) + more
