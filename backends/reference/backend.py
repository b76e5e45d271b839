"""The reference backend's entry in the table of backends."""

from __future__ import annotations

from dataclasses import dataclass, field

from specc.backends.base import Capabilities, ModuleInfo, refusals, register
from specc.backends.reference.module import generate
from specc.diagnostics import DiagnosticError
from specc.program import DecodeProgram


@dataclass(frozen=True, slots=True)
class ReferenceBackend:
    """Plain PyTorch on any device; takes a program at any stage of the pipeline."""

    name: str = "reference"
    capabilities: Capabilities = field(default_factory=Capabilities)

    def generate(self, program: DecodeProgram, module: ModuleInfo) -> str:
        """The source of the module. Raises DiagnosticError for what the capability table does not have."""
        found = refusals(self, program, module.spec)
        if found:
            raise DiagnosticError(found)
        return generate(program, module)


REFERENCE = register(ReferenceBackend())
