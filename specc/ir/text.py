"""The words of the IR text: literals, types, op names. What the printer writes here, the parser reads."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from specc.ir.dims import TEXT_DTYPE, dtype_text

VERSION = 1
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "getitem")
}
_ARITHMETIC_TEXT = {function: f"operator.{name}" for name, function in ARITHMETIC.items()}


def word_text(text: str) -> str:
    """`text` itself where it is a plain word, else a JSON string."""
    return text if WORD.fullmatch(text) else json.dumps(text)


def target_text(target: Any) -> str:
    """`specc.rope`, `aten.add.Tensor`, `operator.add`; anything else as `py"…"`, which can't be read back."""
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name.replace("::", ".")
        return name if target._overloadname == "default" else f"{name}.{target._overloadname}"
    if target in _ARITHMETIC_TEXT:
        return _ARITHMETIC_TEXT[target]
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__qualname__", None) or str(target)
    return "py" + json.dumps(f"{module}.{name}".strip("."))


def parse_target(text: str) -> Callable[..., Any] | None:
    """Inverse of `target_text`; None where there is no such op. Never resolves anything but ops."""
    parts = text.split(".")
    if parts[0] == "operator" and len(parts) == 2:
        return ARITHMETIC.get(parts[1])
    if len(parts) not in (2, 3) or parts[0].startswith("_") or not hasattr(torch.ops, parts[0]):
        return None
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    overload = parts[2] if len(parts) == 3 else "default"
    return getattr(packet, overload) if overload in packet.overloads() else None


def literal_text(value: Any) -> str:
    """An argument: `%node`, numbers, strings, None, lists, tuples, dicts, slices, dtypes (`f32`), devices."""
    if isinstance(value, Node):
        return f"%{value.name}"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, torch.dtype):
        return dtype_text(value) if value in TEXT_DTYPE.values() else str(value)
    if isinstance(value, (torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, torch.device):
        return f"device({json.dumps(str(value))})"
    return _collection_text(value)


def _collection_text(value: Any) -> str:
    if isinstance(value, tuple):
        inner = ", ".join(literal_text(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, list):
        return f"[{', '.join(literal_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal_text(key)}: {literal_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({literal_text(value.start)}, {literal_text(value.stop)}, {literal_text(value.step)})"
    if value is Ellipsis:
        return "..."
    return "py" + json.dumps(repr(value))
