"""A composed document to a resolved Spec: sections, geometry, defaults, semantic checks, all findings at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field

from specc.diagnostics import Diagnostic, error
from specc.spec import defaults
from specc.spec.base import Section
from specc.spec.checks import run_checks
from specc.spec.checks.view import View
from specc.spec.compose import Composed
from specc.spec.model import Accept, Backend, Commit, Draft, Name, Runtime, Sampling, Spec, Target, Verify
from specc.spec.models_input import ModelReader
from specc.spec.names import FAMILIES
from specc.spec.pipeline_input import read_invariants, read_passes
from specc.spec.source import SourceMap
from specc.spec.structure import build, missing_key, unknown_key, wrong_type

LANGUAGE_VERSION = 1

SECTIONS: Mapping[str, type[BaseModel]] = {
    "target": Target,
    "draft": Draft,
    "verify": Verify,
    "accept": Accept,
    "commit": Commit,
    "sampling": Sampling,
    "runtime": Runtime,
    "backend": Backend,
}

M = TypeVar("M", bound=BaseModel)
Fill = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class _Top(Section):
    """The keys of the top level that are not sections."""

    specc: int
    name: Name
    description: Annotated[str, Field(max_length=4000)] = ""
    numerics: Literal["exact", "fast"] = "exact"


@dataclass(frozen=True, slots=True)
class Resolution:
    """A spec, or None where errors prevent it; the findings, unsorted; the view that further checks use."""

    spec: Spec | None
    view: View
    findings: tuple[Diagnostic, ...]


def resolve(composed: Composed, source: SourceMap, base: FilePath) -> Resolution:
    """Everything after reading. `base` is the folder that checkpoint paths are relative to."""
    if isinstance(composed.value, Mapping):
        return _Resolver(composed, source, base).run(composed.value)
    findings = list(composed.diagnostics)
    if () not in composed.broken:
        finding = wrong_type("a mapping of keys", composed.value, (), source)
        message = finding.message.replace("`the spec`", "the spec")
        findings.append(replace(finding, code="SPC013", message=message, help="start with `specc: 1` and `name: …`"))
    return Resolution(None, View(source, {}), tuple(findings))


class _Resolver:
    """One resolution in progress. Used once."""

    def __init__(self, composed: Composed, source: SourceMap, base: FilePath) -> None:
        self.source = source
        self.broken = composed.broken
        self.findings = list(composed.diagnostics)
        self.models = ModelReader(source, base, composed.broken)

    def run(self, raw: Mapping[str, Any]) -> Resolution:
        top = self.top(raw)
        target = self.target(raw)
        written = self.mapping(raw, "target").get("family") if target is None else target.family
        family = written if isinstance(written, str) else ""
        draft = self.draft(raw, target, family)
        passes, pass_findings = read_passes(raw.get("passes"), self.source, self.broken)
        invariants, name_findings = read_invariants(raw.get("invariants"), self.source, self.broken)
        view = View(
            self.source,
            raw,
            target,
            draft,
            self.section(raw, "verify", Verify, lambda values: defaults.fill_verify(values, family)),
            self.section(raw, "accept", Accept, defaults.fill_accept),
            self.section(raw, "commit", Commit, lambda values: defaults.fill_commit(values, family, draft)),
            self.section(raw, "sampling", Sampling),
            self.section(raw, "runtime", Runtime, lambda values: defaults.fill_runtime(values, target, draft)),
            self.section(raw, "backend", Backend),
        )
        self.findings += [*pass_findings, *name_findings, *self.models.findings]
        self.findings += run_checks(view)
        if top is None or any(item.severity == "error" for item in self.findings):
            return Resolution(None, view, tuple(self.findings))
        sections = {name: getattr(view, name) for name in SECTIONS}
        rest = {"passes": passes, "invariants": invariants}
        return Resolution(Spec.model_validate({**top.model_dump(), **sections, **rest}), view, tuple(self.findings))

    def top(self, raw: Mapping[str, Any]) -> _Top | None:
        """The top-level keys; SPC020 for unknown ones, SPC027 for another version of the language."""
        known = list(Spec.model_fields)
        for name in raw:
            if name not in known and (name,) not in self.broken:
                owner = next((key for key, model in SECTIONS.items() if name in model.model_fields), "")
                self.findings.append(unknown_key(name, (), known, self.source, owner))
        own = {name: value for name, value in raw.items() if name in _Top.model_fields}
        top, findings = build(_Top, own, (), self.source, self.broken)
        self.findings += findings
        version = raw.get("specc")
        if isinstance(version, int) and not isinstance(version, bool) and version != LANGUAGE_VERSION:
            self.findings.append(
                error(
                    "SPC027",
                    f"this compiler reads version {LANGUAGE_VERSION} of the language, not {version}",
                    self.source.span("specc"),
                    label="another version",
                    help="write `specc: 1`, or use the compiler that the spec was written for",
                )
            )
        return top

    def mapping(self, raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """A section's values; empty where it is not a mapping."""
        value = raw.get(name)
        return value if isinstance(value, Mapping) else {}

    def section(self, raw: Mapping[str, Any], name: str, model: type[M], fill: Fill = dict) -> M | None:
        """The typed section with its defaults filled in, or None (and findings)."""
        value = raw.get(name)
        if value is not None and not isinstance(value, Mapping):
            if (name,) not in self.broken:
                self.findings.append(wrong_type("a mapping", value, (name,), self.source))
            return None
        owners = {
            key: owner
            for owner, section in reversed(tuple(SECTIONS.items()))
            for key in section.model_fields
            if owner != name and key not in model.model_fields
        }
        built, findings = build(model, fill(self.mapping(raw, name)), (name,), self.source, self.broken, owners)
        self.findings += findings
        return built

    def target(self, raw: Mapping[str, Any]) -> Target | None:
        if raw.get("target") is None:
            if ("target",) not in self.broken:
                help_text = "add `target: {family: …, config: {…}}`"
                self.findings.append(missing_key("target", (), self.source, help_text))
            return None
        shell = self.section(raw, "target", Target, _without_config)
        values = self.mapping(raw, "target")
        family = values.get("family")
        if family not in FAMILIES:
            return None
        config = self.models.target(shell, str(family), values)
        return None if shell is None else shell.model_copy(update={"config": config})

    def draft(self, raw: Mapping[str, Any], target: Target | None, family: str) -> Draft | None:
        values = self.mapping(raw, "draft")
        layers = None if target is None or target.config is None else target.config.num_hidden_layers
        if values and values.get("method") is None and ("draft", "method") not in self.broken:
            help_text = "add `method: eagle3`, `draft_model`, `bigram`, `prompt_lookup` or `none`"
            self.findings.append(missing_key("method", ("draft",), self.source, help_text))
        shell = self.section(raw, "draft", Draft, lambda items: defaults.fill_draft(_without_config(items), layers))
        if shell is None:
            return None
        config = self.models.draft(shell, values.get("config"), target, family)
        return shell.model_copy(update={"config": config})


def _without_config(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "config"}
