"""Types of nodes: inference on fake tensors, comparison, text. Loop bodies are visited once, not once per trip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node

from specc.ir.build import body_types, output_values, value_of
from specc.ir.dims import type_text
from specc.ir.infer import UntypedError, fake_mode, infer
from specc.ir.loop import fake_loop, loop, slice_operand

__all__ = [
    "LoopTypeError",
    "UntypedError",
    "body_of",
    "infer",
    "node_type",
    "operand_types",
    "retype",
    "same_type",
    "signature",
    "value_text",
]


class LoopTypeError(Exception):
    """A loop body's placeholders or results do not fit the loop's operands."""


def signature(value: Any) -> Any:
    """What two types must agree in: (shape, dtype) of tensors, through tuples; the class of scalars."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(signature(item) for item in value)
    return None if value is None else type(value)


def same_type(left: Any, right: Any) -> bool:
    """True where both values have equal signatures."""
    return bool(signature(left) == signature(right))


def value_text(value: Any) -> str:
    """`f32[B,16]`; tuples `(f32[B], i64[B])`, or `30 x f32[576]` where all parts are equal; `int`, `float`, `bool`."""
    if isinstance(value, torch.Tensor):
        return type_text(value.shape, value.dtype)
    if isinstance(value, (list, tuple)):
        parts = [value_text(item) for item in value]
        if len(parts) > 1 and len(set(parts)) == 1:
            return f"{len(parts)} x {parts[0]}"
        return f"({', '.join(parts)})"
    return "none" if value is None else type(value).__name__


def node_type(module: GraphModule, node: Node) -> Any:
    """Type of a non-placeholder node from its operands' recorded types.

    A loop's type follows from its body's recorded result types. Raises UntypedError, LoopTypeError, or whatever the
    op raises on operands that do not fit.
    """
    if node.op == "output":
        return value_of(node.args[0])
    if node.op == "get_attr":
        return _attribute_type(module, str(node.target))
    if node.op == "call_function" and node.target is loop:
        return _loop_type(module, node)
    if node.op == "call_function":
        assert callable(node.target)
        return infer(node.target, node.args, node.kwargs)
    if node.op == "call_method":
        name = str(node.target)
        return infer(lambda self, *rest, **named: getattr(self, name)(*rest, **named), node.args, node.kwargs)
    return infer(_on_fakes(module.get_submodule(str(node.target))), node.args, node.kwargs)


def _attribute(module: GraphModule, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _attribute_type(module: GraphModule, path: str) -> Any:
    value = _attribute(module, path)
    return fake_mode().from_tensor(value) if isinstance(value, torch.Tensor) else None


def _on_fakes(submodule: torch.nn.Module) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        named = dict(submodule.named_parameters()) | dict(submodule.named_buffers())
        fakes: dict[str, torch.Tensor] = {name: fake_mode().from_tensor(value) for name, value in named.items()}
        return torch.func.functional_call(submodule, fakes, args, kwargs)

    return call


def body_of(module: GraphModule, node: Node) -> GraphModule:
    """The body of a loop node that stands in `module`."""
    attribute = node.args[1]
    assert isinstance(attribute, Node)
    assert attribute.op == "get_attr"
    body = _attribute(module, str(attribute.target))
    assert isinstance(body, GraphModule)
    return body


def operand_types(node: Node) -> list[Any]:
    """Types that the body's placeholders of a loop node must have: index, carried, slices, invariants."""
    axis, _, _, carried, sliced, invariant = node.args
    assert isinstance(axis, str)
    mode = detect_fake_mode(value_of((carried, sliced, invariant))) or fake_mode()
    with mode:
        slices = [slice_operand(axis, value, 0) for value in value_of(sliced)]
    return [0, *value_of(carried), *slices, *value_of(invariant)]


def _loop_type(module: GraphModule, node: Node) -> tuple[Any, ...]:
    axis, _, trip, carried, sliced, invariant = node.args
    body = body_of(module, node)
    results = value_of(output_values(body))
    for position, value in enumerate(value_of(carried)):
        if position >= len(results) or not same_type(value, results[position]):
            got = value_text(results[position]) if position < len(results) else "nothing"
            raise LoopTypeError(f"carried value {position} is {value_text(value)}, but the body returns {got}")
    with detect_fake_mode(value_of((carried, sliced, invariant))) or fake_mode():
        return fake_loop(axis, body_types(body), trip, value_of(carried), value_of(sliced), value_of(invariant))  # type: ignore[arg-type]


def retype(module: GraphModule) -> None:
    """Recompute `meta["val"]` of every node in place, bodies included (each once), from the placeholders' types.

    Body placeholders follow the operands of their loop. Raises LoopTypeError, or what an op raises on operands
    that do not fit.
    """
    for node in module.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "call_function" and node.target is loop:
            body = body_of(module, node)
            inside = [item for item in body.graph.nodes if item.op == "placeholder"]
            types = operand_types(node)
            if len(inside) != len(types):
                raise LoopTypeError(f"`{node.name}` has {len(types)} operands, its body {len(inside)} placeholders")
            for placeholder, value in zip(inside, types, strict=True):
                placeholder.meta["val"] = value
            retype(body)
        node.meta["val"] = node_type(module, node)
