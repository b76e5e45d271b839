"""From a compiled spec to the files of an export: the module, every step in the target's format, the manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specc.backends.base import ModuleInfo
from specc.backends.export import manifest as manifests
from specc.backends.export.failure import cannot_export
from specc.backends.export.loading import module_of
from specc.backends.export.manifest import StepFile, digest, manifest_of
from specc.backends.export.mlir import mlir_text
from specc.backends.export.onnx import onnx_model
from specc.backends.export.signature import Sizes, StepSignature, signature_of
from specc.backends.export.step_module import traced
from specc.diagnostics import DiagnosticError, error
from specc.program import DecodeProgram

MAX_CHUNK = 128
"""Tokens of a prompt that one exported prefill takes, unless the capacity is smaller."""


@dataclass(frozen=True, slots=True)
class Export:
    """The files of an export by name, and its manifest."""

    files: Mapping[str, bytes]
    manifest: Mapping[str, Any]


def sizes_of(program: DecodeProgram, batch: int | None, chunk: int | None) -> Sizes:
    """The sizes of an export: the spec's own limits unless they are given. Raises DiagnosticError (SPC207)."""
    attributes = program.attributes
    rows, longest = int(attributes["max_batch_size"]), int(attributes["max_sequence_length"])
    most = min(longest, int(attributes.get("prefill_chunk", longest)))
    for option, value, limit in (("--batch", batch, rows), ("--chunk", chunk, most)):
        if value is not None and not 1 <= value <= limit:
            message = f"`{option} {value}` is outside 1 to {limit}, which the spec allows"
            raise DiagnosticError([error("SPC207", message, help="give a number within the spec's limits")])
    return Sizes(batch or rows, chunk or min(MAX_CHUNK, most))


def export_program(
    target: str,
    program: DecodeProgram,
    info: ModuleInfo,
    source: str,
    sizes: Sizes,
    report: Callable[[str], None] = lambda _: None,
) -> Export:
    """Export every step of a program whose printed module is `source`. Raises DiagnosticError (SPC206).

    `report` is told the name of every step before it is written.
    """
    module = module_of(source, digest(source.encode()))
    steps = []
    for step in program.graphs:
        signature = signature_of(program, step, sizes)
        if not signature.outputs:
            continue  # a flush where nothing can be pending
        report(step)
        steps.append(export_step(target, module, signature))
    manifest = manifest_of(target, program, info, sizes, source, steps)
    files = {step.file: step.content for step in steps}
    files[manifests.MODULE] = source.encode()
    files[manifests.NAME] = (json.dumps(manifest, indent=1) + "\n").encode()
    return Export(files, manifest)


def export_step(target: str, module: Any, signature: StepSignature) -> StepFile:
    """One step of a module as a file of the target's format."""
    try:
        program = traced(module, signature)
    except RuntimeError as reason:
        raise cannot_export(signature.step, target.upper(), str(reason)) from reason
    if target == "onnx":
        return StepFile(signature, f"{signature.step}.onnx", onnx_model(program, signature))
    return StepFile(signature, f"{signature.step}.mlir", mlir_text(program, signature).encode())
