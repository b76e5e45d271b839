"""One region: a kernel and the function that launches it, as source."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from specc.backends.printing.literals import literal
from specc.backends.printing.names import Names
from specc.backends.triton.kernels import region_math
from specc.backends.triton.regions.create import CREATE
from specc.backends.triton.regions.fused import FUSED
from specc.backends.triton.regions.indexing import INDEXING
from specc.backends.triton.regions.reduce import REDUCE
from specc.backends.triton.regions.rows import store
from specc.backends.triton.regions.table import EMIT, FREE, POINTWISE
from specc.backends.triton.regions.values import Memory, Unsupported, Value, contiguous
from specc.backends.triton.regions.views import VIEWS
from specc.backends.triton.regions.writer import Kind, Parameter, Writer
from specc.ir import ops
from specc.ir.dims import BATCH, is_symbolic
from specc.ir.edit import is_loop
from specc.ir.effects import flat_nodes

aten = torch.ops.aten
INDENT = "    "
# Lanes that one warp works on at most before another is added. Rows of floats are work for many warps; integers of
# a batch row are a chain of small steps, in which each warp more is a barrier more.
LANES_PER_WARP = {"batch": 256, "token": 64}
MOST_WARPS = {"batch": 8, "token": 16}
LIMIT = 8192
# Ops that compare all pairs of a few elements: more lanes, but of one bit.
_SQUARE = frozenset({ops.score_rank, ops.pack_tree})
_JOINING = (aten.cat.default, aten.constant_pad_nd.default)
RESERVED = ("row", "batch", "token", "tl", "triton", "torch", "width", "NAME", "dense", "frequencies",
            "log1p", "sigmoid", "silu", "softplus", "floor_div", "floor_mod", "rounded", "bfloat16")  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Nodes in order that one kernel computes. `outputs` are those that something outside reads."""

    kind: Kind
    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Emitted:
    """Source of a kernel and its function (both with `NAME` in place of the name), what they call, and operands.

    `tables`: whether the function makes tables with `frequencies`.
    """

    kernel: str
    host: str
    helpers: tuple[Any, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


class Blocked(Exception):
    """A node that can't be in the region; `node` says which, the message why."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node


def is_gridless(node: Node) -> bool:
    """Elementwise work on weights: each kernel that reads it does it again."""
    fake = node.meta.get("val")
    return (
        node.target in POINTWISE
        and isinstance(fake, torch.Tensor)
        and not any(is_symbolic(int(size)) for size in fake.shape)
    )


def is_constant(node: Node) -> bool:
    """Elementwise work on nothing but numbers that the spec fixes, or on no elements at all."""
    fake = node.meta.get("val")
    if isinstance(fake, torch.Tensor) and 0 in fake.shape:
        return node.op == "call_function"
    if node.target in CREATE:
        return all(is_constant(item) for item in flat_nodes(created_from(node)))
    elementwise = node.target in POINTWISE or node.target in VIEWS or node.target in _JOINING
    if node.op != "call_function" or not elementwise:
        return False
    operands = node.all_input_nodes
    return bool(operands) and all(is_constant(item) for item in operands)


def created_from(node: Node) -> tuple[Any, ...]:
    """What the value of a node that makes a tensor depends on (not the tensor that it takes sizes from)."""
    return node.args[1:] if node.target in (aten.full_like.default, ops.full_rows) else ()


def is_free(node: Node) -> bool:
    """A node that belongs to no region, because each reader works it out.

    A loop reads a tensor: what is constant where it begins is work, which then shares a kernel with other work.
    """
    if node.op != "call_function":
        return False
    if node.target in FREE or is_gridless(node):
        return True
    return is_constant(node) and not any(is_loop(user) for user in node.users)


def resolver(region: Region) -> Callable[[Writer, Node], Value]:
    """How a kernel finds a value: members, free nodes and nodes of loop bodies are computed, others are inputs."""
    members, graph = frozenset(region.nodes), region.nodes[0].graph

    def resolve(w: Writer, node: Node) -> Value:
        if (empty := w.empty(node)) is not None:
            return empty
        computed = node in members or node.graph is not graph or is_free(node)
        if node.op != "call_function" or not computed or node.target not in EMIT:
            if node.graph is not graph:
                raise Unsupported(f"`{node.name}` in a loop")
            return w.input(node)
        try:
            _same_rows(w, node)
            made: Value = EMIT[node.target](w, node)
            _check(w, node, made)
        except Unsupported:
            # A view that can't be followed is read as it is.
            inside = node.graph is not graph or _rests_on(node, members)
            if inside or not isinstance(node.meta.get("val"), torch.Tensor):
                raise
            return w.input(node)
        return made

    return resolve


def _rests_on(node: Node, members: frozenset[Node]) -> bool:
    """Whether a free node is made from a member, or is one."""
    if node in members:
        return True
    attached = node.target is operator.getitem
    return (attached or is_free(node)) and any(
        _rests_on(item, members) for item in flat_nodes((node.args, node.kwargs))
    )


def _same_rows(w: Writer, node: Node) -> None:
    """Raises Unsupported where a node that works within rows makes rows of another kind."""
    if node.target not in INDEXING and node.target not in REDUCE and node.target not in FUSED:
        return
    fakes = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else [node.meta["val"]]
    leads = {w.kind.lead(item.meta["val"].shape) for item in _tensors(node)} - {0}
    leads |= {w.kind.lead(fake.shape) for fake in fakes}
    if len(leads) > 1:
        raise Unsupported("operands of other rows")


def _tensors(node: Node) -> list[Node]:
    return [item for item in flat_nodes((node.args, node.kwargs)) if isinstance(item.meta.get("val"), torch.Tensor)]


def _check(w: Writer, node: Node, value: Any) -> None:
    """Raises Unsupported where a value does not have the rows that the node's type says."""
    fake = node.meta.get("val")
    if isinstance(fake, torch.Tensor) and not isinstance(value, tuple):
        lead = w.kind.lead(fake.shape)
        if value.shape != tuple(fake.shape[lead:]) or value.lead != lead or value.dtype != fake.dtype:
            raise Unsupported("a value of other rows")


def emit(region: Region, limit: int = LIMIT, small: Callable[[Node], bool] = lambda _: False) -> Emitted:
    """The source of a region; `small` says of int64 nodes that int32 holds their values. Raises Blocked with the node
    that can't be in it."""
    w = Writer(region.kind, Names(RESERVED), resolver(region), small=small)
    current = region.nodes[0]
    try:
        for current in region.nodes:
            w.value(current)
            if w.largest > limit * (4 if current.target in _SQUARE else 1):
                raise Unsupported(f"a block of {w.largest} elements")
            w.largest = min(w.largest, limit)
        for current in region.outputs:
            _output(w, current)
        _sized(region, w)
    except Unsupported as reason:
        raise Blocked(current, str(reason)) from reason
    return _source(region, w)


def _output(w: Writer, node: Node) -> None:
    """A new tensor for a node's value."""
    fake = node.meta["val"]
    if not isinstance(fake, torch.Tensor):
        raise Unsupported("a result that is no tensor")
    lead = w.kind.lead(fake.shape)
    if lead != (1 if w.kind.rows is None else 2) or (w.kind.rows is not None and fake.shape[1] != w.kind.rows):
        raise Unsupported("a result without rows")
    rest = tuple(int(size) for size in fake.shape[lead:])
    w.outputs[node] = Parameter(w.names.fresh(f"{node.name}_out"), node, fake.dtype, "new")
    memory = Memory(
        w.outputs[node].name, fake.dtype, rest, contiguous(rest), w.row_term(fake.shape, lead), lead, node.name
    )
    store(w, memory, w.value(node))


def _sized(region: Region, w: Writer) -> None:
    """Constants alone have no operand that says how many rows there are: then it is what they take their sizes from."""
    if any(item.dtype is not None and node.meta["val"].shape[:1] == (BATCH,) for node, item in w.parameters.items()):
        return
    stack = list(region.nodes)
    while stack:
        node = stack.pop()
        fake = node.meta.get("val")
        has_rows = isinstance(fake, torch.Tensor) and fake.shape[:1] == (BATCH,) and node not in region.nodes
        if has_rows and (node.op != "call_function" or not is_free(node)):
            w.input(node)
            return
        stack += node.all_input_nodes


def warps(w: Writer) -> int:
    """Warps of a program, from its largest block."""
    kind = w.kind.name
    return max(1, min(MOST_WARPS[kind], w.largest // LANES_PER_WARP[kind]))


def _source(region: Region, w: Writer) -> Emitted:
    parameters = [*w.parameters.values(), *w.outputs.values()]
    names = [item.name for item in parameters] + list(w.tables.values())
    width = region.kind.rows is not None and is_symbolic(region.kind.rows)
    if width:
        names.append("width")
    inplace = any(item.written == "inplace" for item in parameters)
    lines = ["@triton.jit", f"def NAME_kernel({', '.join(names)}):", f"{INDENT}{w.helper(region_math.follow)}()"]
    lines.append(f"{INDENT}row = tl.program_id(0).to(tl.int64)")
    if w.uses_batch:
        count = "width" if width else str(region.kind.rows)
        lines += [f"{INDENT}batch = row // {count}", f"{INDENT}token = row % {count}"]
    lines += [f"{INDENT}i{size} = tl.arange(0, {size})" for size in sorted(w.ranges)]
    lines += w.lines
    if inplace:
        lines += [f"{INDENT}# Everything is read by now.", f"{INDENT}tl.debug_barrier()"]
    lines += [INDENT + text for text in w.stores]
    host = _host(region, w, width)
    inputs = tuple(w.parameters)
    return Emitted("\n".join(lines), host, tuple(w.helpers.values()), inputs, tuple(w.outputs))


def _host(region: Region, w: Writer, width: bool) -> str:
    """The function that makes the outputs and launches the kernel."""
    arguments = {node: w.parameters[node].name.removesuffix("_at") for node in w.parameters}
    tensors = [node for node, item in w.parameters.items() if item.dtype is not None]
    first = next((node for node in tensors if node.meta["val"].shape[:1] == (BATCH,)), None)
    if first is None:
        raise Blocked(region.nodes[0], "no operand has rows")
    like = arguments[first]
    typed = [f"{arguments[node]}: {'int' if item.dtype is None else 'Tensor'}" for node, item in w.parameters.items()]
    lines = [f"def NAME({', '.join(typed)}) -> {_returns(w)}:"]
    lines.append(f'{INDENT}"""{_summary(region)}"""')
    lines.append(f"{INDENT}batch = {like}.shape[0]")
    grid = "batch"
    if region.kind.rows is not None:
        rows = str(region.kind.rows)
        if width:
            source = next((n for n in tensors if tuple(n.meta["val"].shape[:2]) == (BATCH, region.kind.rows)), None)
            if source is None:
                raise Blocked(region.nodes[0], "no operand has tokens")
            lines.append(f"{INDENT}width = {arguments[source]}.shape[1]")
            rows = "width"
        grid = f"batch * {rows}"
    made = {}
    for node, parameter in w.outputs.items():
        made[node] = parameter.name.removesuffix("_out") + "_new"
        options = f"dtype={literal(parameter.dtype)}, device={like}.device"
        lines.append(f"{INDENT}{made[node]} = torch.empty({_shape(node)}, {options})")
    passed = [_passed(arguments[node], item) for node, item in w.parameters.items()]
    passed += [
        made[node] + (".view(torch.uint8)" if item.dtype == torch.bool else "") for node, item in w.outputs.items()
    ]
    passed += [call.replace("{device}", f"{like}.device") for call in w.tables]
    passed += ["width"] if width else []
    options = f"num_warps={warps(w)}, enable_fp_fusion=False, **beside()"
    lines.append(f"{INDENT}NAME_kernel[({grid},)]({', '.join(passed)}, {options})")
    if made:
        lines.append(f"{INDENT}return {', '.join(made.values())}")
    return "\n".join(lines)


def _returns(w: Writer) -> str:
    if not w.outputs:
        return "None"
    return "Tensor" if len(w.outputs) == 1 else f"tuple[{', '.join(['Tensor'] * len(w.outputs))}]"


def _summary(region: Region) -> str:
    work = [node.name for node in region.nodes]
    shown = ", ".join(work[:4]) + (f" and {len(work) - 4} more" if len(work) > 4 else "")
    return f"{shown}: one program per {'batch row' if region.kind.rows is None else 'token'}."


def _shape(node: Node) -> str:
    sizes = []
    for place, size in enumerate(node.meta["val"].shape):
        sizes.append("batch" if place == 0 else "width" if is_symbolic(int(size)) else str(int(size)))
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _passed(name: str, parameter: Parameter) -> str:
    """An operand of the launch: in place tensors have to be dense, others are made so."""
    if parameter.dtype is None:
        return name
    text = f"dense({name})" if parameter.written else f"{name}.contiguous()"
    return f"{text}.view(torch.uint8)" if parameter.dtype == torch.bool else text
