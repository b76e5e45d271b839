"""`manifest.json` of an exported folder: which file is which step, and what its tensors are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from specc.backends.base import ModuleInfo
from specc.backends.export.draws import Draws, Rows, Table
from specc.backends.export.packages import versions
from specc.backends.export.signature import UNIFORMS, Operand, Sizes, StepSignature
from specc.ir.dims import TEXT_DTYPE, dtype_text
from specc.ir.port import Port
from specc.program import DecodeProgram

FORMAT = "specc export 1"
NAME = "manifest.json"
MODULE = "module.py"


@dataclass(frozen=True, slots=True)
class StepFile:
    """One exported step: its signature and the file's contents."""

    signature: StepSignature
    file: str
    content: bytes


def manifest_of(
    target: str, program: DecodeProgram, info: ModuleInfo, sizes: Sizes, source: str, steps: Sequence[StepFile]
) -> dict[str, Any]:
    """The manifest as plain data, the same for the same spec and versions."""
    return {
        "format": FORMAT,
        "target": target,
        "name": program.name,
        "fingerprint": info.fingerprint,
        "pipeline": info.pipeline,
        "versions": versions(target),
        "batch": sizes.batch,
        "chunk": sizes.chunk,
        "flush_first": list(program.attributes.get("flush_first", ())),
        "module": {"file": MODULE, "sha256": digest(source.encode())},
        "steps": {step.signature.step: _step(step) for step in steps},
    }


def _step(step: StepFile) -> dict[str, Any]:
    signature = step.signature
    return {
        "file": step.file,
        "sha256": digest(step.content),
        "inputs": [_operand(operand) for operand in signature.inputs],
        "outputs": [_operand(operand) for operand in signature.outputs],
        "draws": None if signature.draws is None else asdict(signature.draws),
    }


def _operand(operand: Operand) -> dict[str, Any]:
    return {"name": operand.name, "shape": list(operand.shape), "dtype": dtype_text(operand.dtype)}


def digest(content: bytes) -> str:
    """sha256 as hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder that an export has made, else None."""
    try:
        made = json.loads((folder / NAME).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return made if isinstance(made, dict) and made.get("format") == FORMAT else None


def files_of(manifest: Mapping[str, Any]) -> frozenset[str]:
    """The names of the files that belong to an export."""
    return frozenset(
        {NAME, str(manifest["module"]["file"]), *(str(step["file"]) for step in manifest["steps"].values())}
    )


def signature_from(manifest: Mapping[str, Any], step: str) -> StepSignature:
    """A step's signature as the manifest has it."""
    entry = manifest["steps"][step]
    inputs = tuple(_parsed(item, "input") for item in entry["inputs"])
    outputs = tuple(_parsed(item, "result") for item in entry["outputs"])
    return StepSignature(step, inputs, outputs, _draws(entry["draws"]))


def _draws(entry: Mapping[str, Any] | None) -> Draws | None:
    if entry is None:
        return None
    if "positions" in entry:
        return Table(int(entry["positions"]), int(entry["draws"]))
    return Rows(tuple(entry["offsets"]), tuple(entry["draws"]), int(entry["size"]))


def _parsed(item: Mapping[str, Any], own: str) -> Operand:
    name, layer = str(item["name"]), None
    start, _, rest = name.partition(".")
    kind = {"weights": "weight", "state": "slot", "new_state": "slot"}.get(start, own) if rest else own
    bound = rest if kind in ("weight", "slot") else name
    if name == UNIFORMS:
        kind, bound = "slot", "rng"
    if "." in bound:
        bound, _, number = bound.rpartition(".")
        layer = int(number)
    dtype: torch.dtype = TEXT_DTYPE[item["dtype"]]
    return Operand(name, Port(kind, bound), tuple(item["shape"]), dtype, layer)  # type: ignore[arg-type]
