"""From a loaded spec to a generated module: lower, run the pipeline, generate. What the CLI and the checks call."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from specc.backends.base import BACKENDS, Backend, ModuleInfo
from specc.backends.reference import backend as _reference  # registers the target
from specc.diagnostics import DiagnosticError, Span, error
from specc.lower.assemble import lower
from specc.manager import PassContext, Pipeline, PipelineResult
from specc.pass_options import to_options
from specc.passes import pipeline_of
from specc.program import DecodeProgram
from specc.spec import LoadedSpec, fingerprint, to_mapping, unsupported

__all__ = ["Compilation", "compile_spec", "lower_spec", "run_passes", "spans_of"]
_TARGETS = (_reference.REFERENCE,)
LAZY: dict[str, tuple[str, str]] = {
    "triton": ("specc.backends.triton.backend", "triton"),
    "ascend": ("specc.backends.ascend.backend", "torch"),
    "onnx": ("specc.backends.export.backend", "torch"),
    "mlir": ("specc.backends.export.backend", "torch"),
}
"""Targets whose backend is imported when it is first asked for: the module, and the package that it needs."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """A finished compile: the naive program, what each pass did, the final program, the module's source."""

    loaded: LoadedSpec
    naive: DecodeProgram
    passes: PipelineResult
    source: str

    @property
    def program(self) -> DecodeProgram:
        """The program that the module was generated from."""
        return self.passes.program


def spans_of(loaded: LoadedSpec) -> dict[str, Span]:
    """Dotted spec key -> where it was written."""
    found: dict[str, Span] = {}
    for path in loaded.source.places:
        span = loaded.source.key_span(*path)
        if path and span is not None:
            found[".".join(str(part) for part in path)] = span
    return found


def lower_spec(loaded: LoadedSpec, target: str = "reference") -> DecodeProgram:
    """The naive program. Raises DiagnosticError (SPC2xx) for what this version can't compile."""
    refused = unsupported(loaded, target)
    if refused:
        raise DiagnosticError(refused)
    return lower(loaded.spec)


def run_passes(
    loaded: LoadedSpec,
    program: DecodeProgram,
    *,
    target: str = "reference",
    until: str | None = None,
    dump: Path | None = None,
    verify: bool = True,
) -> PipelineResult:
    """The spec's pipeline on `program`, up to and including the pass `until`."""
    spans = spans_of(loaded)
    return pipeline_of(loaded.spec, spans, target).run(program, PassContext(verify, dump, target, spans), until=until)


def _pipeline_fingerprint(pipeline: Pipeline) -> str:
    described = [[item.name, to_options(item)] for item in pipeline.passes]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def module_info(loaded: LoadedSpec, target: str = "reference") -> ModuleInfo:
    """What the header of the generated module says of the spec."""
    spans = spans_of(loaded)
    lines = {key: span.line for key, span in spans.items() if span.file == loaded.source.file}  # no line of an override
    pipeline = _pipeline_fingerprint(pipeline_of(loaded.spec, target=target))
    return ModuleInfo(to_mapping(loaded.spec), fingerprint(loaded.spec), pipeline, lines, spans)


def compile_spec(
    loaded: LoadedSpec, target: str = "reference", *, dump: Path | None = None, verify: bool = True
) -> Compilation:
    """Compile a spec. Raises DiagnosticError: SPC2xx for what is missing or ill-ordered, SPC3xx and SPC9xx from passes.

    `dump` is a folder for the program after every pass.
    """
    naive = lower_spec(loaded, target)
    result = run_passes(loaded, naive, target=target, dump=dump, verify=verify)
    return Compilation(loaded, naive, result, generate(loaded, result.program, target))


def backend_of(target: str) -> Backend:
    """The backend of a target. Raises DiagnosticError (SPC205) where a package that it needs is not installed."""
    if target in LAZY and target not in BACKENDS:
        module, package = LAZY[target]
        if importlib.util.find_spec(package) is None:
            remedy = f"pip install {package}, or `pip install 'specc[{target}]'`; it needs no GPU to compile"
            raise DiagnosticError([error("SPC205", f"target `{target}` needs the package `{package}`", help=remedy)])
        importlib.import_module(module)
    return BACKENDS[target]


def generate(loaded: LoadedSpec, program: DecodeProgram, target: str = "reference") -> str:
    """The module's source for a program at any stage of the pipeline."""
    return backend_of(target).generate(program, module_info(loaded, target))
