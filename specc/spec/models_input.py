"""The models of a spec: the target's and the drafter's geometry, written out or read from a checkpoint folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path as FilePath
from typing import Any, TypeVar

from specc.diagnostics import Diagnostic, DiagnosticError, error
from specc.models.families import read_config
from specc.spec.config import BigramConfig, EagleConfig, ModelConfig, TransformerConfig
from specc.spec.geometry_input import prepare_bigram, prepare_eagle, prepare_target
from specc.spec.model import Draft, Target
from specc.spec.names import TRANSFORMER_FAMILIES
from specc.spec.source import Path, SourceMap
from specc.spec.structure import build, wrong_type

GIVE_A_FOLDER = "give a folder with a Hugging Face config.json, relative to the spec's own folder"

Kind = TypeVar("Kind", EagleConfig, BigramConfig)
Prepare = Callable[[object, Mapping[str, Any], Path, SourceMap, bool], tuple[dict[str, Any], list[Diagnostic]]]


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """A config's values, where they stand, and whether they come from a checkpoint's config.json."""

    values: Mapping[str, Any]
    path: Path
    from_file: bool


class ModelReader:
    """Reads configs, collecting findings. `base` is the folder that checkpoint paths are relative to."""

    def __init__(self, source: SourceMap, base: FilePath, broken: Collection[Path]) -> None:
        self.source = source
        self.base = base
        self.broken = broken
        self.findings: list[Diagnostic] = []

    def target(self, shell: Target | None, family: str, raw: Mapping[str, Any]) -> ModelConfig | None:
        """The target's config; SPC101 unless exactly one of config and checkpoint is written."""
        written, checkpoint = raw.get("config"), raw.get("checkpoint")
        if (
            shell is not None
            and ("target", "config") not in self.broken
            and ("target", "checkpoint") not in self.broken
        ):
            if written is None and checkpoint is None:
                self.add(
                    "SPC101", "the target's sizes are not known", ("target",),
                    label="needs `config` or `checkpoint`",
                    help="add `config: {num_hidden_layers: …, …}`, or the folder of a checkpoint",
                )  # fmt: skip
            elif written is not None and checkpoint is not None:
                self.add(
                    "SPC101", "the target has both a `config` and a `checkpoint`", ("target", "checkpoint"),
                    label="its config.json gives the geometry, too",
                    help="remove one; `specc run --model` takes a folder at run time",
                )  # fmt: skip
        return self.model(family, written, checkpoint, "target")

    def draft(
        self, shell: Draft, written: object, target: Target | None, family: str
    ) -> TransformerConfig | EagleConfig | BigramConfig | None:
        """The drafter's config, for the methods that have a model."""
        if shell.method == "bigram":
            return self.bigram(target, written, shell.checkpoint)
        if shell.method == "eagle3":
            return self.eagle(target, written, shell.checkpoint)
        if shell.method == "draft_model":
            return self.draft_model(shell, written, family)
        if written is not None:
            self.findings.append(
                error(
                    "SPC100",
                    f"`draft.config` has no meaning here: `method: {shell.method}` does not use it",
                    self.source.key_span("draft", "config"),
                    label="does not apply",
                    help="remove the key (or set it to null)",
                )
            )
        return None

    def draft_model(self, shell: Draft, written: object, family: str) -> TransformerConfig | None:
        """A draft model is a transformer, of the target's family unless it says its own (SPC128)."""
        family = shell.family or family
        if not family:
            return None
        if family not in TRANSFORMER_FAMILIES:
            self.add(
                "SPC128", f"a draft model can't be of family {family}",
                ("draft", "family" if shell.family else "method"),
                label="must be llama, qwen3 or pangu",
                help="set `draft.family` and `draft.config` to those of a small transformer",
            )  # fmt: skip
            return None
        config = self.model(family, written, shell.checkpoint, "draft")
        return config if isinstance(config, TransformerConfig) else None

    def eagle(self, target: Target | None, written: object, checkpoint: str | None) -> EagleConfig | None:
        """The head's config: `config`, else the checkpoint's config.json, else the target's sizes."""
        return self._for_target(EagleConfig, prepare_eagle, target, written, checkpoint)

    def bigram(self, target: Target | None, written: object, checkpoint: str | None) -> BigramConfig | None:
        """The tables' sizes: `config`, else the checkpoint's config.json, else the defaults."""
        return self._for_target(BigramConfig, prepare_bigram, target, written, checkpoint)

    def _for_target(
        self,
        kind: type[Kind],
        prepare: Prepare,
        target: Target | None,
        written: object,
        checkpoint: str | None,
    ) -> Kind | None:
        """The config of a drafter that takes what is not written from the target."""
        found = self.written({} if written is None and checkpoint is None else written, checkpoint, "draft")
        if found is None or target is None or target.config is None:
            return None
        prepared, findings = prepare(target.config, found.values, found.path, self.source, found.from_file)
        self.findings += findings
        config, findings = build(kind, prepared, found.path, self.source, self.broken)
        self.findings += self.located(findings, found)
        return config

    def model(self, family: str, written: object, checkpoint: object, section: str) -> ModelConfig | None:
        """The typed config of a target or draft model, from `config` or else from its checkpoint."""
        found = self.written(written, checkpoint, section)
        if found is None:
            return None
        model, prepared, findings = prepare_target(family, found.values, found.path, self.source, found.from_file)
        self.findings += findings
        if findings and found.from_file:
            return None
        config, findings = build(model, prepared, found.path, self.source, self.broken)
        self.findings += self.located(findings, found)
        return config

    def written(self, written: object, checkpoint: object, section: str) -> Written | None:
        """The values of a config; None (and a finding) where they can't be had (SPC022, SPC102)."""
        if isinstance(written, Mapping):
            return Written(written, (section, "config"), False)
        if written is not None:
            self.findings.append(wrong_type("a mapping", written, (section, "config"), self.source))
            return None
        if not isinstance(checkpoint, str) or not 0 < len(checkpoint) <= 1024:
            return None
        path: Path = (section, "checkpoint")
        if not checkpoint.isprintable():
            self.add("SPC102", "the path has characters that can't be printed", path, "not a path", GIVE_A_FOLDER)
            return None
        try:
            return Written(read_config(self.base / checkpoint), path, True)
        except DiagnosticError as problem:
            for item in problem.diagnostics:
                self.add(
                    "SPC102", f"can't read the geometry of `{section}.checkpoint`: {item.message}", path,
                    label="no usable config.json",
                    help=GIVE_A_FOLDER,
                )  # fmt: skip
            return None

    def located(self, findings: list[Diagnostic], found: Written) -> list[Diagnostic]:
        """Findings inside a config.json speak of that file (SPC103), at the YAML line that names its folder."""
        if not found.from_file:
            return findings
        return [
            dataclasses.replace(
                item,
                code="SPC103",
                message=f"config.json: {item.message.replace('.checkpoint.', '.config.')}",
                span=self.source.span(*found.path),
                label="in this folder's config.json",
                help=item.help or "correct it in that file, or give `config` instead of `checkpoint`",
            )
            for item in findings
        ]

    def add(self, code: str, message: str, path: Path, label: str, help: str) -> None:
        self.findings.append(error(code, message, self.source.span(*path), label=label, help=help))
