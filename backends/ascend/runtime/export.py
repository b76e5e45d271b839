"""Steps as GE graphs in files, for runtimes without Python."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from specc.backends.ascend.runtime.abi import COMMIT_FUSED, PREFILL_CHUNK
from specc.backends.ascend.runtime.build import (
    chunk_size,
    compiler_config,
    npu_package,
    step_inputs,
)
from specc.backends.ascend.runtime.graphs import (
    StepGraph,
    Tensors,
    flattened,
    graph_function,
)
from specc.backends.printing.runtime.abi import (
    SLOTS,
    WEIGHTS,
    State,
    Weights,
    init_state,
)
from specc.backends.printing.runtime.stored import views


def export(
    directory: str | os.PathLike[str],
    weights: Weights,
    batch: int = 1,
    device: torch.device | str = "npu",
    mode: str = "max-autotune",
) -> list[str]:
    """Write every step as a GE graph (torchair.dynamo_export), each into a folder of its own.

    Beside a graph stands inputs.json, the names of its inputs in order: weights.q_proj.0,
    state.k_cache.0, prefill.0, ... Returns the folders. Raises RuntimeError without torch_npu.
    """
    torchair = npu_package("torchair")
    state = init_state(batch, device)
    tensors = flattened(weights, views(state))
    folders: list[str] = []
    for name, graph, extra in example_calls(tensors, state):
        folder = Path(directory) / name
        folder.mkdir(parents=True, exist_ok=True)
        given = (*tensors, *extra)
        names = input_names(graph.step, len(extra))
        used = [names[number] for number in used_inputs(graph, given)]
        torchair.dynamo_export(
            *given,
            model=graph,
            export_path=str(folder),
            export_name=name,
            dynamic=False,
            config=compiler_config(mode),
        )
        (folder / "inputs.json").write_text(json.dumps(used, indent=1) + "\n")
        folders.append(str(folder))
    return folders


def example_calls(
    tensors: Tensors, state: State
) -> Iterator[tuple[str, StepGraph, Tensors]]:
    """Every graph of a batch size with its own inputs, on a fresh state: every row is finished, nothing is emitted."""
    batch, device = state.length.shape[0], state.length.device
    calls: list[tuple[str, str, Tensors]] = [
        (step, step, ()) for step in ("step", "plain", "flush")
    ]
    for size in sorted({chunk_size(1), PREFILL_CHUNK}):
        ids = torch.zeros((batch, size), dtype=torch.int64, device=device)
        calls.append((f"prefill-{size}", "prefill", (ids, torch.zeros_like(ids[:, 0]))))
    for name, step, extra in calls:
        tokens = extra[0].shape[1] if extra else 0
        yield name, graph_function(step, batch, tokens), step_inputs(step, state, extra)
    if not COMMIT_FUSED:
        # A commit takes what a step gives: run one.
        with torch.no_grad():
            results = graph_function("step", batch)(
                *tensors, *step_inputs("step", state, ())
            )
        yield "commit", graph_function("commit", batch), results[1:]


def input_names(step: str, own: int) -> list[str]:
    """The names of a step's tensors: flattened weights and slots, and its `own` ones."""
    counts = [(f"weights.{weight.name}", weight.layers) for weight in WEIGHTS]
    for name, slot in SLOTS.items():
        counts.append((f"state.{name}", slot.shape[0] if slot.batch_dim == 1 else None))
    counts.append((step, own))
    names: list[str] = []
    for name, count in counts:
        names += (
            [name] if count is None else [f"{name}.{number}" for number in range(count)]
        )
    return names


def used_inputs(graph: StepGraph, tensors: Tensors) -> list[int]:
    """The numbers of the tensors that a step reads or writes, in order: a traced graph has no other inputs."""
    found: list[int] = []

    def look(traced: GraphModule, _: Any) -> Callable[..., Any]:
        for node in traced.graph.nodes:
            number = (
                re.search(r"tensors_(\d+)_", node.name)
                if node.op == "placeholder"
                else None
            )
            if number is not None:
                found.append(int(number.group(1)))
        return traced.forward

    with torch.no_grad():
        torch.compile(graph.forward, backend=look, fullgraph=True, dynamic=False)(
            *tensors
        )
    return found
