"""GE ops that one layer of a spec becomes, by type, and every Transpose and Cast among them with the line it is from.

A layer's ops are the difference between the graphs of two stacks, one of which has a layer more: widths don't matter to
the number of ops, so both stacks are reduced ones. The graph is the module's own whole step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specc.backends.ascend import cpu
from specc.backends.ascend.harness import counts
from specc.backends.ascend.harness.lower import lower
from specc.check.ascend.half import Half, reduced_half
from specc.check.ascend.steps import Steps, eagerly
from specc.spec import LoadedSpec

LINEAR, FULL = "linear_attention", "full_attention"
DELTA, ATTENTION, EXPERTS = "gated delta", "attention", "experts beyond a dense MLP"
BASE = (LINEAR, FULL)
STACKS: Mapping[str, tuple[str, ...]] = {DELTA: (LINEAR, LINEAR, FULL), ATTENTION: (LINEAR, FULL, FULL), EXPERTS: BASE}
"""Hybrid stacks with one layer more of a kind than BASE, all with dense MLPs; EXPERTS: BASE with experts in one."""


@dataclass(frozen=True, slots=True)
class LayerCount:
    """Ops of one layer of a kind in a step's graph; `movers`: (type, line, operator, times) of Transposes and Casts."""

    kind: str
    ops: Mapping[str, float]
    movers: Sequence[tuple[str, str, str, int]]

    @property
    def total(self) -> int:
        """All ops."""
        return int(sum(self.ops.values()))


@dataclass(frozen=True, slots=True)
class StepCount:
    """The graph of a reduced spec's step: its ops, its copies of whole tensors, its layers' ops."""

    ops: int
    copies: int
    dirty: int
    layers: Sequence[LayerCount]


def step_graph(loaded: LoadedSpec, dtype: str, batch: int, changes: Mapping[str, Any]) -> Any:
    """The GE graph of the whole step (of a plain one where nothing is drafted) of the reduced spec."""
    cpu.register()
    half = Half(reduced_half(loaded, dtype, changes))
    steps = Steps(half, batch, eagerly)
    wanted = "plain" if half.loaded.spec.draft.method == "none" else "step"
    for name, graph, extra in half.module.example_calls(steps.tensors, steps.state):
        if name == wanted:
            return lower(graph, (*steps.tensors, *extra)).graph
    raise ValueError(f"the module has no graph {wanted}")


def _hybrid(kinds: Sequence[str], sparse: int = 0) -> dict[str, Any]:
    """A hybrid stack whose first `sparse` layers have experts."""
    dense = list(range(sparse, len(kinds)))
    changes = {"layer_types": list(kinds), "num_hidden_layers": len(kinds), "mlp_only_layers": dense}
    return {f"target.config.{name}": value for name, value in changes.items()}


def _stacks(loaded: LoadedSpec) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What to change for the smaller stack, and for those with one layer more, by the kind of that layer."""
    if loaded.spec.target.family == "qwen3_next":
        return _hybrid(BASE), {kind: _hybrid(kinds, kind == EXPERTS) for kind, kinds in STACKS.items()}
    kind = DELTA if loaded.spec.target.family == "gated_deltanet" else ATTENTION
    # An EAGLE-3 head reads up to three layers: both stacks have them.
    return {"target.config.num_hidden_layers": 3}, {kind: {"target.config.num_hidden_layers": 4}}


def _lines(graph: Any) -> Counter[tuple[str, str, str]]:
    found = counts.made(graph, ("Transpose", "Cast"))
    return Counter((one.type, one.place.split(": ", 1)[-1], one.fx_node.split(": ")[-1]) for one in found)


def step_count(loaded: LoadedSpec, dtype: str = "float16", batch: int = 1) -> StepCount:
    """The counts of a spec. Raises DiagnosticError without the torch_npu wheel (SPC426), LoweringFailed."""
    smaller, larger = _stacks(loaded)
    base = step_graph(loaded, dtype, batch, smaller)
    layers = []
    for kind, changes in larger.items():
        more = step_graph(loaded, dtype, batch, changes)
        lines = _lines(more)
        lines.subtract(_lines(base))
        movers = [(*line, count) for line, count in lines.items() if count > 0]
        layers.append(LayerCount(kind, counts.per_layer(more, base), movers))
    dirty = sum(not update.clean for update in counts.updates(base))
    return StepCount(counts.op_counts(base).total(), len(counts.copies(base)), dirty, layers)
