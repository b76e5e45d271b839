"""The Triton backend's entry in the table of backends. Importing it needs the package `triton`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import GraphModule

from specc.backends.base import Capabilities, ModuleInfo, refusals, register
from specc.backends.printing.dialect import Dialect
from specc.backends.printing.module import generate
from specc.backends.triton.compose import between_steps, whole_steps
from specc.backends.triton.drawing import written_draws
from specc.backends.triton.gates import joined_gates
from specc.backends.triton.greedy import greedy_walks
from specc.backends.triton.layers import batch_layers
from specc.backends.triton.levels import drawn_levels
from specc.backends.triton.lookup import written_lookups
from specc.backends.triton.mixers import joined_mixers
from specc.backends.triton.ops.table import KERNELS, NAMES, special, variant
from specc.backends.triton.projections import attention_projections
from specc.backends.triton.regions import plan
from specc.backends.triton.rotations import attention_steps
from specc.backends.triton.runtime.decoder import Decoder
from specc.backends.triton.vocabulary import vocabulary_kernels
from specc.backends.triton.windows import moved_windows
from specc.diagnostics import DiagnosticError
from specc.program import DecodeProgram


def numerics(spec: Mapping[str, Any]) -> Mapping[tuple[str, str], str]:
    """`numerics: fast` lets float32 products be one tf32 product, and states one bfloat16 piece."""
    fast = spec.get("numerics") == "fast"
    return {("specc.backends.triton.kernels.dot", "EXACT"): "tl.constexpr(False)"} if fast else {}


DIALECT = Dialect(
    name="triton",
    kernels=KERNELS,
    variant=variant,
    special=special,
    reserved=NAMES,
    decoder=Decoder,
    device="cuda",
    whole_steps=whole_steps,
    specialised=True,
    by_columns=False,
    listed=True,
    constants=numerics,
    regions=plan,
)


def prepared(graph: GraphModule) -> GraphModule:
    """A step graph with the ops that only this backend has kernels for."""
    made = moved_windows(written_draws(written_lookups(greedy_walks(vocabulary_kernels(graph)))))
    for rewrite in (attention_steps, attention_projections, joined_gates, joined_mixers, batch_layers):
        made, _ = rewrite(made)
    return drawn_levels(made)


@dataclass(frozen=True, slots=True)
class TritonBackend:
    """Triton kernels and CUDA graphs for NVIDIA GPUs of the Hopper class."""

    name: str = "triton"
    capabilities: Capabilities = field(default_factory=Capabilities)

    def generate(self, program: DecodeProgram, module: ModuleInfo, *, between: bool = False) -> str:
        """The source of the module; `between` adds `run_between`, what stands between two verifications (to be timed).

        Raises DiagnosticError for what the capability table does not have.
        """
        found = refusals(self, program, module.spec)
        if found:
            raise DiagnosticError(found)
        graphs = {name: prepared(graph) for name, graph in program.graphs.items()}
        dialect = replace(DIALECT, whole_steps=between_steps) if between else DIALECT
        return generate(dialect, program.with_graphs(**graphs), module)


TRITON = register(TritonBackend())
