"""The Ascend backend's entry in the table of backends. Importing and compiling need neither torch_npu nor an NPU."""

from __future__ import annotations

from dataclasses import dataclass, field

from specc.backends.ascend.contracts import check_contracts
from specc.backends.ascend.declared import declared
from specc.backends.ascend.ops.table import KERNELS, NAMES, POINTWISE, npu_special
from specc.backends.ascend.runtime.build import build, cache_compile
from specc.backends.ascend.runtime.decoder import Decoder
from specc.backends.ascend.runtime.export import export
from specc.backends.base import Capabilities, ModuleInfo, refusals, register
from specc.backends.printing.dialect import Dialect
from specc.backends.printing.module import generate
from specc.diagnostics import DiagnosticError
from specc.program import NPU_LEGAL, DecodeProgram

DIALECT = Dialect(
    name="ascend",
    kernels=KERNELS,
    pointwise=POINTWISE,
    special=npu_special,
    reserved=NAMES,
    decoder=Decoder,
    device="npu",
    by_columns=False,
    by_layer=True,
    abi=frozenset({"specc.backends.printing.runtime.abi", "specc.backends.ascend.runtime.abi"}),
    declared=declared,
    host=(build, cache_compile, export),
)


@dataclass(frozen=True, slots=True)
class AscendBackend:
    """torch and torch_npu operators for torchair's graph mode; takes a program in value form."""

    name: str = "ascend"
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(properties=frozenset({NPU_LEGAL})))

    def generate(self, program: DecodeProgram, module: ModuleInfo) -> str:
        """The source of the module. Raises DiagnosticError for what the capability table or a contract refuses."""
        found = refusals(self, program, module.spec) or check_contracts(program, module.spans)
        if found:
            raise DiagnosticError(found)
        return generate(DIALECT, program, module)


ASCEND = register(AscendBackend())
