"""One view of FX calls, whoever made them: aten OpOverloads, torch functions, Tensor methods, `operator` functions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node

from specc.ir.loop import loop

_ALIASES = {
    "and_": "bitwise_and",
    "or_": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
    "inv": "bitwise_not",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "truediv": "true_divide",
    "concat": "cat",
    "concatenate": "cat",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "not_equal": "ne",
    "subtract": "sub",
    "multiply": "mul",
    "clip": "clamp",
    "absolute": "abs",
    "negative": "neg",
    "swapaxes": "transpose",
    "moveaxis": "movedim",
    "_unsafe_index": "index",
    "_unsafe_view": "view",
    "_unsafe_index_put": "index_put",
    "_to_copy": "to",
    "pad": "constant_pad_nd",
    "__getitem__": "getitem",
    "__setitem__": "setitem",
    "narrow_copy": "narrow",
    "select_copy": "select",
    "slice_copy": "slice",
}
_OPERATOR_MODULES = ("_operator", "operator")


@dataclass(frozen=True, slots=True)
class Call:
    """`name` is the op's base name: `add` for aten.add.Tensor, torch.add, Tensor.add and operator.add alike.

    `in_place` is set for ops that write into an argument (`x.add_`, `x[i] = y`, `out=`); the name then lacks the `_`.
    """

    node: Node
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    in_place: bool = False

    def arg(self, position: int, *names: str, default: Any = None) -> Any:
        """The argument at `position` or under one of `names`."""
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return self.args[position] if position < len(self.args) else default

    @property
    def written(self) -> Node | None:
        """The operand that an op in place writes: `out`, or the first."""
        target = self.kwargs.get("out") if self.kwargs.get("out") is not None else self.first
        return target if self.in_place and isinstance(target, Node) else None

    @property
    def first(self) -> Any:
        """The tensor that a method would be called on."""
        return self.arg(0, "self", "input")


def call_of(node: Node) -> Call | None:
    """The call behind a node; None for loops, submodules, attributes and placeholders."""
    if node.op == "call_method":
        name, in_place = str(node.target), False
    elif node.op == "call_function" and node.target is not loop:
        name, in_place = _function_name(node.target), _writes(node.target)
    else:
        return None
    if name.endswith("_") and not name.endswith("__") and name not in _ALIASES:
        name, in_place = name[:-1], True
    if node.target in (operator.setitem, operator.delitem, "__setitem__", "__delitem__"):
        in_place = True
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        in_place = True
    return Call(node, _ALIASES.get(name, name), node.args, node.kwargs, in_place)


@lru_cache(maxsize=4096)
def _function_name(target: Callable[..., Any] | str) -> str:
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, name = target._schema.name.partition("::")
        return name if namespace == "aten" else target._schema.name
    name = getattr(target, "__name__", str(target))
    module = getattr(target, "__module__", "") or ""
    if module in _OPERATOR_MODULES and name.startswith("i") and hasattr(operator, name[1:]):
        return name[1:] + "_"
    return name


@lru_cache(maxsize=4096)
def _writes(target: object) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return any(item.alias_info is not None and item.alias_info.is_write for item in target._schema.arguments)


def value(argument: Any) -> Any:
    """The recorded (fake) value of a node, None where it has none; anything else is itself."""
    return argument.meta.get("val") if isinstance(argument, Node) else argument


def shape_of(argument: Any) -> tuple[Any, ...] | None:
    """Sizes of a tensor argument, None where they are not recorded."""
    fake = value(argument)
    return tuple(fake.shape) if isinstance(fake, torch.Tensor) else None


def dtype_of(argument: Any) -> torch.dtype | None:
    """Dtype of a tensor argument, None for numbers and where it isn't recorded."""
    fake = value(argument)
    return fake.dtype if isinstance(fake, torch.Tensor) else None


def is_integral(argument: Any) -> bool:
    """True for integer and bool tensors, ints, and whatever has no recorded type."""
    fake = value(argument)
    if isinstance(fake, torch.Tensor):
        return not (fake.dtype.is_floating_point or fake.dtype.is_complex)
    return not isinstance(fake, float)
