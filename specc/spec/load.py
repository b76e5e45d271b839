"""Loading: text and overrides in, a LoadedSpec or a SpecError with every finding out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from specc.diagnostics import Diagnostic, SpecError, in_source_order
from specc.spec.checks.view import View
from specc.spec.compose import compose
from specc.spec.model import Spec, to_mapping
from specc.spec.nodes import Text
from specc.spec.overrides import apply_overrides
from specc.spec.resolve import resolve
from specc.spec.source import SourceMap
from specc.spec.text import check_size, read_text

_PLAIN_WORD = re.compile("[a-z][a-z_]*")


class _Dumper(yaml.SafeDumper):
    """Writes text in quotes unless it is a plain word: PyYAML leaves `1e3` and `0o17` bare, which are numbers."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _PLAIN_WORD.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted)


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A resolved spec, where its keys were written, and warnings in source order.

    `base` is the folder that `target.checkpoint` and `draft.checkpoint` are relative to.
    """

    spec: Spec
    source: SourceMap
    warnings: tuple[Diagnostic, ...]
    base: Path
    view: View = field(repr=False, compare=False)

    @property
    def target_folder(self) -> Path | None:
        """The folder of `target.checkpoint`, if the spec names one."""
        return None if self.spec.target.checkpoint is None else self.base / self.spec.target.checkpoint

    @property
    def draft_folder(self) -> Path | None:
        """The folder of `draft.checkpoint`, if the spec names one."""
        return None if self.spec.draft.checkpoint is None else self.base / self.spec.draft.checkpoint


def load(path: Path, overrides: Sequence[str] = ()) -> LoadedSpec:
    """Load a spec file. `overrides` are `key.path=value` texts. Raises SpecError with every finding."""
    return _load(read_text(path), str(path), overrides, path.parent)


def loads(text: str, file: str = "<string>", overrides: Sequence[str] = (), base: Path | None = None) -> LoadedSpec:
    """Load a spec from text; `file` is the name in messages, `base` the folder of checkpoints (default: `file`'s)."""
    return _load(text, file, overrides, Path(file).parent if base is None else base)


def from_mapping(mapping: Mapping[str, Any], overrides: Sequence[str] = (), base: Path | None = None) -> LoadedSpec:
    """Load a spec from plain values, such as a changed `to_mapping(spec)`; spans show it written as YAML."""
    text = yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return _load(text, "<mapping>", overrides, Path() if base is None else base)


def _load(text: str, file: str, overrides: Sequence[str], base: Path) -> LoadedSpec:
    check_size(text, file)
    composed = compose(Text(text.removeprefix("\ufeff"), file))
    if overrides:
        composed = apply_overrides(composed, overrides)
    source = SourceMap(file, composed.places)
    resolution = resolve(composed, source, base)
    findings = tuple(in_source_order(resolution.findings))
    if resolution.spec is None:
        raise SpecError(findings)
    return LoadedSpec(resolution.spec, source, findings, base, resolution.view)


__all__ = ["LoadedSpec", "from_mapping", "load", "loads", "to_mapping"]
