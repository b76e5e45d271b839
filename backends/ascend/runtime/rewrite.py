"""A traced step in fewer operators: what PyTorch and torchair add for their own sake is taken out before lowering.

torchair makes one GE operator of each node, and GE's tensors are always dense: a copy that gives a view dense
memory is an Identity that does nothing. Results are the same, except that a product's
zero may be positive instead of negative.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from specc.backends.ascend.runtime.merge import is_mutating, merge_duplicates

RESHAPE = torch.ops.aten.reshape.default
# Same elements in the same order.
RESHAPES = frozenset(
    {
        RESHAPE,
        torch.ops.aten.view.default,
        torch.ops.aten._unsafe_view.default,
        torch.ops.aten.unsqueeze.default,
        torch.ops.aten.squeeze.dim,
        torch.ops.aten.squeeze.dims,
    }
)
PERMUTES = frozenset(
    {
        torch.ops.aten.permute.default,
        torch.ops.aten.transpose.int,
        torch.ops.aten.t.default,
    }
)
# Row by row along the last dimension, by name: the operators may not exist here.
BY_ROW = frozenset(
    {"aten.add.Tensor", "npu.npu_rms_norm.default", "npu.npu_swiglu.default"}
)
SLICE = torch.ops.aten.slice.Tensor
SPLIT = torch.ops.aten.split_with_sizes.default


def before_effects(graph: Graph) -> Iterator[Node]:
    """The calls of a graph in order, up to the first that changes something."""
    for node in list(graph.nodes):
        if node.op == "call_function":
            if is_mutating(node):
                return
            yield node


def shape_of(node: Node) -> list[int]:
    """The sizes of a node's tensor."""
    return [int(size) for size in node.meta["val"].shape]


def replace(node: Node, other: Node) -> None:
    """Let the readers of a node read another one."""
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def source_of(node: Node) -> Node:
    """What a node is made of."""
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def dense_copies(graph: Graph) -> None:
    """Copies of results, which are dense in GE, become expansions to the shape that there is, if reshapes read them.

    Those are no operator, but they keep torchair from taking the reshape for a view of the transposed memory: it
    follows views without looking at copies, and would lose the transposition.
    """
    for node in before_effects(graph):
        if node.target is not torch.ops.aten.clone.default:
            continue
        is_result = source_of(node).op == "call_function"
        if is_result and all(user.target in RESHAPES for user in node.users):
            node.target = torch.ops.aten.expand.default
            node.args, node.kwargs = (source_of(node), shape_of(node)), {}


def reshapes(graph: Graph) -> None:
    """One reshape where several follow each other, and none that keeps the shape."""
    for node in before_effects(graph):
        if node.target not in RESHAPES:
            continue
        source, shape = source_of(node), shape_of(node)
        while source.target in RESHAPES:
            source = source_of(source)
        if shape_of(source) == shape:
            replace(node, source)
        else:
            node.target, node.args, node.kwargs = RESHAPE, (source, shape), {}


def order_of(node: Node) -> list[int]:
    """The dimensions of the source, in the order in which a transposition gives them."""
    rank = node.meta["val"].dim()
    if node.target is torch.ops.aten.permute.default:
        dims: Any = node.args[1]
        return [dim % rank for dim in dims]
    order = list(range(rank))
    pair: Any = node.args[1:] or tuple(range(-rank, 0))
    first, second = pair[0] % rank, pair[-1] % rank
    order[first], order[second] = order[second], order[first]
    return order


def permutes(graph: Graph) -> None:
    """One transposition where two follow each other, and none where the second undoes the first."""
    for node in before_effects(graph):
        if node.target not in PERMUTES:
            continue
        source, order = source_of(node), order_of(node)
        while source.target in PERMUTES:
            inner = order_of(source)
            order, source = [inner[dim] for dim in order], source_of(source)
        if order == sorted(order):
            replace(node, source)
        else:
            node.target, node.args = torch.ops.aten.permute.default, (source, order)


def called(like: Node, target: Any, args: tuple[Any, ...]) -> Node:
    """A new call at the graph's point of insertion, with what it gives; it comes from the line of another node."""

    def value(item: Any) -> Any:
        return item.meta["val"] if isinstance(item, Node) else item

    node = like.graph.call_function(target, args)
    if "stack_trace" in like.meta:
        node.meta["stack_trace"] = like.meta["stack_trace"]
    node.meta["val"] = target(*(value(item) for item in args))
    return node


def flat(node: Node) -> Node:
    """[…,K] as rows [M,K]: what it was reshaped from, or a reshape of it."""
    shape = shape_of(node)
    if node.target in RESHAPES:
        source = shape_of(source_of(node))
        if len(source) == 2 and source[1] == shape[-1]:
            return source_of(node)
    rows = math.prod(shape[:-1])
    return called(node, RESHAPE, (node, [rows, shape[-1]]))


def rows_stay_flat(graph: Graph) -> None:
    """What works row by row gets the rows as a linear layer gives them: [M,K], not [B,N,K]."""
    for node in before_effects(graph):
        if str(node.target) not in BY_ROW or node.kwargs:
            continue
        first, *rest = node.args
        if not isinstance(first, Node) or first.meta["val"].dim() != 3:
            continue
        wide = [first]
        if str(node.target) == "aten.add.Tensor":
            wide += [item for item in rest if isinstance(item, Node)]
        shape = shape_of(first)
        if any(shape_of(item) != shape for item in wide):
            continue
        if not any(item.target in RESHAPES and flat_already(item) for item in wide):
            continue
        with graph.inserting_before(node):
            given = [
                flat(item) if isinstance(item, Node) and item in wide else item
                for item in node.args
            ]
            made = called(node, node.target, tuple(given))
        if isinstance(made.meta["val"], torch.Tensor):
            with graph.inserting_after(made):
                back = called(node, RESHAPE, (made, shape_of(node)))
            replace(node, back)
            continue
        for item in list(node.users):
            with graph.inserting_before(item):
                part = called(item, item.target, (made, item.args[1]))
                back = called(item, RESHAPE, (part, shape_of(item)))
            replace(item, back)
        graph.erase_node(node)


def flat_already(node: Node) -> bool:
    """Whether a reshape is of rows [M,K] with the same last dimension."""
    source = shape_of(source_of(node))
    return len(source) == 2 and source[1] == shape_of(node)[-1]


def pieces_of(node: Node) -> list[tuple[int, int, int, Node]]:
    """(dim, first, end, piece) of a slice with step 1, or of each part of a split that is read; else nothing."""
    given: list[Any] = list(node.args)
    shape = shape_of(source_of(node))
    if node.target is SPLIT:
        sizes, dim = given[1], given[2] if len(given) > 2 else 0
        ends = list(itertools.accumulate(sizes))
        parts: list[tuple[Any, Node]] = [
            (user.args[1], user) for user in node.users if user.users
        ]
        return [
            (dim % len(shape), ends[i] - sizes[i], ends[i], item) for i, item in parts
        ]
    if node.target is not SLICE or node.kwargs or len(given) not in (3, 4):
        return []
    dim, first = given[1] % len(shape), given[2]
    first = first + shape[dim] if first < 0 else min(first, shape[dim])
    return [(dim, first, first + shape_of(node)[dim], node)]


def splits(graph: Graph) -> None:
    """Slices of one tensor that do not overlap are one split."""
    found: dict[Node, list[Node]] = {}
    for node in before_effects(graph):
        if node.target in (SLICE, SPLIT):
            found.setdefault(source_of(node), []).append(node)
    for source, calls in found.items():
        pieces = sorted(
            (piece for node in calls for piece in pieces_of(node)),
            key=lambda piece: piece[:3],
        )
        if (
            len(calls) < 2
            or not all(map(pieces_of, calls))
            or len({piece[0] for piece in pieces}) > 1
        ):
            continue
        bounds = [
            0,
            *(edge for piece in pieces for edge in piece[1:3]),
            shape_of(source)[pieces[0][0]],
        ]
        if bounds != sorted(bounds):
            continue
        edges = sorted(set(bounds))
        sizes = [end - first for first, end in itertools.pairwise(edges)]
        with graph.inserting_before(calls[0]):
            whole = called(calls[0], SPLIT, (source, sizes, pieces[0][0]))
            for _, first, _, piece in pieces:
                piece.replace_all_uses_with(
                    called(piece, operator.getitem, (whole, edges.index(first)))
                )
        for node in calls:
            for item in list(node.users):
                graph.erase_node(item)
            graph.erase_node(node)


def products(graph: Graph) -> None:
    """Products without the cast to its own type that torchair appends to `aten.mul`.

    Of one shape they are `prims.mul`; where one operand is repeated, 0 + x y.
    """
    zeros: dict[torch.dtype, Node] = {}
    for node in before_effects(graph):
        if node.target is not torch.ops.aten.mul.Tensor:
            continue
        left, right = node.args
        if not isinstance(left, Node) or not isinstance(right, Node):
            continue
        made = node.meta["val"]
        values = left.meta["val"], right.meta["val"]
        if not made.is_floating_point() or any(
            value.dtype != made.dtype for value in values
        ):
            continue
        if all(value.shape == made.shape for value in values):
            node.target = torch.ops.prims.mul.default
            continue
        if made.dtype not in zeros:
            first = next(item for item in graph.nodes if item.op != "placeholder")
            with graph.inserting_before(first):
                zeros[made.dtype] = graph.call_function(
                    torch.ops.aten.full.default,
                    ([1], 0.0),
                    {"dtype": made.dtype, "device": made.device, "pin_memory": False},
                )
        node.target = torch.ops.aten.addcmul.default
        node.args = (zeros[made.dtype], left, right)


def unread(graph: Graph) -> None:
    """Reshapes and transpositions that nothing reads any more."""
    for node in reversed(list(before_effects(graph))):
        if not node.users and node.target in RESHAPES | PERMUTES:
            graph.erase_node(node)


def simplify(graph_module: GraphModule, *_: Any) -> None:
    """Rewrite a traced step in place; torchair calls this before it lowers the step."""
    merge_duplicates(graph_module)
    graph = graph_module.graph
    dense_copies(graph)
    permutes(graph)
    reshapes(graph)
    rows_stay_flat(graph)
    splits(graph)
    reshapes(graph)
    unread(graph)
    products(graph)
    merge_duplicates(graph_module)
