"""Runs a GraphDef: order by data and control edges, inputs by name, every output checked against its descriptor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specc.backends.ascend.harness.evaluator.node import (
    HOUSEKEEPING,
    PROTO_TYPES,
    Node,
    Operator,
    Undefined,
    Unmodelled,
    attribute_value,
    operators,
)

Observer = Callable[[Node], None]
DATA_TYPES = frozenset({"Data", "RefData"})
CONTROL_SUFFIX = ":-1"


def evaluate(
    graph: Any,
    inputs: Sequence[torch.Tensor],
    assigned: Sequence[torch.Tensor | None] = (),
    observer: Observer | None = None,
) -> list[torch.Tensor]:
    """The graph's outputs for its `Data` inputs (by index). RefData inputs change in place.

    `assigned[i]`, where given, is the memory that output i is written to: the tensor that torchair's Assign would
    have changed (`_mapping_assign_op_to_graph_output`). `observer` sees every op before it runs. Raises Undefined and
    Unmodelled.
    """
    values: dict[str, torch.Tensor | None] = {"": None}
    results: list[torch.Tensor] | None = None
    for op in in_order(graph):
        if op.type in DATA_TYPES:
            values[f"{op.name}:0"] = _data(op, inputs)
        elif op.type == "NetOutput":
            results = [_required(values, name, op) for name in op.input if not name.endswith(CONTROL_SUFFIX)]
            _check_shapes(op, results)
        else:
            for position, value in enumerate(run_op(op, values, observer)):
                values[f"{op.name}:{position}"] = value
    if results is None:
        raise Unmodelled("the graph has no NetOutput")
    return _written(results, inputs, assigned)


def run_op(
    op: Any, values: dict[str, torch.Tensor | None], observer: Observer | None = None
) -> Sequence[torch.Tensor | None]:
    """The outputs of one op, checked."""
    model = operators().get(op.type)
    if model is None:
        raise Unmodelled(f"{op.type} {op.name}: no model for this op")
    node = Node(op, _named_inputs(op, values))
    _check_supported(node, model)
    if observer is not None:
        observer(node)
    result = model.model(node)
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    for position, value in enumerate(outputs):
        _check_output(node, position, value)
    return outputs


def in_order(graph: Any) -> list[Any]:
    """The ops so that each stands after what it reads and after its control edges, else in the graph's order."""
    by_name = {op.name: op for op in graph.op}
    done: set[str] = set()
    order: list[Any] = []
    for start in graph.op:
        stack = [start]
        while stack:
            op = stack[-1]
            if op.name in done:
                stack.pop()
                continue
            waiting = [by_name[source] for source in _sources(op) if source not in done]
            if not waiting:
                done.add(op.name)
                order.append(stack.pop())
            elif any(source in stack for source in waiting):
                raise Unmodelled(f"{op.type} {op.name}: the graph has a cycle")
            else:
                stack.extend(waiting)
    return order


def _sources(op: Any) -> list[str]:
    return [name.rpartition(":")[0] for name in op.input if name]


def _data(op: Any, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """A graph input; its element type must be the declared one."""
    index = op.attr["index"].i
    value = inputs[index]
    declared = PROTO_TYPES.get(op.output_desc[0].dtype)
    if declared is not None and declared != value.dtype:
        raise Undefined(f"{op.type} {op.name}: the graph was made for {declared}, the input is {value.dtype}")
    return value


def _required(values: dict[str, torch.Tensor | None], name: str, op: Any) -> torch.Tensor:
    value = values[name]
    if value is None:
        raise Unmodelled(f"{op.type} {op.name}: {name} has no value")
    return value


def _named_inputs(op: Any, values: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    """Input values by the names of the descriptors, which stand in the order of the data inputs."""
    data = [name for name in op.input if not name.endswith(CONTROL_SUFFIX)]
    if len(data) != len(op.input_desc):
        raise Unmodelled(f"{op.type} {op.name}: {len(data)} inputs but {len(op.input_desc)} descriptors")
    return {desc.name: values[name] for desc, name in zip(op.input_desc, data, strict=True)}


def _check_supported(node: Node, model: Operator) -> None:
    """Unmodelled for an input or an attribute that the model does not name, or a value that it does not have."""
    for name, value in node.inputs.items():
        if value is None or name in model.inputs:
            continue
        if not any(name.startswith(prefix) and name[len(prefix) :].isdigit() for prefix in model.dynamic):
            raise node.unmodelled(f"input {name} is not modelled")
    for name, attribute in node.op.attr.items():
        if name.startswith("_") or name in HOUSEKEEPING:
            continue
        if name not in model.attributes:
            raise node.unmodelled(f"attribute {name} is not modelled")
        allowed = model.attributes[name]
        value = attribute_value(attribute)
        if allowed is not None and value not in allowed:
            raise node.unmodelled(f"attribute {name} = {value!r} is not modelled (only {list(allowed)})")


def _check_output(node: Node, position: int, value: torch.Tensor | None) -> None:
    """The result's element type against what torchair's meta functions promised for outputs of an FX node."""
    if value is None or position >= len(node.op.output_desc):
        return
    described = node.op.output_desc[position]
    if "_fx_tensor_name" not in described.attr:
        return
    promised = PROTO_TYPES.get(described.dtype)
    if promised is not None and promised != value.dtype:
        raise node.unmodelled(f"output {position} is {value.dtype}, torchair expects {promised}")


def _check_shapes(op: Any, results: list[torch.Tensor]) -> None:
    """The graph's outputs against the shapes that torchair's meta functions promised."""
    for position, (described, value) in enumerate(zip(op.input_desc, results, strict=True)):
        shape = list(described.shape.dim)
        if -1 not in shape and -2 not in shape and shape != list(value.shape):
            raise Unmodelled(f"output {position} of the graph has shape {list(value.shape)}, not {shape} as promised")


def _written(
    results: list[torch.Tensor], inputs: Sequence[torch.Tensor], assigned: Sequence[torch.Tensor | None]
) -> list[torch.Tensor]:
    """Outputs in memory of their own, except those that torchair assigns to an input's memory.

    These are written when everything has been computed. That GE's memory plan lets every reader of such an input come
    before its new value is GE's part, and not seen here.
    """
    targets = list(assigned) + [None] * (len(results) - len(assigned))
    memory = {value.untyped_storage().data_ptr() for value in inputs if value.numel()}
    own = [
        value.clone() if target is None and value.untyped_storage().data_ptr() in memory else value
        for value, target in zip(results, targets, strict=True)
    ]
    staged = [value.clone() if target is not None else value for value, target in zip(own, targets, strict=True)]
    for position, target in enumerate(targets):
        if target is not None:
            target.copy_(staged[position])
            staged[position] = target
    return staged
