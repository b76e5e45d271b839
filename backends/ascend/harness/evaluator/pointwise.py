"""Element by element: arithmetic, comparisons, logic, elementary functions. fp16 and bf16 through float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from specc.backends.ascend.harness.evaluator.node import LOW_PRECISION, Node, operator, wide

Unary = Callable[[torch.Tensor], torch.Tensor]
Binary = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

UNARY: dict[str, Unary] = {
    "Abs": torch.abs,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Erf": torch.erf,
    "Expm1": torch.expm1,
    "Floor": torch.floor,
    "Gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "Log1p": torch.log1p,
    "Neg": torch.neg,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Rsqrt": torch.rsqrt,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sqrt": torch.sqrt,
    "Square": torch.square,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}

ARITHMETIC: dict[str, Binary] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Maximum": torch.maximum,
    "Minimum": torch.minimum,
    "Pow": torch.pow,
}

COMPARISONS: dict[str, Binary] = {
    "Equal": torch.eq,
    "NotEqual": torch.ne,
    "Less": torch.lt,
    "LessEqual": torch.le,
    "Greater": torch.gt,
    "GreaterEqual": torch.ge,
}

LOGIC: dict[str, Binary] = {"LogicalAnd": torch.logical_and, "LogicalOr": torch.logical_or}
BITS: dict[str, Binary] = {"BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or}


def in_float32(function: Callable[..., torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
    """`function` with fp16 and bf16 widened, its result rounded once to the inputs' type."""
    dtype = values[0].dtype
    result = function(*(wide(value) for value in values))
    return result.to(dtype) if dtype in LOW_PRECISION else result


def same_type(node: Node, *names: str) -> list[torch.Tensor]:
    """Inputs that must have one element type (GE has no implicit promotion)."""
    values = [node.tensor(name) for name in names]
    if len({value.dtype for value in values}) > 1:
        raise node.undefined(f"inputs of several types: {[str(value.dtype) for value in values]}")
    return values


def _register_unary(name: str, function: Unary) -> None:
    @operator(name, inputs=("x",))
    def model(node: Node) -> torch.Tensor:
        return in_float32(function, node.tensor("x"))


def _register_binary(name: str, function: Binary, *, widened: bool) -> None:
    @operator(name, inputs=("x1", "x2"))
    def model(node: Node) -> torch.Tensor:
        x1, x2 = same_type(node, "x1", "x2")
        return in_float32(function, x1, x2) if widened else function(x1, x2)


def _register_bool(name: str, function: Binary) -> None:
    @operator(name, inputs=("x1", "x2"))
    def model(node: Node) -> torch.Tensor:
        x1, x2 = same_type(node, "x1", "x2")
        if x1.dtype != torch.bool:
            raise node.undefined(f"logic on {x1.dtype}")
        return function(x1, x2)


for _name, _unary in UNARY.items():
    _register_unary(_name, _unary)
for _name, _binary in ARITHMETIC.items():
    _register_binary(_name, _binary, widened=True)
for _name, _binary in (COMPARISONS | BITS).items():
    _register_binary(_name, _binary, widened=False)
for _name, _binary in LOGIC.items():
    _register_bool(_name, _binary)


@operator("LogicalNot", inputs=("x",))
def logical_not(node: Node) -> torch.Tensor:
    """not x, for bool."""
    value = node.tensor("x")
    if value.dtype != torch.bool:
        raise node.undefined(f"logic on {value.dtype}")
    return torch.logical_not(value)


@operator("BitwiseNot", "Invert", inputs=("x",))
def bitwise_not(node: Node) -> torch.Tensor:
    """All bits of x flipped."""
    return torch.bitwise_not(node.tensor("x"))


@operator("IsInf", inputs=("x",))
def is_infinite(node: Node) -> torch.Tensor:
    """Whether x is an infinity."""
    return torch.isinf(node.tensor("x"))


@operator("Exp", inputs=("x",), attributes={"base": (-1.0,), "scale": (1.0,), "shift": (0.0,)})
def exponential(node: Node) -> torch.Tensor:
    """e to the power x."""
    return in_float32(torch.exp, node.tensor("x"))


@operator("Log", inputs=("x",), attributes={"base": None, "scale": (1.0,), "shift": (0.0,)})
def logarithm(node: Node) -> torch.Tensor:
    """Natural logarithm (base -1) or that of base 2 or 10."""
    functions = {-1.0: torch.log, 2.0: torch.log2, 10.0: torch.log10}
    base = node.attribute("base", -1.0)
    if base not in functions:
        raise node.unmodelled(f"attribute base = {base} is not modelled")
    return in_float32(functions[base], node.tensor("x"))


@operator("Swish", inputs=("x",), attributes={"scale": (1.0,)})
def swish(node: Node) -> torch.Tensor:
    """x sigmoid(x)."""
    return in_float32(functional.silu, node.tensor("x"))


@operator("Muls", inputs=("x",), attributes={"value": None})
def muls(node: Node) -> torch.Tensor:
    """x times a number of the graph."""
    factor = node.attribute("value")
    return in_float32(lambda x: x * factor, node.tensor("x"))


@operator("Adds", inputs=("x",), attributes={"value": None})
def adds(node: Node) -> torch.Tensor:
    """x plus a number of the graph."""
    summand = node.attribute("value")
    return in_float32(lambda x: x + summand, node.tensor("x"))


@operator("AxpyV2", inputs=("x1", "x2", "alpha"))
def axpy(node: Node) -> torch.Tensor:
    """x1 + alpha x2."""
    return _scaled_sum(node, lambda x1, x2, alpha: x1 + alpha * x2)


@operator("Sxpy", inputs=("x1", "x2", "alpha"))
def sxpy(node: Node) -> torch.Tensor:
    """x1 - alpha x2."""
    return _scaled_sum(node, lambda x1, x2, alpha: x1 - alpha * x2)


def _scaled_sum(node: Node, function: Callable[..., torch.Tensor]) -> torch.Tensor:
    x1, x2 = same_type(node, "x1", "x2")
    alpha = node.tensor("alpha").reshape(()).to(wide(x1).dtype)
    return in_float32(lambda left, right: function(left, right, alpha), x1, x2)


@operator("Addcmul", inputs=("input_data", "x1", "x2", "value"))
def addcmul(node: Node) -> torch.Tensor:
    """input_data + value x1 x2."""
    values = same_type(node, "input_data", "x1", "x2")
    value = node.tensor("value").reshape(()).to(wide(values[0]).dtype)
    return in_float32(lambda data, x1, x2: data + value * x1 * x2, *values)


@operator("RealDiv", inputs=("x1", "x2"))
def real_div(node: Node) -> torch.Tensor:
    """x1 / x2 for floating-point values (by zero: IEEE)."""
    x1, x2 = same_type(node, "x1", "x2")
    if not x1.is_floating_point():
        raise node.undefined(f"RealDiv of {x1.dtype}")
    return in_float32(torch.div, x1, x2)


@operator("FloorDiv", inputs=("x1", "x2"))
def floor_div(node: Node) -> torch.Tensor:
    """The largest whole number not above x1 / x2."""
    x1, x2 = _divisible(node)
    return in_float32(lambda left, right: torch.div(left, right, rounding_mode="floor"), x1, x2)


@operator("TruncateDiv", "Div", inputs=("x1", "x2"))
def truncate_div(node: Node) -> torch.Tensor:
    """x1 / x2 without its fraction."""
    x1, x2 = _divisible(node)
    return in_float32(lambda left, right: torch.div(left, right, rounding_mode="trunc"), x1, x2)


@operator("FloorMod", inputs=("x1", "x2"))
def floor_mod(node: Node) -> torch.Tensor:
    """x1 - x2 floor(x1 / x2): the sign of x2."""
    x1, x2 = _divisible(node)
    return in_float32(torch.remainder, x1, x2)


def _divisible(node: Node) -> list[torch.Tensor]:
    """Two inputs of one type; whole numbers divided by zero are undefined."""
    x1, x2 = same_type(node, "x1", "x2")
    if not x2.is_floating_point() and bool((x2 == 0).any()):
        raise node.undefined("whole numbers divided by zero")
    return [x1, x2]


@operator("ClipByValueV2", inputs=("x", "clip_value_min", "clip_value_max"))
def clip(node: Node) -> torch.Tensor:
    """min(max(x, clip_value_min), clip_value_max)."""
    value, low, high = same_type(node, "x", "clip_value_min", "clip_value_max")
    return torch.minimum(torch.maximum(value, low), high)


@operator("Lerp", inputs=("start", "end", "weight"))
def lerp(node: Node) -> torch.Tensor:
    """start + weight (end - start)."""
    return in_float32(
        lambda start, end, weight: start + weight * (end - start), *same_type(node, "start", "end", "weight")
    )
