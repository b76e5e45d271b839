"""`passes` and `invariants`: a word or a list, read without pydantic's unions, whose errors confuse."""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite
from typing import Literal

from specc.diagnostics import Diagnostic, error
from specc.invariants import INVARIANT_NAMES
from specc.spec.model import PassEntry
from specc.spec.source import Path, SourceMap
from specc.spec.structure import build, not_a_choice, wrong_type
from specc.spec.suggest import did_you_mean

Passes = Literal["default"] | tuple[PassEntry, ...]
Invariants = Literal["all"] | tuple[str, ...]


def read_passes(raw: object, source: SourceMap, broken: Collection[Path]) -> tuple[Passes, list[Diagnostic]]:
    """`default`, or a list whose items are names or `{name: {option: value}}` (SPC171 for other mappings)."""
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
        bad = [key for key, value in (options or {}).items() if not _scalar(value)] if isinstance(options, dict) else []
        if bad:
            expected = "a number, true, false or text"
            findings += [wrong_type(expected, options[key], (*path, name, key), source) for key in bad]
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
                error("SPC173", f"invariant `{item}` is listed twice", source.span(*path), label="again here")
            )
        else:
            names.append(item)
    return tuple(names), findings


def _scalar(value: object) -> bool:
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value))


def _one_pass(path: Path, source: SourceMap) -> Diagnostic:
    return error(
        "SPC171",
        "a list item names exactly one pass",
        source.span(*path),
        label="not one pass",
        help="write each pass on its own: `- layer-major` or `- layer-major: {option: value}`",
    )
