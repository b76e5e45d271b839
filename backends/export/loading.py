"""The module of an export, imported from its text."""

from __future__ import annotations

import sys
import types
from typing import Any


def module_of(source: str, digest: str) -> Any:
    """A new module every time: exports replace its step functions. `digest` tells texts apart in tracebacks."""
    module = types.ModuleType(f"specc_export_{digest[:16]}")
    # NamedTuple and typing look their module up by name.
    sys.modules[module.__name__] = module
    exec(compile(source, f"<{module.__name__}>", "exec"), module.__dict__)
    return module
