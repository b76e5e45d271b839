"""A composed document to a resolved Spec: sections, geometry, defaults, semantic checks, all findings at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel

from specc.diagnostics import Diagnostic, DiagnosticError
from specc.models.families import read_config
from specc.spec import defaults
from specc.spec.checks import View, run_checks
from specc.spec.compose import Composed
from specc.spec.config import EagleConfig, ModelConfig, TransformerConfig
from specc.spec.geometry_input import prepare_eagle, prepare_target
from specc.spec.model import Accept, Backend, Commit, Draft, Runtime, Sampling, Spec, Target, Verify
from specc.spec.names import FAMILIES, TRANSFORMER_FAMILIES, Family
from specc.spec.pipeline_input import read_invariants, read_passes
from specc.spec.source import Path, SourceMap
from specc.spec.structure import build, missing_key, wrong_type
from specc.spec.version import check_version

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


@dataclasses.dataclass(frozen=True, slots=True)
class Resolution:
    """A spec, or None where errors prevent it; the findings, unsorted; the view that further checks use."""

    spec: Spec | None
    view: View
    findings: tuple[Diagnostic, ...]


def resolve(composed: Composed, source: SourceMap, base: FilePath) -> Resolution:
    """Everything after reading. `base` is the folder that checkpoint paths are relative to."""
    if not isinstance(composed.value, Mapping):
        finding = wrong_type("a mapping of keys", composed.value, (), source)
        finding = dataclasses.replace(finding, code="SPC013", help="start with `specc: 1` and `name: …`")
        return Resolution(None, View(source, {}, *[None] * 9), (*composed.diagnostics, finding))
    work = _Resolver(composed, source, base)
    return work.run(composed.value)


class _Resolver:
    """One resolution in progress. Used once."""

    def __init__(self, composed: Composed, source: SourceMap, base: FilePath) -> None:
        self.source = source
        self.base = base
        self.broken = composed.broken
        self.findings = list(composed.diagnostics)
        self.elsewhere = _owners()

    def run(self, raw: Mapping[str, Any]) -> Resolution:
        top, findings = build(_Top, _only_top(raw), (), self.source, self.broken, self.elsewhere)
        self.findings += findings
        self.findings += check_version(raw, self.source, self.broken)
        target = self.target(raw)
        family = target.family if target is not None else _family_of(raw)
        draft = self.draft(raw, target)
        verify = self.section("verify", Verify, defaults.fill_verify(self.mapping(raw, "verify"), family))
        accept = self.section("accept", Accept, defaults.fill_accept(self.mapping(raw, "accept")))
        commit = self.section("commit", Commit, defaults.fill_commit(self.mapping(raw, "commit"), family, draft))
        sampling = self.section("sampling", Sampling, self.mapping(raw, "sampling"))
        runtime = self.section(
            "runtime", Runtime, defaults.fill_runtime(self.mapping(raw, "runtime"), target, draft)
        )
        backend = self.section("backend", Backend, self.mapping(raw, "backend"))
        passes, findings = read_passes(raw.get("passes"), self.source, self.broken)
        self.findings += findings
        invariants, findings = read_invariants(raw.get("invariants"), self.source, self.broken)
        self.findings += findings
        explicit = passes if isinstance(passes, tuple) else None
        view = View(
            self.source, raw, target, draft, verify, accept, commit, sampling, runtime, backend, explicit
        )
        self.findings += run_checks(view)
        if any(item.severity == "error" for item in self.findings) or top is None:
            return Resolution(None, view, tuple(self.findings))
        parts = dict(view_sections(view), passes=passes, invariants=invariants)
        spec = Spec.model_validate({**top.model_dump(), **parts})
        return Resolution(spec, view, tuple(self.findings))

    def mapping(self, raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """A section's values; empty (and a finding) where it is not a mapping."""
        value = raw.get(name)
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return value
        if (name,) not in self.broken:
            self.findings.append(wrong_type("a mapping", value, (name,), self.source))
        return {}

    def section[M: BaseModel](self, name: str, model: type[M], values: Mapping[str, Any]) -> M | None:
        """The typed section, or None (and findings)."""
        built, findings = build(model, values, (name,), self.source, self.broken, self.elsewhere)
        self.findings += findings
        return built

    def target(self, raw: Mapping[str, Any]) -> Target | None:
        if raw.get("target") is None:
            if ("target",) not in self.broken:
                self.findings.append(
                    missing_key("target", (), self.source, "add `target: {family: …, config: {…}}`")
                )
            return None
        values = dict(self.mapping(raw, "target"))
        if not isinstance(raw["target"], Mapping):
            return None
        family, written = values.get("family"), values.pop("config", None)
        shell = self.section("target", Target, values)
        if family not in FAMILIES:
            return None
        if shell is not None:
            self.exactly_one(written, shell.checkpoint)
        config = self.geometry(str(family), written, values.get("checkpoint"), "target")
        return None if shell is None else shell.model_copy(update={"config": config})

    def exactly_one(self, config: object, checkpoint: str | None) -> None:
        """SPC101: `target` has one of config and checkpoint."""
        if (config is None) != (checkpoint is None) or ("target", "config") in self.broken:
            return
        view = View(self.source, {}, *[None] * 9)
        if config is None:
            self.findings.append(
                view.error(
                    "SPC101", "the target's sizes are not known", "target",
                    label="needs `config` or `checkpoint`",
                    help="add `config: {num_hidden_layers: …, …}`, or the folder of a checkpoint",
                )
            )  # fmt: skip
        else:
            self.findings.append(
                view.error(
                    "SPC101", "the target has both a `config` and a `checkpoint`", "target", "checkpoint",
                    label="its config.json gives the geometry, too",
                    help="remove one; `specc run --model` takes a folder at run time",
                )
            )  # fmt: skip

    def geometry(self, family: str, written: object, checkpoint: object, section: str) -> ModelConfig | None:
        """The typed config of a target or draft model, from `config` or else from its checkpoint."""
        found = self.config_values(written, checkpoint, section)
        if found is None:
            return None
        values, path, from_file = found
        model, prepared, findings = prepare_target(family, values, path, self.source, from_file)
        self.findings += findings
        config, findings = build(model, prepared, path, self.source, self.broken)
        self.findings += self.located(findings, path, from_file)
        return config if isinstance(config, ModelConfig) and not isinstance(config, EagleConfig) else None

    def config_values(
        self, written: object, checkpoint: object, section: str
    ) -> tuple[Mapping[str, Any], Path, bool] | None:
        """The values of a config, where they were written, and whether they come from config.json."""
        if written is not None:
            if isinstance(written, Mapping):
                return written, (section, "config"), False
            self.findings.append(wrong_type("a mapping", written, (section, "config"), self.source))
            return None
        if not isinstance(checkpoint, str) or not 0 < len(checkpoint) <= 1024:
            return None
        path: Path = (section, "checkpoint")
        if not checkpoint.isprintable():
            self.findings.append(
                View(self.source, {}, *[None] * 9).error(
                    "SPC102", "the path has characters that can't be printed", *path, label="not a path"
                )
            )
            return None
        try:
            return read_config(self.base / checkpoint), path, True
        except DiagnosticError as problem:
            for item in problem.diagnostics:
                self.findings.append(
                    dataclasses.replace(
                        item,
                        code="SPC102",
                        message=f"can't read the geometry of `{section}.checkpoint`: {item.message}",
                        span=self.source.span(*path),
                        label="no usable config.json",
                        help="give a folder with a Hugging Face config.json, relative to the spec's own folder",
                    )
                )
            return None

    def located(self, findings: list[Diagnostic], path: Path, from_file: bool) -> list[Diagnostic]:
        """Findings inside a config.json speak of that file (SPC103), at the YAML line that names its folder."""
        if not from_file:
            return findings
        return [
            dataclasses.replace(
                item,
                code="SPC103",
                message=f"config.json: {item.message.replace('.checkpoint.', '.config.')}",
                span=self.source.span(*path),
                label="in this folder's config.json",
                help="",
            )
            for item in findings
        ]

    def draft(self, raw: Mapping[str, Any], target: Target | None) -> Draft | None:
        values = dict(self.mapping(raw, "draft"))
        if raw.get("draft") is not None and not isinstance(raw["draft"], Mapping):
            return None
        written = values.pop("config", None)
        layers = None if target is None or target.config is None else target.config.num_hidden_layers
        if values and values.get("method") is None and ("draft", "method") not in self.broken:
            help_text = "add `method: eagle3`, `draft_model`, `prompt_lookup` or `none`"
            self.findings.append(missing_key("method", ("draft",), self.source, help_text))
        shell = self.section("draft", Draft, defaults.fill_draft(values, layers))
        if shell is None:
            return None
        config: TransformerConfig | EagleConfig | None = None
        if shell.method == "eagle3":
            config = self.eagle(target, written, shell.checkpoint)
        elif shell.method == "draft_model":
            config = self.draft_model(shell, target, raw, written)
        elif written is not None:
            self.findings.append(self.unused_config(shell.method))
        return shell.model_copy(update={"config": config})

    def draft_model(
        self, shell: Draft, target: Target | None, raw: Mapping[str, Any], written: object
    ) -> TransformerConfig | None:
        family = shell.family or (target.family if target is not None else _family_of(raw))
        if family == "":
            return None
        if family not in TRANSFORMER_FAMILIES:
            key = "family" if shell.family else "method"
            self.findings.append(
                View(self.source, {}, *[None] * 9).error(
                    "SPC128", f"a draft model of family {family} is not in the language", "draft", key,
                    label="llama, qwen3 or pangu", help="set draft.family and draft.config to those of a transformer",
                )
            )  # fmt: skip
            return None
        config = self.geometry(family, written, shell.checkpoint, "draft")
        return config if isinstance(config, TransformerConfig) else None

    def eagle(self, target: Target | None, written: object, checkpoint: str | None) -> EagleConfig | None:
        """The head's config: `config`, else the checkpoint's config.json, else the target's sizes."""
        found = self.config_values({} if written is None and checkpoint is None else written, checkpoint, "draft")
        if found is None or target is None or target.config is None:
            return None
        values, path, from_file = found
        prepared, findings = prepare_eagle(target.config, values, path, self.source, from_file)
        self.findings += findings
        config, findings = build(EagleConfig, prepared, path, self.source, self.broken)
        self.findings += self.located(findings, path, from_file)
        return config

    def unused_config(self, method: str) -> Diagnostic:
        view = View(self.source, {}, *[None] * 9)
        return view.unused(f"`method: {method}` does not use it", "draft", "config")


def view_sections(view: View) -> dict[str, BaseModel | None]:
    """The sections of a view by name."""
    return {name: getattr(view, name) for name in SECTIONS}
