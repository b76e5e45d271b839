"""`passes` and `invariants`: a word or a list, read without pydantic's unions, whose errors confuse."""

from __future__ import annotations

import re
from collections.abc import Collection
from math import isfinite
from typing import Literal

from specc.diagnostics import Diagnostic, error
from specc.invariants import INVARIANT_NAMES
from specc.spec.model import PassEntry
from specc.spec.names import PASS_NAMES
from specc.spec.source import Path, SourceMap
from specc.spec.structure import build, not_a_choice, wrong_type
from specc.spec.suggest import did_you_mean

MAX_OPTION_TEXT = 200

_PASS_NAME = re.compile("[a-z][a-z0-9_-]*")
_OPTION_NAME = re.compile("[a-z][a-z0-9_]*")

Passes = Literal["default"] | tuple[PassEntry, ...]
Invariants = Literal["all"] | tuple[str, ...]


def read_passes(raw: object, source: SourceMap, broken: Collection[Path]) -> tuple[Passes, list[Diagnostic]]:
    """`default`, or a list whose items are pass names (SPC170) or `{name: {option: value}}` (SPC171)."""
    if raw is None or raw == "default" or ("passes",) in broken:
        return "default", []
    if isinstance(raw, str):
        return "default", [not_a_choice(raw, ["default"], ("passes",), source)]
    if not isinstance(raw, list | tuple):
        return "default", [wrong_type("`default` or a list of passes", raw, ("passes",), source)]
    entries, findings = [], []
    for index, item in enumerate(raw):
        path: Path = ("passes", index)
        if path in broken:
            continue
        if isinstance(item, str):
            item = {item: {}}
        if not isinstance(item, dict):
            findings.append(wrong_type("a pass name or `{name: {option: value}}`", item, path, source))
            continue
        if len(item) != 1:
            findings.append(_one_pass(path, source))
            continue
        ((name, options),) = item.items()
        if _PASS_NAME.fullmatch(name) and name not in PASS_NAMES:
            findings.append(_unknown_pass(name, path, source))
            continue
        problems = _option_problems(options, (*path, name), source)
        if problems:
            findings += problems
            continue
        entry, problems = build(
            PassEntry, {"name": name, "options": {} if options is None else options}, path, source, broken
        )
        findings += problems
        if entry is not None:
            entries.append(entry)
    return tuple(entries), findings


def read_invariants(raw: object, source: SourceMap, broken: Collection[Path]) -> tuple[Invariants, list[Diagnostic]]:
    """`all`, or a list of distinct names of `specc.invariants` (SPC172, SPC173)."""
    if raw is None or raw == "all" or ("invariants",) in broken:
        return "all", []
    if isinstance(raw, str):
        return "all", [not_a_choice(raw, ["all"], ("invariants",), source)]
    if not isinstance(raw, list | tuple):
        return "all", [wrong_type("`all` or a list of names", raw, ("invariants",), source)]
    names: list[str] = []
    findings = []
    for index, item in enumerate(raw):
        path: Path = ("invariants", index)
        if path in broken:
            continue
        if not isinstance(item, str):
            findings.append(wrong_type("the name of an invariant", item, path, source))
        elif item not in INVARIANT_NAMES:
            findings.append(
                error(
                    "SPC172",
                    f"unknown invariant `{item}`",
                    source.span(*path),
                    label="no such invariant",
                    help=did_you_mean(item, INVARIANT_NAMES) or f"known: {', '.join(INVARIANT_NAMES)}",
                )
            )
        elif item in names:
            findings.append(
                error(
                    "SPC173",
                    f"invariant `{item}` is listed twice",
                    source.span(*path),
                    label="again here",
                    help="remove one",
                )
            )
        else:
            names.append(item)
    return tuple(names), findings


def _option_problems(options: object, path: Path, source: SourceMap) -> list[Diagnostic]:
    """Options are plain names with a number, true, false, null, a short text or a list each (SPC022, SPC025)."""
    if options is None:
        return []
    if not isinstance(options, dict):
        return [wrong_type("a mapping of options", options, path, source)]
    findings = []
    for key, value in options.items():
        if not _OPTION_NAME.fullmatch(key):
            findings.append(
                error(
                    "SPC025",
                    f"`{key}` can't be an option of a pass: names have the form `{_OPTION_NAME.pattern}`",
                    source.key_span(*path, key),
                    label="not an allowed name",
                    help="write the name of one of the pass's options, a plain word",
                )
            )
        items = value if isinstance(value, list) else [value]
        if not all(_is_option(item) for item in items):
            expected = "a number, true, false, a short text, or a list of these"
            findings.append(wrong_type(expected, value, (*path, key), source))
    return findings


def _is_option(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_OPTION_TEXT
    if isinstance(value, float):
        return isfinite(value)
    return value is None or isinstance(value, bool | int)


def _unknown_pass(name: str, path: Path, source: SourceMap) -> Diagnostic:
    return error(
        "SPC170",
        f"unknown pass `{name}`",
        source.span(*path),
        label="no such pass",
        help=did_you_mean(name, PASS_NAMES) or f"known: {', '.join(PASS_NAMES)}",
    )


def _one_pass(path: Path, source: SourceMap) -> Diagnostic:
    return error(
        "SPC171",
        "a list item names exactly one pass",
        source.span(*path),
        label="not one pass",
        help="write each pass on its own: `- layer-major` or `- layer-major: {option: value}`",
    )
