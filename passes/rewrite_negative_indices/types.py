"""Fake values for graphs that carry none (symbolic_trace), from example inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv


class _Recorder(Interpreter):
    """Runs a graph on fakes and records every value."""

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        n.meta["val"] = value
        return value


def record_types(module: GraphModule, example_inputs: Sequence[object] | None) -> list[Node]:
    """Record `meta["val"]` everywhere where it is missing; returns the inputs that have no value and no example.

    `example_inputs` are tensors (only their types count) or plain values, one per placeholder.
    """
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    missing = [node for node in inputs if "val" not in node.meta]
    if not missing:
        return []
    if example_inputs is None or len(example_inputs) != len(inputs):
        return missing
    # Shapes that depend on data (masks, nonzero) become symbols of the shape environment.
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True) as mode:
        fakes = [
            mode.from_tensor(item) if isinstance(item, torch.Tensor) and not _is_fake(item) else item
            for item in example_inputs
        ]
        _Recorder(module).run(*fakes)
    return []


def _is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch._subclasses.FakeTensor)
