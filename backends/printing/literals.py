"""Values and text as Python source: the only way by which anything of a spec reaches a generated module.

Text becomes an ASCII string literal or a comment that can't be left; numbers, dtypes and devices are written by
type. Anything else is refused, so that no object's own `repr` is ever trusted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch


def text_literal(text: str) -> str:
    """A string literal of printable ASCII; control characters and non-ASCII are escaped."""
    return ascii(str(text))


def comment_text(text: str) -> str:
    """`text` for use inside a `#` comment: one line of printable ASCII (everything else is escaped).

    Callers put words of their own in front, so that no text can start a comment as a pragma would.
    """
    escaped = ascii(str(text))[1:-1]
    return escaped.replace("#", "\\x23")


def literal(value: Any) -> str:
    """Source of a plain value, a torch dtype, device, layout or memory format, or nested lists, tuples and mappings.

    Raises TypeError for any other object.
    """
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, str):
        return text_literal(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f'float("{float.__repr__(value)}")'
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.device({text_literal(str(value))})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    if isinstance(value, tuple):
        inside = ", ".join(literal(item) for item in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    raise TypeError(f"a {type(value).__name__} can't be written as source")
