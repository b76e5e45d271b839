"""The header of a safetensors file, read and checked without touching the tensor data.

Format: 8 bytes little-endian header length, that many bytes of JSON (name -> dtype, shape, data_offsets),
data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

from specc.diagnostics import DiagnosticError, error

MAX_HEADER_BYTES = 64 << 20
BYTES_PER_ELEMENT: Mapping[str, int] = MappingProxyType(
    {
        "F64": 8,
        "F32": 4,
        "F16": 2,
        "BF16": 2,
        "F8_E4M3": 1,
        "F8_E5M2": 1,
        "I64": 8,
        "I32": 4,
        "I16": 2,
        "I8": 1,
        "U64": 8,
        "U32": 4,
        "U16": 2,
        "U8": 1,
        "BOOL": 1,
    }
)


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor as its file declares it; `dtype` is safetensors' name (`F32`, `BF16`, …)."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorHeader]:
    """Every tensor that `path` declares. Raises DiagnosticError (SPC404) if the header cannot be trusted."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise _malformed(path, "its header does not fit into the file")
            text = file.read(length).decode("utf-8")
        entries = json.loads(text, object_pairs_hook=_no_duplicates)
    except (OSError, ValueError, RecursionError) as problem:
        raise _malformed(path, str(problem)) from None
    if not isinstance(entries, dict):
        raise _malformed(path, "its header is not a JSON object")
    data_bytes = size - 8 - length
    return {name: _tensor(path, name, entry, data_bytes) for name, entry in entries.items() if name != "__metadata__"}


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name occurs twice in its header")
    return table


def _tensor(path: Path, name: str, entry: Any, data_bytes: int) -> TensorHeader:
    if not isinstance(entry, dict):
        raise _malformed(path, f"tensor `{name}` is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BYTES_PER_ELEMENT:
        raise _malformed(path, f"tensor `{name}` has the unknown type {dtype!r}")
    if not (_sizes(shape) and _sizes(offsets) and len(offsets) == 2):
        raise _malformed(path, f"tensor `{name}` has no valid shape and data_offsets")
    begin, end = offsets
    if not begin <= end <= data_bytes or end - begin != math.prod(shape) * BYTES_PER_ELEMENT[dtype]:
        raise _malformed(path, f"the bytes of tensor `{name}` do not fit its shape or the file")
    return TensorHeader(path, dtype, tuple(shape))


def _sizes(value: Any) -> TypeGuard[list[int]]:
    """True for a list of non-negative integers."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _malformed(path: Path, problem: str) -> DiagnosticError:
    found = error("SPC404", f"{path} is malformed: {problem}", help="fetch or copy the checkpoint again")
    return DiagnosticError([found])
