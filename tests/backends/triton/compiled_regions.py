"""Compiles the regions of a shipped spec's whole step for sm_90 and prints their registers and stack as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.printing.helpers import HelperSources
from specc.backends.printing.regions import RegionCall
from specc.backends.triton.backend import prepared
from specc.backends.triton.compose import whole_steps
from specc.backends.triton.layers import batch_layers
from specc.backends.triton.regions import plan
from specc.driver import lower_spec, run_passes
from specc.ir.dims import BATCH, CHUNK
from specc.ir.edit import is_loop, loop_parts
from specc.runtime.module import import_source
from specc.spec import load
from tests.backends.triton.recorded import launched

SPECS = Path(__file__).resolve().parents[3] / "specs"


def step_graph(
    spec: str, *overrides: str, name: str = "step", prepare: Callable[[GraphModule], GraphModule] | None = None
) -> GraphModule:
    """The graph of a spec's whole step ("plain_step": of one without drafts), as it is printed with `prepared`."""
    loaded = load(SPECS / f"{spec}.yaml", overrides)
    program = run_passes(loaded, lower_spec(loaded, "triton"), target="triton", verify=False).program
    rewritten = prepare or (lambda graph: batch_layers(graph)[0])
    return whole_steps({step: rewritten(graph) for step, graph in program.graphs.items()})[name]


def calls(module: GraphModule) -> Iterator[RegionCall]:
    """The regions of a graph and of the bodies of the loops that stay loops."""
    for unit in plan(module).order:
        if isinstance(unit, RegionCall):
            yield unit
        elif is_loop(unit):
            yield from calls(loop_parts(unit).body)


def argument(node: Node) -> Any:
    """A tensor of the operand's type, for two rows."""
    value = node.meta["val"]
    if isinstance(value, int):
        return 3
    return torch.zeros([{BATCH: 2, CHUNK: 5}.get(size, size) for size in value.shape], dtype=value.dtype)


def compiled(call: RegionCall) -> dict[str, Any]:
    """What the kernel of a region needs."""
    sources = HelperSources()
    name = sources.add_generated(call.generated)
    text = "\n".join(["from __future__ import annotations", *sorted(set(sources.imports.values())), *sources.texts])
    function = getattr(import_source(text, "region"), name)
    (found,) = launched(lambda: function(*(argument(node) for node in call.inputs)))
    return asdict(found[1]) | {"rounds_angles": "tl.cos(" in text}


if __name__ == "__main__":
    graph = step_graph(sys.argv[1], "runtime.dtype=bfloat16", prepare=prepared)
    unique = {call.generated.source: call for call in calls(graph)}
    print(json.dumps([[call.generated.base, compiled(call)] for call in unique.values()]))
