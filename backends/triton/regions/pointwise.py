"""Elementwise nodes: one line each, computed as torch computes them and rounded to the node's dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from specc.backends.printing.naming import wanted_name
from specc.backends.triton.kernels import region_math
from specc.backends.triton.regions.values import Block, Shape, Unsupported, register_type
from specc.backends.triton.regions.writer import Writer
from specc.ir.scope import named_arguments

# How texts of operands, in the dtype that torch computes in, make the text of the result.
Form = Callable[[Writer, Sequence[str], torch.dtype], str]


def number_text(value: float | int | bool, dtype: torch.dtype) -> str:
    """A Python number in an expression of `dtype`."""
    if dtype == torch.bool:
        return str(int(bool(value)))
    if not dtype.is_floating_point:
        return str(int(value))
    number = float(value)
    return repr(number) if math.isfinite(number) else f'float("{number!r}")'


def _infix(operator: str) -> Form:
    return lambda _, texts, __: f"{texts[0]} {operator} {texts[1]}"


def _call(function: str) -> Form:
    return lambda _, texts, __: f"{function}({', '.join(texts)})"


def _helper(function: Any) -> Form:
    return lambda w, texts, __: f"{w.helper(function)}({', '.join(texts)})"


def _extreme(function: str) -> Form:
    def form(_: Writer, texts: Sequence[str], dtype: torch.dtype) -> str:
        rule = ", propagate_nan=tl.PropagateNan.ALL" if dtype.is_floating_point else ""
        return f"{function}({texts[0]}, {texts[1]}{rule})"

    return form


def _divide(_: Writer, texts: Sequence[str], dtype: torch.dtype) -> str:
    if dtype == torch.float64:
        return f"{texts[0]} / {texts[1]}"
    first, second = (text if not _is_number(text) else f"tl.full([], {text}, tl.float32)" for text in texts)
    return f"tl.div_rn({first}, {second})"


def _is_number(text: str) -> bool:
    return text[0].isdigit() or text[0] in "-." or text.startswith("float(")


def _clamp(w: Writer, texts: Sequence[str], dtype: torch.dtype) -> str:
    low, high = texts[1], texts[2]
    text = texts[0] if low == "None" else _extreme("tl.maximum")(w, (texts[0], low), dtype)
    return text if high == "None" else _extreme("tl.minimum")(w, (text, high), dtype)


def _log(_: Writer, texts: Sequence[str], __: torch.dtype) -> str:
    return f"tl.log({texts[0]})"


# Names of overloads -> form. Computed in the result's dtype (16-bit floats in float32).
FORMS: Mapping[str, Form] = {
    "add.Tensor": _infix("+"),
    "add.Scalar": _infix("+"),
    "sub.Tensor": _infix("-"),
    "sub.Scalar": _infix("-"),
    "rsub.Scalar": lambda _, texts, __: f"{texts[1]} - {texts[0]}",
    "mul.Tensor": _infix("*"),
    "mul.Scalar": _infix("*"),
    "div.Tensor": _divide,
    "div.Scalar": _divide,
    "floor_divide.default": _helper(region_math.floor_div),
    "remainder.Scalar": _helper(region_math.floor_mod),
    "remainder.Tensor": _helper(region_math.floor_mod),
    "maximum.default": _extreme("tl.maximum"),
    "minimum.default": _extreme("tl.minimum"),
    "clamp.default": _clamp,
    "clamp_min.default": _extreme("tl.maximum"),
    "clamp_max.default": _extreme("tl.minimum"),
    "neg.default": lambda _, texts, __: f"-{texts[0]}",
    "abs.default": _call("tl.abs"),
    "exp.default": _call("tl.exp"),
    "log.default": _log,
    "log1p.default": _helper(region_math.log1p),
    "sqrt.default": _call("tl.sqrt_rn"),
    "rsqrt.default": lambda w, texts, dtype: _divide(w, ("1.0", f"tl.sqrt_rn({texts[0]})"), dtype),
    "reciprocal.default": lambda w, texts, dtype: _divide(w, ("1.0", texts[0]), dtype),
    "square.default": lambda _, texts, __: f"{texts[0]} * {texts[0]}",
    "sin.default": _call("tl.sin"),
    "cos.default": _call("tl.cos"),
    "sigmoid.default": _helper(region_math.sigmoid),
    "silu.default": _helper(region_math.silu),
    "softplus.default": _helper(region_math.softplus),
    "relu.default": lambda w, texts, dtype: _extreme("tl.maximum")(w, (texts[0], "0.0"), dtype),
    "bitwise_and.Tensor": _infix("&"),
    "bitwise_or.Tensor": _infix("|"),
    "bitwise_xor.Tensor": _infix("^"),
    "bitwise_not.default": lambda _, texts, __: f"~{texts[0]}",
}
# Computed in the promoted dtype of the operands; the result is bool.
COMPARISONS: Mapping[str, str] = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_LOGICAL: Mapping[str, str] = {"logical_and.default": "&", "logical_or.default": "|", "logical_xor.default": "!="}
# Not defined for a last operand of 0, which the padding may hold.
_PARTIAL = frozenset(
    {
        "div.Tensor",
        "div.Scalar",
        "log.default",
        "rsqrt.default",
        "reciprocal.default",
        "floor_divide.default",
        "remainder.Tensor",
    }
)
# The other arguments have to be absent, or as given here.
_FIXED: Mapping[str, Any] = {"alpha": 1, "beta": 1, "threshold": 20, "rounding_mode": None, "approximate": "none"}


def overload_name(node: Node) -> str:
    """`add.Tensor`."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    return f"{target._schema.name.split('::')[1]}.{target._overloadname}"


def result_layout(w: Writer, operands: Sequence[Block], node: Node) -> tuple[Shape, tuple[int, ...], int]:
    """Shape, axes and lead of a broadcasting node's result."""
    fake = node.meta["val"]
    lead = w.kind.lead(fake.shape)
    shape = tuple(int(size) for size in fake.shape[lead:])
    axes = sorted({axis for operand in operands for axis in w.aligned(operand, shape)})
    return shape, tuple(axes), lead


def operand(w: Writer, value: Any, dtype: torch.dtype) -> Block:
    """A tensor or number as a block of `dtype`."""
    if isinstance(value, Node):
        return cast(w, w.block(value), dtype)
    if value is None:
        return Block("None", dtype, (), (), 0, literal=True)
    if isinstance(value, (bool, int, float)):
        return Block(number_text(value, dtype), dtype, (), (), 0, literal=True)
    raise Unsupported(f"operand {value!r}")


def cast(w: Writer, block: Block, dtype: torch.dtype) -> Block:
    """The block in another dtype, as torch converts."""
    if block.dtype == dtype or block.text == "None":
        return block
    if block.literal and not block.dtype.is_floating_point:
        text = block.text if not dtype.is_floating_point or not block.text.lstrip("-").isdigit() else f"{block.text}.0"
        return Block(text, dtype, block.shape, block.axes, block.lead, literal=True)
    source = w.typed(block)
    if dtype == torch.bool:
        text = f"({source} != 0)"
    elif register_type(dtype) == register_type(block.dtype):
        if dtype == torch.float32 or not dtype.is_floating_point:
            return Block(block.text, dtype, block.shape, block.axes, block.lead, block.literal)
        text = w.rounded(source, dtype)
    else:
        text = w.rounded(f"{source}.to({register_type(dtype)})", dtype)
    made = w.let("wide", text, dtype, block.shape, block.axes, block.lead)
    return replace(made, small=True) if dtype == torch.int64 and not block.dtype.is_floating_point else made


def compute(w: Writer, node: Node, operands: Sequence[Block], form: Form, computed: torch.dtype) -> Block:
    """The node's line: `form` of the operands, rounded to the node's dtype."""
    dtype = node.meta["val"].dtype
    shape, axes, lead = result_layout(w, operands, node)
    texts = [w.spread(item, shape, axes) for item in operands]
    if all(item.literal for item in operands):
        texts = [w.typed(item) if item.text != "None" else "None" for item in operands]
    text = form(w, texts, computed)
    return w.let(wanted_name(node), w.rounded(text, dtype) if dtype != computed else text, dtype, shape, axes, lead)


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which torch computes a node with this result."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def pointwise(w: Writer, node: Node) -> Block:
    """A node of `FORMS`."""
    name = overload_name(node)
    given = named_arguments(node)
    tensors = [value for key, value in given.items() if key not in _FIXED]
    if any(key in _FIXED and value != _FIXED[key] for key, value in given.items()):
        raise Unsupported(f"{name} with {given}")
    if name == "clamp.default":
        tensors += [None] * (3 - len(tensors))
    dtype = node.meta["val"].dtype
    computed = working(dtype)
    if dtype == torch.bool and not name.startswith("bitwise"):
        raise Unsupported(f"{name} of booleans")
    operands = [operand(w, value, computed) for value in tensors]
    if name in _PARTIAL and w.masks(operands[-1].shape, operands[-1].axes):
        operands[-1] = w.safe(operands[-1])
    if name in ("floor_divide.default", "remainder.Scalar", "remainder.Tensor") and dtype.is_floating_point:
        raise Unsupported(f"{name} of floats")
    if name == "bitwise_not.default" and dtype == torch.bool:
        return compute(w, node, operands, lambda _, texts, __: f"{texts[0]} == 0", dtype)
    return compute(w, node, operands, FORMS[name], computed)


def _promoted(values: Sequence[Any]) -> torch.dtype:
    """The dtype that torch compares tensors and numbers in."""
    known = [value.meta["val"] if isinstance(value, Node) else value for value in values]
    dtypes = [value.dtype for value in known if isinstance(value, torch.Tensor)]
    dtype = dtypes[0]
    for other in dtypes[1:]:
        dtype = torch.promote_types(dtype, other)
    for value in known:
        if isinstance(value, float) and not dtype.is_floating_point:
            dtype = torch.float32
        elif isinstance(value, int) and not isinstance(value, bool) and dtype == torch.bool:
            dtype = torch.int64
    return working(dtype)


def comparison(w: Writer, node: Node) -> Block:
    """`lt`, `eq`, …."""
    values = list(named_arguments(node).values())
    computed = _promoted(values)
    operands = [operand(w, value, computed) for value in values]
    return compute(w, node, operands, _infix(COMPARISONS[overload_name(node).split(".")[0]]), torch.bool)


def logical(w: Writer, node: Node) -> Block:
    """`logical_and`, `logical_or`, `logical_xor`."""
    operands = [operand(w, value, torch.bool) for value in node.args]
    return compute(w, node, operands, _infix(_LOGICAL[overload_name(node)]), torch.bool)


def logical_not(w: Writer, node: Node) -> Block:
    """`logical_not`."""
    value = w.block(node.args[0])  # type: ignore[arg-type]
    return compute(w, node, [value], lambda _, texts, __: f"{texts[0]} == 0", torch.bool)


def where(w: Writer, node: Node) -> Block:
    """`where(condition, a, b)`."""
    dtype = node.meta["val"].dtype
    condition, first, second = node.args
    chosen = operand(w, condition, torch.bool)
    return _select(w, node, chosen, operand(w, first, dtype), operand(w, second, dtype))


def _select(w: Writer, node: Node, condition: Block, first: Block, second: Block) -> Block:
    dtype = node.meta["val"].dtype
    shape, axes, lead = result_layout(w, (condition, first, second), node)
    if condition.literal:
        condition = Block(w.typed(condition), torch.bool, condition.shape, condition.axes, condition.lead)
    if (first.literal and second.literal) or dtype in (torch.float64, torch.bool):
        first, second = (Block(w.typed(item), dtype, item.shape, item.axes, item.lead) for item in (first, second))
    texts = [w.spread(item, shape, axes) for item in (condition, first, second)]
    return w.let(wanted_name(node), f"tl.where({', '.join(texts)})", dtype, shape, axes, lead)


def masked_fill(w: Writer, node: Node) -> Block:
    """`x.masked_fill(mask, number)`."""
    dtype = node.meta["val"].dtype
    value, mask, number = node.args
    if isinstance(number, Node):
        raise Unsupported("masked_fill with a tensor")
    return _select(w, node, operand(w, mask, torch.bool), operand(w, number, dtype), operand(w, value, dtype))


def convert(w: Writer, node: Node) -> Block:
    """`x.to(dtype)`."""
    given = named_arguments(node)
    if any(value not in (None, False) for key, value in given.items() if key not in ("self", "dtype", "memory_format")):
        raise Unsupported("a conversion to another device or layout")
    block = w.block(given["self"])
    made = cast(w, block, node.meta["val"].dtype)
    if made.text == block.text or made.literal:
        return made
    # The line carries the node's name.
    last = w.lines.pop().strip().split(" = ", 1)[1]
    return w.let(wanted_name(node), last, made.dtype, made.shape, made.axes, made.lead)


def floor_quotient(w: Writer, node: Node) -> Block:
    """`div` with a rounding mode, of integers."""
    given = named_arguments(node)
    dtype = node.meta["val"].dtype
    if dtype.is_floating_point or given.get("rounding_mode") != "floor":
        raise Unsupported("div with this rounding")
    operands = [operand(w, given["self"], dtype), w.safe(operand(w, given["other"], dtype))]
    return compute(w, node, operands, _helper(region_math.floor_div), dtype)


def identity(w: Writer, node: Node) -> Block:
    """`clone`, `contiguous`, `detach`: the value as it is when the kernel runs."""
    return w.block(named_arguments(node)["self"])
