"""canonicalize: one way to write each thing, so that later patterns have one form to match.

    %a = aten.flatten(%x, -2, -1)            %b -> %x
    %b = aten.unflatten(%a, -1, [4, 8])

Rules (each is a function below; all are exact, floats bit by bit):
no-op (an op that returns its operand), reshape-chain, transpose-pair, integer-sum ((x + a) + b -> x + (a + b), x + 0),
same-operands (where(c, x, x), x & x), rejoined-split (cat of neighbours of one split), constant-fold (integer
arithmetic), constant-operand (a number passed into a loop), unchanged-carried (a carried value that the body hands on
becomes an invariant).
In a graph that writes in place, rules that would change which tensors share memory do not fire.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from specc.ir.clone import clone
from specc.ir.edit import (
    Editor,
    add_invariant,
    erase_dead,
    finish,
    inherit,
    is_impure,
    is_loop,
    loop_parts,
    modules,
)
from specc.ir.text import ARITHMETIC
from specc.manager import ALL_PROPERTIES, Note, Pass, PassContext, PassResult
from specc.program import DecodeProgram

aten = torch.ops.aten
NAME = "canonicalize"
# Ops that keep the elements in row-major order: a chain of them is given by its source and its last shape.
RESHAPES = frozenset(
    {
        *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints),
        *(aten.unflatten.int, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default),
    }
)
ABSOLUTE = frozenset({aten.view.default, aten.reshape.default, aten._unsafe_view.default})
# Ops that return their first operand where the type does not change.
IDENTITIES = frozenset(
    {
        *(aten.expand.default, aten.narrow.default, aten.slice.Tensor, aten.alias.default, aten.detach.default),
        *(aten.to.dtype, aten.to.device, aten._to_copy.default, aten.clone.default, aten.contiguous.default),
    }
)
SUMS = {aten.add.Tensor: 1, aten.sub.Tensor: -1, aten.add.Scalar: 1, aten.sub.Scalar: -1}
COMPARISONS = frozenset({aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar})
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
_MISSING = object()


def _typed(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _equal_type(left: Any, right: Any) -> bool:
    """Same static shape, dtype and device; False where sizes are symbols of torch.export."""
    first, second = _typed(left), _typed(right)
    if first is None or second is None:
        return False
    if not all(type(size) is int for size in (*first.shape, *second.shape)):
        return False
    return first.shape == second.shape and first.dtype == second.dtype and first.device == second.device


def _no_op(node: Node, editor: Editor, pure: bool) -> Any:
    """An op that returns its operand."""
    if node.target is aten.cat.default and len(node.args[0]) == 1 and pure:  # type: ignore[arg-type]
        return node.args[0][0]  # type: ignore[index]
    if node.target in (aten.mul.Tensor, aten.mul.Scalar) and not node.kwargs and pure:
        x, factor = node.args
        if type(factor) in (int, float) and factor == 1 and _equal_type(x, node):
            return x
    if node.target not in (RESHAPES if pure else frozenset({aten.view.default})) | (
        IDENTITIES if pure else frozenset()
    ):
        return _MISSING
    source = node.args[0]
    if not _equal_type(source, node):
        return _MISSING
    # A copy may be there for the layout of its result: strides must agree too.
    return source if _typed(source).stride() == _typed(node).stride() else _MISSING  # type: ignore[union-attr]


def _reshape_chain(node: Node, editor: Editor, pure: bool) -> Any:
    """A reshape of a reshape: back at the source, or straight from it where the last shape is absolute."""
    source = node.args[0] if node.args else None
    if not pure or node.target not in RESHAPES or not isinstance(source, Node) or source.target not in RESHAPES:
        return _MISSING
    first: Any = source
    while isinstance(first, Node) and first.target in RESHAPES:
        first = first.args[0]
        if _equal_type(first, node) and _typed(first).stride() == _typed(node).stride():  # type: ignore[union-attr]
            return first
    if node.target not in ABSOLUTE:
        return _MISSING
    with editor.before(node, source):
        return editor.call(aten.reshape.default, source.args[0], *node.args[1:], name=node.name)


def _transpose_pair(node: Node, editor: Editor, pure: bool) -> Any:
    """transpose(transpose(x, a, b), a, b) is x."""
    if node.target is not aten.transpose.int:
        return _MISSING
    inner = node.args[0]
    if not isinstance(inner, Node) or inner.target is not aten.transpose.int or _typed(node) is None:
        return _MISSING
    rank = _typed(node).dim()  # type: ignore[union-attr]
    pairs = [{int(dim) % rank for dim in item.args[1:]} for item in (node, inner)]  # type: ignore[arg-type]
    return inner.args[0] if pairs[0] == pairs[1] else _MISSING


def _integer_sum(node: Node, editor: Editor, pure: bool) -> Any:
    """Integer x + 0 is x; (x + a) + b is x + (a + b)."""
    value = _typed(node)
    term = _sum_term(node)
    if term is None or value is None or value.dtype not in _INTEGERS or not pure:
        return _MISSING
    x, constant = term
    if constant == 0 and _equal_type(x, node):
        return x
    inner = _sum_term(x) if isinstance(x, Node) else None
    if inner is None or not _equal_type(inner[0], node) or _is_compared(x):
        return _MISSING
    total = inner[1] + constant
    if total == 0:
        return inner[0]
    with editor.before(node, x):
        return editor.call(aten.add.Tensor, inner[0], total)


def _is_compared(x: Node) -> bool:
    """Whether x decides a case: where(x < 0, x + n, x) is seen to be in range only while it is written with one x."""
    return any(user.target in COMPARISONS for user in x.users)


def _sum_term(node: Node) -> tuple[Any, int] | None:
    """(x, c) where the node is x + c or x - c with a constant integer c."""
    if node.target not in SUMS or node.kwargs or len(node.args) != 2:
        return None
    x, constant = node.args
    if not isinstance(x, Node) or type(constant) is not int:
        return None
    return x, SUMS[node.target] * constant


def _same_operands(node: Node, editor: Editor, pure: bool) -> Any:
    """where(c, x, x), x & x, x | x."""
    pair: tuple[Any, ...] = ()
    if node.target is aten.where.self:
        pair = node.args[1:]
    elif node.target in (
        *(aten.logical_and.default, aten.logical_or.default, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor),
    ):
        pair = node.args
    return pair[0] if pure and len(pair) == 2 and pair[0] is pair[1] and _equal_type(pair[0], node) else _MISSING


def _rejoined_split(node: Node, editor: Editor, pure: bool) -> Any:
    """cat of parts of one split that follow each other is a narrow of what was split."""
    parts: Any = node.args[0] if node.target is aten.cat.default and pure else ()
    if len(parts) < 2 or not all(isinstance(part, Node) and part.target is operator.getitem for part in parts):
        return _MISSING
    split, first = parts[0].args
    if split.target is not aten.split_with_sizes.default or _typed(node) is None:
        return _MISSING
    source, sizes, *rest = split.args
    dim = rest[0] if rest else 0
    rank = _typed(node).dim()  # type: ignore[union-attr]
    wanted = [(split, place) for place in range(first, first + len(parts))]
    given = node.args[1] if len(node.args) > 1 else 0
    if [part.args for part in parts] != wanted or dim % rank != given % rank:  # type: ignore[operator]
        return _MISSING
    start, size = sum(sizes[:first]), sum(sizes[first : first + len(parts)])
    with editor.before(node, split):
        return editor.call(aten.narrow.default, source, dim, start, size, name=node.name)


def _constant_fold(node: Node, editor: Editor, pure: bool) -> Any:
    """Integer arithmetic on constants; n + 0, n - 0, n * 1."""
    if node.target not in ARITHMETIC.values() or node.target is ARITHMETIC["getitem"] or node.kwargs:
        return _MISSING
    assert callable(node.target)
    if all(type(item) is int for item in node.args):
        if node.target in (ARITHMETIC["floordiv"], ARITHMETIC["mod"]) and node.args[1] == 0:
            return _MISSING
        return node.target(*node.args)
    if node.meta.get("val", 0.0).__class__ is not int or len(node.args) != 2:
        return _MISSING
    left, right = node.args
    if (right == 0 and node.target in (ARITHMETIC["add"], ARITHMETIC["sub"])) or (
        right == 1 and node.target in (ARITHMETIC["mul"], ARITHMETIC["floordiv"])
    ):
        return left
    if (left == 0 and node.target is ARITHMETIC["add"]) or (left == 1 and node.target is ARITHMETIC["mul"]):
        return right
    return _MISSING


Rule = Callable[[Node, Editor, bool], Any]
RULES: dict[str, Rule] = {
    "no-op": _no_op,
    "reshape-chain": _reshape_chain,
    "transpose-pair": _transpose_pair,
    "integer-sum": _integer_sum,
    "same-operands": _same_operands,
    "rejoined-split": _rejoined_split,
    "constant-fold": _constant_fold,
}


def _substitute(old: Node, new: Any, origin: str) -> None:
    """Users of `old` read `new`, a node or a constant."""
    if isinstance(new, Node):
        inherit(new, old, origin)
        old.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
        return
    for user in list(old.users):
        user.args = map_arg(user.args, lambda item: new if item is old else item)
        user.kwargs = map_arg(user.kwargs, lambda item: new if item is old else item)


def _loop_operands(module: GraphModule, counts: Counter[str]) -> None:
    for node in list(module.graph.nodes):
        if not is_loop(node):
            continue
        parts = loop_parts(node)
        for inside, operand in zip(parts.invariant_inside, parts.invariant, strict=True):
            if type(operand) is int and inside.users:
                _substitute(inside, operand, NAME)
                counts["constant-operand"] += 1
        for place, inside in enumerate(parts.carried_inside):
            if parts.carried_out[place] is inside and (len(inside.users) > 1 or place in parts.results()):
                _unchanged_carried(node, place, inside, counts)


def _unchanged_carried(node: Node, place: int, inside: Node, counts: Counter[str]) -> None:
    """The value before the loop, inside it and after it is one: read the operand instead."""
    parts = loop_parts(node)
    operand = parts.carried[place]
    output = parts.body.graph.output_node()
    if any(user is not output for user in inside.users):
        invariant = add_invariant(node, operand, inside.name)
        inside.replace_all_uses_with(invariant, delete_user_cb=lambda user: user is not output)
    for result in parts.results().get(place, []):
        _substitute(result, operand, NAME)
    counts["unchanged-carried"] += 1


def canonicalize_in_place(module: GraphModule) -> Counter[str]:
    """Apply the rules to the module and its loop bodies until none fires; how often each did."""
    counts: Counter[str] = Counter()
    while True:
        before = counts.total()
        _loop_operands(module, counts)
        # A body may write memory that a node outside shares, so purity is a matter of the whole module.
        pure = _is_pure(module)
        for item in modules(module):
            _apply_rules(item, counts, pure)
        erase_dead(module)
        if counts.total() == before:
            return counts


def _is_pure(module: GraphModule) -> bool:
    return not any(
        is_impure(node)
        for item in modules(module)
        for node in item.graph.nodes
        if node.op not in ("placeholder", "output")
    )


def _apply_rules(module: GraphModule, counts: Counter[str], pure: bool) -> None:
    editor = Editor(module, NAME)
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not node.users or is_loop(node):
            continue
        for name, rule in RULES.items():
            new = rule(node, editor, pure)
            if new is not _MISSING:
                _substitute(node, new, NAME)
                counts[name] += 1
                break


def canonicalize(module: GraphModule) -> GraphModule:
    """A canonical copy of any graph module; rules that need types fire where `meta["val"]` records them."""
    made = clone(module)
    canonicalize_in_place(made)
    return finish(made)


@dataclass(frozen=True, slots=True)
class Canonicalize(Pass):
    """The rules of this module on every step graph."""

    name: ClassVar[str] = NAME
    preserves: ClassVar[frozenset[str]] = ALL_PROPERTIES

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """See Pass."""
        graphs: dict[str, GraphModule] = {}
        notes: list[Note] = []
        for name, module in program.graphs.items():
            made = clone(module)
            counts = canonicalize_in_place(made)
            if counts:
                graphs[name] = finish(made)
                notes += [Note(NAME, name, f"{rule} fired {count} times") for rule, count in sorted(counts.items())]
        return PassResult(program.with_graphs(**graphs), bool(graphs), tuple(notes))
