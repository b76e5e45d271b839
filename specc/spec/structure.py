"""Plain values to typed sections: pydantic's findings become diagnostics with the spec's own words."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from specc.diagnostics import Diagnostic, error
from specc.spec.source import Path, SourceMap
from specc.spec.suggest import did_you_mean

M = TypeVar("M", bound=BaseModel)

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_unicode": "text of whole characters (no lone surrogates)",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_COMPARISON = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_WRITTEN = {
    "specc": "specc: 1",
    "name": "name: my-spec",
    "family": "family: llama",
}
_LENGTH = {"string_too_short", "string_too_long", "too_short", "too_long"}
_OUT_OF_RANGE = "write a number in this range, or leave the key out if it has a default"
_WRITE = {
    "a whole number": "write digits alone, such as 4",
    "a number": "write digits alone, such as 0.5",
    "true or false": "write true or false, without quotes",
    "text": "write one line of text, in quotes",
    "a list": "write its items in brackets, as in [1, 2]",
    "a mapping": "write keys with values, as in {key: value}",
}


def build(
    model: type[M],
    raw: object,
    path: Path,
    source: SourceMap,
    broken: Collection[Path] = (),
    elsewhere: Mapping[str, str] | None = None,
) -> tuple[M | None, list[Diagnostic]]:
    """The section of `model` from `raw`, or None with every finding.

    `path` is where the section stands; entries under a `broken` path were reported already. `elsewhere` maps
    keys of other sections to their names, for better hints about misplaced keys.
    """
    try:
        return model.model_validate(plain(raw)), []
    except ValidationError as problem:
        findings = []
        items = problem.errors(include_url=False)
        places = [(*path, *(part for part in item["loc"] if not str(part).startswith("<"))) for item in items]
        # A list counts as short for each of its items that was refused.
        shortened = {place[:length] for place in places for length in range(len(place))}
        for item, where in zip(items, places, strict=True):
            follows = item["type"] == "too_short" and where in shortened
            if not follows and not any(where[: len(known)] == known for known in broken):
                findings.append(_diagnostic(item, where, model, source, elsewhere or {}))
        return None, findings


def plain(value: object) -> object:
    """Lists as tuples, which strict models take; null entries dropped: null means `not given`."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    return value


def dotted(path: Path) -> str:
    """`draft.choices[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the spec"


def shown(value: object) -> str:
    """A value as a message names it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text `{value if len(value) <= 40 else value[:37] + '...'}`"
    return "a mapping" if isinstance(value, Mapping) else "a list"


def wrong_type(expected: str, value: object, path: Path, source: SourceMap) -> Diagnostic:
    """SPC022, with a hint for the usual traps."""
    return error(
        "SPC022",
        f"`{dotted(path)}` must be {expected}, not {shown(value)}",
        source.span(*path),
        label=f"expected {expected}",
        help=_type_hint(expected, value),
    )


def unknown_key(name: str, path: Path, known: Collection[str], source: SourceMap, elsewhere: str = "") -> Diagnostic:
    """SPC020 for key `name` of the section at `path`."""
    owner = f"`{dotted(path)}`" if path else "a spec"
    return error(
        "SPC020",
        f"unknown key `{name}`",
        source.key_span(*path, name),
        label=f"not a key of {owner}",
        help=f"`{name}` is a key of `{elsewhere}`" if elsewhere else did_you_mean(name, known),
    )


def missing_key(name: str, path: Path, source: SourceMap, help: str = "") -> Diagnostic:
    """SPC021 for key `name` of the section at `path`."""
    return error(
        "SPC021",
        f"`{dotted((*path, name))}` is missing",
        source.key_span(*path),
        label=f"no `{name}` here",
        help=help or f"add `{_WRITTEN.get(name, name + ': …')}`",
    )


def not_a_choice(value: object, choices: Collection[str], path: Path, source: SourceMap) -> Diagnostic:
    """SPC023."""
    listed = [f"`{choice}`" for choice in choices]
    expected = listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} or {listed[-1]}"
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    return error(
        "SPC023",
        f"`{dotted(path)}` must be {expected}, not {shown(value)}",
        source.span(*path),
        label="not one of the choices",
        help=hint if hint.startswith("did") else f"for example `{path[-1]}: {next(iter(choices))}`",
    )


def _diagnostic(
    item: ErrorDetails, path: Path, model: type[BaseModel], source: SourceMap, elsewhere: Mapping[str, str]
) -> Diagnostic:
    """One pydantic finding at `path` in the spec's words."""
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    if kind == "extra_forbidden":
        name, owner = str(path[-1]), path[:-1]
        known = _fields(model, item["loc"][:-1])
        return unknown_key(name, owner, known, source, elsewhere.get(name, ""))
    if kind == "missing":
        return missing_key(str(path[-1]), path[:-1], source)
    if kind in _EXPECTED:
        return wrong_type(_EXPECTED[kind], value, path, source)
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(context["expected"])) or [str(context["expected"])]
        return not_a_choice(value, choices, path, source)
    if kind in _COMPARISON:
        key, words = _COMPARISON[kind]
        limit = f"{words} {context[key]}"
        message = f"`{dotted(path)}` must be {limit}, but is {value}"
        return error("SPC024", message, source.span(*path), label=f"must be {limit}", help=_OUT_OF_RANGE)
    if kind == "finite_number":
        message = f"`{dotted(path)}` must be a finite number, but is {value}"
        return error("SPC024", message, source.span(*path), label="not finite", help=_OUT_OF_RANGE)
    if kind == "string_pattern_mismatch":
        return _bad_name(path, str(context["pattern"]), source)
    if kind in _LENGTH:
        return _bad_length(path, context, kind, source)
    raise NotImplementedError(f"no message for the validation error {kind!r} at {dotted(path)}")


def _bad_name(path: Path, pattern: str, source: SourceMap) -> Diagnostic:
    readable = pattern.removeprefix("^").removesuffix("$")
    return error(
        "SPC025",
        f"`{dotted(path)}` does not have the form `{readable}`",
        source.span(*path),
        label="not an allowed name",
        help="only these characters are allowed because the name reaches generated code",
    )


def _bad_length(path: Path, context: Mapping[str, Any], kind: str, source: SourceMap) -> Diagnostic:
    unit = "characters" if kind.startswith("string") else "entries"
    if kind.endswith("short"):
        limit = f"at least {context.get('min_length')} {unit}".replace("1 characters", "1 character")
    else:
        limit = f"at most {context.get('max_length')} {unit}"
    limit = limit.replace("at least 1 entries", "at least 1 entry")
    remedy = f"{'add' if kind.endswith('short') else 'remove'} {unit}"
    return error(
        "SPC026", f"`{dotted(path)}` must have {limit}", source.span(*path), label=f"needs {limit}", help=remedy
    )


def _fields(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """The keys of the (nested) model at `loc`."""
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        nested = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not nested:
            return []
        model = nested[0]
    return list(model.model_fields)


def _type_hint(expected: str, value: object) -> str:
    if isinstance(value, float) and expected == "a whole number":
        return f"write {int(value)}" if value.is_integer() and abs(value) < 1e18 else _WRITE[expected]
    usual = _WRITE.get(expected, f"write {expected}")
    if not isinstance(value, str):
        return usual
    if expected == "true or false" and value.lower() in ("on", "yes", "y", "off", "no", "n"):
        word = "true" if value.lower() in ("on", "yes", "y") else "false"
        return f"write {word}: in YAML 1.2 `{value}` is text"
    if "number" in expected:
        digits = value.replace("_", "").replace(",", "")
        if digits != value and digits.isdigit():
            return f"write {digits}: numbers have no digit groups"
        if re.fullmatch(r"[0-9]+(:[0-9]+)+", value):
            return f"`{value}` is text: YAML 1.2 has no numbers in base 60"
        if re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", value, re.IGNORECASE):
            return "remove the quotes"
    return usual
