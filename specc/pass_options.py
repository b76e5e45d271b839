"""Options of passes: dataclass fields <-> the plain data of YAML and `--set`."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from specc.diagnostics import Diagnostic, DiagnosticError, Span, error
from specc.manager import Pass


def from_options(
    name: str, options: Mapping[str, Any], available: Mapping[str, type[Pass]], span: Span | None = None
) -> Pass:
    """The pass `name` with these options. Raises DiagnosticError: SPC251 unknown pass, SPC252 wrong options."""
    if name not in available:
        near = difflib.get_close_matches(name, available, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"passes are {', '.join(sorted(available))}"
        raise DiagnosticError([error("SPC251", f"unknown pass `{name}`", span, help=hint)])
    chosen = available[name]
    hints = get_type_hints(chosen)
    fields = {field.name: field for field in dataclasses.fields(chosen)}
    findings: list[Diagnostic] = []
    values: dict[str, Any] = {}
    for key, value in options.items():
        if key not in fields:
            has = f"it has {', '.join(sorted(fields))}" if fields else "it has none"
            findings.append(error("SPC252", f"`{key}` is not an option of pass `{name}`", span, help=has))
        elif not _fits(value, hints[key]):
            wanted = getattr(hints[key], "__name__", str(hints[key]))
            message = f"option `{key}` of pass `{name}` must be {wanted}, not {value!r}"
            findings.append(error("SPC252", message, span, help=f"its default is {fields[key].default!r}"))
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    if findings:
        raise DiagnosticError(findings)
    return chosen(**values)


def to_options(item: Pass) -> dict[str, Any]:
    """Inverse of `from_options`: the options as plain data (tuples become lists)."""
    values = {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(hint))
    if origin is tuple:
        parts = get_args(hint)
        if not isinstance(value, (list, tuple)):
            return False
        if len(parts) == 2 and parts[1] is Ellipsis:
            return all(_fits(item, parts[0]) for item in value)
        return len(value) == len(parts) and all(_fits(item, part) for item, part in zip(value, parts, strict=True))
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint
