"""How aten overloads and Python operators are written in idiomatic PyTorch.

Each entry takes the printed arguments and returns an expression with the same meaning, or None where the idiom
does not cover these arguments; then the overload itself is called (`torch.ops.aten.name.overload(...)`), so
that every op can be printed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from specc.backends.printing import expression as e
from specc.backends.printing.expression import Expr
from specc.backends.printing.literals import literal

# An argument as printed: an expression, or (for lists) the expressions of its items; and the raw FX argument.
Argument = Any
Writer = Callable[[Sequence[Argument], Sequence[Any]], Expr | None]

_INFIX: Mapping[str, tuple[str, int]] = {
    "add": ("+", e.ADD),
    "sub": ("-", e.ADD),
    "mul": ("*", e.MUL),
    "div": ("/", e.MUL),
    "floor_divide": ("//", e.MUL),
    "remainder": ("%", e.MUL),
    "bitwise_and": ("&", e.AND),
    "bitwise_or": ("|", e.OR),
    "bitwise_xor": ("^", e.XOR),
    "__and__": ("&", e.AND),
    "__or__": ("|", e.OR),
    "lt": ("<", e.COMPARE),
    "le": ("<=", e.COMPARE),
    "gt": (">", e.COMPARE),
    "ge": (">=", e.COMPARE),
    "eq": ("==", e.COMPARE),
    "ne": ("!=", e.COMPARE),
}
_PREFIX: Mapping[str, str] = {"neg": "-", "bitwise_not": "~"}
# Positional arguments of these overloads mean the same in the Tensor method of that name.
_METHODS = frozenset(
    """
    abs all amax amin any argmax argmin argsort clamp clamp_max clamp_min clone contiguous copy_ cos cumsum detach
    exp expand expand_as expm1 flip gather index_select isfinite isinf isnan log log1p logsumexp masked_fill
    max maximum mean min minimum narrow permute prod reciprocal repeat reshape rsqrt scatter select sigmoid
    sin softmax sqrt square squeeze sum t take tanh topk transpose tril triu unsqueeze view log_softmax to
    sort type_as new_zeros scatter_add index_add masked_scatter flatten
    """.split()  # noqa: SIM905
)
_FUNCTIONS: Mapping[str, str] = {
    "where": "torch.where",
    "cat": "torch.cat",
    "stack": "torch.stack",
    "unflatten": "torch.unflatten",
    "select_scatter": "torch.select_scatter",
    "slice_scatter": "torch.slice_scatter",
    "full_like": "torch.full_like",
    "zeros_like": "torch.zeros_like",
    "ones_like": "torch.ones_like",
    "logical_and": "torch.logical_and",
    "logical_or": "torch.logical_or",
    "logical_not": "torch.logical_not",
    "logaddexp": "torch.logaddexp",
    "take_along_dim": "torch.take_along_dim",
    "split_with_sizes": "torch.split",
    "matmul": "torch.matmul",
    "bmm": "torch.bmm",
    "linear": "F.linear",
    "silu": "F.silu",
    "gelu": "F.gelu",
    "relu": "F.relu",
    "rms_norm": "F.rms_norm",
    "softplus": "F.softplus",
}
# Overloads whose meaning is not that of the plain form.
_EXCLUDED = frozenset({"div.Tensor_mode", "div.Scalar_mode", "where.default", "max.out", "min.out"})


def _index(printed: Sequence[Argument], raw: Sequence[Any]) -> Expr | None:
    """`x[batch, index]`; None stands for a whole dimension. Boolean masks and integers index alike."""
    if len(raw) != 2 or not raw[1]:
        return None
    parts = [Expr(":") if item is None else text for item, text in zip(raw[1], printed[1], strict=True)]
    return e.subscript(printed[0], parts)


def _leading(dim: Any) -> list[Expr] | None:
    """What stands before the index of `dim`: `:` per dimension, or `...` for the last."""
    if not isinstance(dim, int) or dim < -1:
        return None
    return [Expr("...")] if dim == -1 else [Expr(":")] * dim


def _select(printed: Sequence[Argument], raw: Sequence[Any]) -> Expr | None:
    before = _leading(raw[1])
    return None if before is None else e.subscript(printed[0], [*before, printed[2]])


def _slice(printed: Sequence[Argument], raw: Sequence[Any]) -> Expr | None:
    before = _leading(raw[1] if len(raw) > 1 else 0)
    if before is None or len(raw) > 5:
        return None
    start = "" if len(raw) < 3 or raw[2] in (None, 0) else printed[2].at(e.OR)
    stop = "" if len(raw) < 4 or raw[3] is None or raw[3] == 2**63 - 1 else printed[3].at(e.OR)
    step = "" if len(raw) < 5 or raw[4] == 1 else f":{printed[4].at(e.OR)}"
    return e.subscript(printed[0], [*before, Expr(f"{start}:{stop}{step}")])


def _embedding(printed: Sequence[Argument], raw: Sequence[Any]) -> Expr | None:
    return e.call("F.embedding", [printed[1], printed[0]]) if len(raw) == 2 else None


def _size(printed: Sequence[Argument], raw: Sequence[Any]) -> Expr | None:
    return e.subscript(Expr(f"{printed[0].at(e.ATOM)}.shape"), [printed[1]]) if len(raw) == 2 else None


_SPECIAL: Mapping[str, Writer] = {
    "sym_size.int": _size,
    "index.Tensor": _index,
    "select.int": _select,
    "slice.Tensor": _slice,
    "embedding.default": _embedding,
}
_OPERATORS: Mapping[Any, tuple[str, int]] = {
    operator.add: ("+", e.ADD),
    operator.sub: ("-", e.ADD),
    operator.mul: ("*", e.MUL),
    operator.floordiv: ("//", e.MUL),
    operator.mod: ("%", e.MUL),
}


def write_operator(target: Any, printed: Sequence[Argument]) -> Expr | None:
    """A call of `operator.add`, … on ints, or `operator.getitem`."""
    if target is operator.getitem:
        return e.subscript(printed[0], [printed[1]])
    if target is operator.neg:
        return e.prefix("-", printed[0])
    if target in _OPERATORS and len(printed) == 2:
        return e.infix(*_OPERATORS[target], *printed)
    return None


def write_aten(
    target: torch._ops.OpOverload,
    printed: Sequence[Argument],
    raw: Sequence[Any],
    keywords: Sequence[tuple[str, Argument]],
) -> Expr:
    """A call of an aten overload; `printed` and `raw` are the positional arguments."""
    name = target._schema.name.split("::")[1]
    overload = f"{name}.{target._overloadname}"
    made = None if overload in _EXCLUDED else _idiom(name, overload, printed, raw, keywords)
    if made is not None:
        return made
    flat = [_flat(argument) for argument in printed]
    return e.call(
        f"torch.ops.{target._schema.name.replace('::', '.')}.{target._overloadname}", flat, _flat_keys(keywords)
    )


def _idiom(
    name: str,
    overload: str,
    printed: Sequence[Argument],
    raw: Sequence[Any],
    keywords: Sequence[tuple[str, Argument]],
) -> Expr | None:
    if overload == "_to_copy.default" and len(printed) == 1 and [key for key, _ in keywords] == ["dtype"]:
        return e.method(printed[0], "to", [keywords[0][1]])
    if overload in _SPECIAL:
        return None if keywords else _SPECIAL[overload](printed, raw)
    if name in _INFIX and not keywords and len(printed) == 2:
        return e.infix(*_INFIX[name], printed[0], printed[1])
    if name == "rsub" and not keywords and len(printed) == 2:
        return e.infix("-", e.ADD, printed[1], printed[0])
    if name in _PREFIX and not keywords:
        return e.prefix(_PREFIX[name], printed[0])
    if name in _FUNCTIONS:
        return e.call(_FUNCTIONS[name], [_flat(argument) for argument in printed], _flat_keys(keywords))
    if name in _METHODS and isinstance(raw[0], torch.fx.Node) and not overload.endswith(("_out", ".out")):
        rest = [_flat(argument) for argument in printed[1:]]
        return e.method(printed[0], name, rest, _flat_keys(keywords))
    return None


def _flat(argument: Argument) -> Expr:
    """Lists of printed items as one expression."""
    return e.listing([_flat(item) for item in argument]) if isinstance(argument, list) else argument


def _flat_keys(keywords: Sequence[tuple[str, Argument]]) -> list[tuple[str, Expr]]:
    return [(name, _flat(item)) for name, item in keywords]


def constant(value: Any) -> Expr:
    """A literal argument."""
    text = literal(value)
    return Expr(text, e.UNARY if text.startswith("-") else e.ATOM)
