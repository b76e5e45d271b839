"""Good Python names for FX nodes: unique in their function, no keywords, builtins or names of the module."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

# Names that a reader or a linter mistakes for digits (ruff E741).
_AMBIGUOUS = frozenset({"l", "O", "I"})
_RESERVED = (
    frozenset(dir(builtins)) | frozenset(keyword.kwlist) | frozenset(keyword.softkwlist) | _AMBIGUOUS | {"self", "_"}
)


class Names:
    """Hands out names; a name once given or reserved is never given again."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken = set(reserved) | _RESERVED

    def fresh(self, wanted: str) -> str:
        """`wanted`, made an identifier, with a number if it is taken: `x`, `x_2`, `x_3`."""
        cleaned = re.sub(r"\W", "_", wanted, flags=re.ASCII).strip("_").lower()
        base = re.sub(r"(_\d+)+$", "", cleaned) or "value"
        if base[0].isdigit():
            base = f"value_{base}"
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name
