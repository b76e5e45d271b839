"""`--set key.path=value`: overrides as if they were written in the file, pointing at their own text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from specc.diagnostics import Diagnostic, Span, error
from specc.spec.compose import Composed, compose
from specc.spec.nodes import Text
from specc.spec.source import Path, Place
from specc.spec.structure import dotted

FILE = "--set"

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*|[0-9]{1,4}")


def apply_overrides(composed: Composed, overrides: Sequence[str]) -> Composed:
    """The document with the overrides applied in order; a later one wins.

    The path's parts are separated by dots, list items are numbers (`draft.choices.0`). The value is YAML; null
    takes a key away. Raises SpecError where a value is not YAML at all.
    """
    value: Any = _copy(composed.value)
    places = dict(composed.places)
    findings = list(composed.diagnostics)
    broken = set(composed.broken)
    for number, text in enumerate(overrides, start=1):
        name, separator, written = text.partition("=")
        whole = Span(FILE, number, 1, len(text) + 1, text)
        parts = name.strip().split(".")
        if not separator or not all(_KEY.fullmatch(part) for part in parts):
            findings.append(_malformed(text, whole))
            continue
        # One line, so that every span of the value stands on the override's own text.
        inner = compose(Text(written.replace("\n", " "), FILE, number - 1, len(name) + 1, text))
        if written.strip():
            findings += inner.diagnostics
        path: Path = ()
        if not isinstance(value, dict):
            value = {}
        value, problem = _assign(value, parts, (), inner.value)
        if isinstance(problem, str):
            findings.append(_blocked(problem, name, whole))
            continue
        path = problem
        size = len(path)
        for known in [known for known in places if known[:size] == path]:
            del places[known]
        broken = {known for known in broken if known[:size] != path}
        broken |= {(*path, *known) for known in inner.broken if written.strip()}
        key_span = Span(FILE, number, 1, len(name) + 1, text)
        for length in range(1, size):
            places.setdefault(path[:length], Place(key_span, key_span))
        places.setdefault((), Place(None, key_span))
        places[path] = Place(key_span, inner.places.get((), Place(None, whole)).value)
        places.update({(*path, *known): place for known, place in inner.places.items() if known})
    return Composed(value, places, tuple(findings), frozenset(broken))


def _assign(holder: Any, parts: Sequence[str], at: Path, value: Any) -> tuple[Any, Path | str]:
    """Set `value` below `holder`, making mappings as needed. Returns the holder and the path, or the obstacle."""
    part, rest = parts[0], parts[1:]
    if holder is None:
        holder = {}
    key: str | int
    if isinstance(holder, dict):
        key = part
    elif isinstance(holder, list) and part.isdigit() and int(part) <= len(holder):
        key = int(part)
        if key == len(holder):
            holder.append(None)
    else:
        kind = f"a list of {len(holder)} entries" if isinstance(holder, list) else "a single value"
        return holder, f"`{dotted(at)}` is {kind}, so it has no `{part}`"
    if not rest:
        holder[key] = value
        return holder, (*at, key)
    inner = holder.get(key) if isinstance(holder, dict) else holder[int(key)]
    changed, outcome = _assign(inner, rest, (*at, key), value)
    holder[key] = changed
    return holder, outcome


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copy(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def _malformed(text: str, whole: Span) -> Diagnostic:
    return error(
        "SPC016",
        "an override has the form key.path=value",
        whole,
        label="not of this form",
        help="for example `--set commit.update=deferred`",
    )


def _blocked(problem: str, name: str, whole: Span) -> Diagnostic:
    return error(
        "SPC017",
        f"can't set `{name.strip()}`: {problem}",
        whole,
        label="no such place",
        help="`specc schema` prints all keys; items of a list are numbered from 0",
    )
