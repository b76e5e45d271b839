"""The reference backend's entry in the table of backends."""

from __future__ import annotations

from dataclasses import dataclass, field

from specc.backends.base import Capabilities, ModuleInfo, refusals, register
from specc.backends.printing.dialect import Dialect
from specc.backends.printing.module import generate
from specc.backends.printing.runtime.decoder import Decoder
from specc.backends.reference.kernels import KERNELS, POINTWISE, variants
from specc.diagnostics import DiagnosticError
from specc.program import DecodeProgram

DIALECT = Dialect(
    name="reference",
    kernels=KERNELS,
    pointwise=POINTWISE,
    variant=variants.variant,
    # All of them, so that a local variable's name does not depend on which of them a step calls.
    reserved=frozenset({*KERNELS, *variants.NAMES, *(function.__name__ for function in POINTWISE.values())}),
    decoder=Decoder,
)


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
        return generate(DIALECT, program, module)


REFERENCE = register(ReferenceBackend())
