"""The exporters' entries in the table of backends: they print the module whose steps are then exported."""

from __future__ import annotations

from dataclasses import dataclass, field

from specc.backends.base import Capabilities, ModuleInfo, refusals, register
from specc.backends.export.dialect import dialect
from specc.backends.printing.module import generate
from specc.diagnostics import DiagnosticError
from specc.program import INDEX_SAFE, LAYER_MAJOR, TREE_MASKED, DecodeProgram


@dataclass(frozen=True, slots=True)
class ExportBackend:
    """Plain PyTorch with the functions of the Ascend backend, in the form that exporters take."""

    name: str
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(properties=frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR}))
    )

    def generate(self, program: DecodeProgram, module: ModuleInfo) -> str:
        """The source of the module. Raises DiagnosticError for what the capability table does not have."""
        found = refusals(self, program, module.spec)
        if found:
            raise DiagnosticError(found)
        return generate(dialect(self.name), program, module)


ONNX = register(ExportBackend("onnx"))
MLIR = register(ExportBackend("mlir"))
