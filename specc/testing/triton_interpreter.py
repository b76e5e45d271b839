"""Triton's interpreter without its largest costs. Its results are the same.

Each launch and each call of one kernel by another walks over all members of the language to replace them by interpreted
ones, and a launch puts them back: about 40% of the time of small kernels. Here they are replaced once and stay, which
is all right where kernels are interpreted only. Every value has a type and a shape that are worked out anew, most of
the rest: here they are remembered, as few different ones occur. And sums and products of integers are made twice, to
see whether they fit their type: here they are made once, as in compiled kernels (what wraps is another result).
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import FunctionType
from typing import Any

FIELDS = ("handle", "numel", "type", "dtype", "shape")
"""What a tensor of the language has, as far as this module knows it."""


def keep_patches() -> None:
    """Replace the language's functions once per process. Does nothing for a Triton that is built otherwise."""
    known: Any = importlib.import_module("triton.runtime.interpreter")
    language: Any = importlib.import_module("triton.language")
    if not all(hasattr(known, name) for name in ("_patch_lang", "_LangPatchScope")) or hasattr(known, "_patches_kept"):
        return
    patch, replaced = known._patch_lang, set[int]()

    def patched(function: FunctionType) -> Any:
        """An empty scope, which restores nothing."""
        if not hasattr(function, "_language_replaced"):
            seen = {id(value) for value in function.__globals__.values() if value in (language, language.core)}
            if not seen or not seen <= replaced:
                patch(function)
                replaced.update(seen)
            if seen:
                function.__dict__["_language_replaced"] = True
        return known._LangPatchScope()

    known._patch_lang, known._patches_kept = patched, True
    _remember_block_types(language.core)
    _remember_shapes(language.core)
    if hasattr(known, "_get_np_dtype"):
        _remember_array_types(known, language.core)
    if hasattr(getattr(known, "interpreter_builder", None), "options"):
        known.interpreter_builder.options = replace(known.interpreter_builder.options, sanitize_overflow=False)


def _remember_block_types(core: Any) -> None:
    plain, found = core.block_type.__init__, dict[tuple[int, ...], dict[str, Any]]()

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        """The fields of an equal type; each holds its element type, so that the key's identity stays that type's."""
        sizes = shape.values if isinstance(shape, core.tuple) else shape
        if not sizes or type(sizes[0]) is not int:
            plain(self, element_ty, shape)
            return
        key = (id(element_ty), *sizes)
        if key not in found:
            plain(self, element_ty, shape)
            found[key] = dict(self.__dict__)
            found[key]["shared"] = found[key]
        self.__dict__.update(found[key])

    core.block_type.__init__ = init


def _remember_shapes(core: Any) -> None:
    plain = core.tensor.__init__

    def init(self: Any, handle: Any, type: Any) -> None:
        """Scalar type, size and shape as the language's constants; a type remembers them for its tensors."""
        known = type.__dict__.get("remembered")
        if known is not None:
            self.handle, self.type = handle, type
            self.dtype, self.numel, self.shape = known
            return
        plain(self, handle, type)
        if sorted(self.__dict__) == sorted(FIELDS):
            made = self.dtype, self.numel, self.shape
            type.__dict__["remembered"] = type.__dict__.get("shared", {})["remembered"] = made

    core.tensor.__init__ = init


def _remember_array_types(known: Any, core: Any) -> None:
    plain, found = known._get_np_dtype, dict[str, Any]()

    def array_type(of: Any) -> Any:
        """NumPy's type for a type of the language."""
        scalar = of.element_ty if isinstance(of, core.block_type) else of
        if scalar.name not in found:
            found[scalar.name] = plain(scalar)
        return found[scalar.name]

    known._get_np_dtype = array_type
