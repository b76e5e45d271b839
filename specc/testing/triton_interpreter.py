"""Triton's interpreter without its largest cost: it replaces the functions of `triton.language` at every call.

Each launch and each call of one kernel by another walks over all members of the language to replace them by interpreted
ones, and a launch puts them back: about 40% of the time of small kernels. Here they are replaced once and stay, which
is all right where kernels are interpreted only. The interpreter's results are the same.
"""

from __future__ import annotations

import importlib
from types import FunctionType
from typing import Any


def keep_patches() -> None:
    """Replace the language's functions once per process. Does nothing for a Triton that is built otherwise."""
    known: Any = importlib.import_module("triton.runtime.interpreter")
    language: Any = importlib.import_module("triton.language")
    if not all(hasattr(known, name) for name in ("_patch_lang", "_LangPatchScope")) or hasattr(known, "_patches_kept"):
        return
    patch, replaced = known._patch_lang, set[int]()

    def patched(function: FunctionType) -> Any:
        """An empty scope, which restores nothing."""
        seen = {id(value) for value in function.__globals__.values() if value in (language, language.core)}
        if not seen or not seen <= replaced:
            patch(function)
            replaced.update(seen)
        return known._LangPatchScope()

    known._patch_lang, known._patches_kept = patched, True
