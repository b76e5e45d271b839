"""What a recurrent layer does for one token between its projections becomes one op, which is one launch.

    y = short_conv_(window, cat(q, k, v), …, live)
    o, _ = delta_rule_(state, q', k', v', g, beta)             ->     readout = delta_step_(state, window, q, k, v, …)
    readout = gated_norm(o, …)

    rms_norm(o, …) * silu(gate)                                ->     gated_norm(o, …), before that

The norm adds in another order than a kernel of its own does, so programs that verify node by node keep their layers as
they are: theirs have to have the bits of plain decoding. The tree form has other roundings anyway.

Found in the graphs when code is generated, since only this backend has kernels for it. What can't be fused is left as
it is, and the notes say why.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.triton.layers import root
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, is_loop, modules
from specc.ir.effects import flat_nodes, written_arguments
from specc.ir.prune import prune
from specc.ir.scope import named_arguments

ORIGIN = "recurrent-layers"
TYPES = (torch.float32, torch.bfloat16, torch.float16)
aten = torch.ops.aten


class Refused(Exception):
    """A layer keeps its ops; the message says why."""


@dataclass(frozen=True, slots=True)
class Gates:
    """What g and beta [B,M,HV] are made of: a, b [B,M,HV] before any cast, beta = rate sigmoid(b); where `counted` (a
    mask, None: everywhere) is false both are 0."""

    a: Node
    b: Node
    a_log: Node
    dt_bias: Node
    rate: float
    counted: Node | None


def shape_of(node: Node) -> tuple[int, ...]:
    """Of a node's tensor."""
    return tuple(node.meta["val"].shape)


def expect(value: Any, target: Any, what: str) -> Node:
    """The node, if it calls `target`. Raises Refused."""
    if not isinstance(value, Node) or value.target is not target:
        raise Refused(f"{what} is `{value}`")
    return value


def before_cast(value: Any, dtype: torch.dtype) -> Node:
    """What a node of this dtype is a cast of, or the node itself."""
    if not isinstance(value, Node) or value.meta["val"].dtype != dtype:
        raise Refused(f"`{value}` is not computed in {dtype}")
    source = value.args[0] if value.target is aten._to_copy.default and set(value.kwargs) == {"dtype"} else value
    assert isinstance(source, Node)
    return source


def _log_decay(g: Node, dtype: torch.dtype) -> tuple[Node, Node, Node]:
    """(a, a_log, dt_bias) of -exp(a_log) softplus(a + dt_bias)."""
    soft, speed = expect(g, aten.mul.Tensor, "the log decay").args
    expect(soft, aten.softplus.default, "the log decay")
    expect(speed, aten.neg.default, "the log decay's factor")
    exp = expect(speed.args[0], aten.exp.default, "the log decay's factor")  # type: ignore[union-attr]
    if len(soft.args) != 1 or soft.kwargs:  # type: ignore[union-attr]
        raise Refused("the softplus has a scale or a threshold of its own")
    shifted = expect(soft.args[0], aten.add.Tensor, "the softplus' operand")  # type: ignore[union-attr]
    if shifted.kwargs or len(shifted.args) != 2:
        raise Refused("the softplus' operand is scaled")
    a, dt_bias = (before_cast(item, dtype) for item in shifted.args)
    return a, before_cast(exp.args[0], dtype), dt_bias


def gates_of(g: Node, beta: Node, dtype: torch.dtype) -> Gates:
    """The parts of the gates of a rule whose state has this dtype. Raises Refused."""
    counted: Node | None = None
    if g.target is aten.where.self and beta.target is aten.where.self:
        masks = {g.args[0], beta.args[0]}
        for node in (g, beta):
            zeros = expect(node.args[2], aten.zeros_like.default, "what a row that does not count has")
            if zeros.meta["val"].dtype != dtype:
                raise Refused("zeros of another dtype")
        if len(masks) != 1:
            raise Refused("decay and beta count different rows")
        counted, g, beta = g.args[0], g.args[1], beta.args[1]  # type: ignore[assignment]
    rate = 1.0
    if beta.target is aten.mul.Tensor:
        factor = beta.args[1]
        if not isinstance(factor, float):
            raise Refused("beta is a product of tensors")
        rate, beta = factor, beta.args[0]  # type: ignore[assignment]
    b = before_cast(expect(beta, aten.sigmoid.default, "beta").args[0], dtype)
    a, a_log, dt_bias = _log_decay(g, dtype)
    return Gates(a, b, a_log, dt_bias, rate, counted)


def piece_of(value: Any) -> tuple[Node, int, int, tuple[Node, ...]]:
    """(source, first column, columns, the nodes between) of heads `unflatten(narrow(source, -1, …), -1, …)`."""
    heads = expect(value, aten.unflatten.int, "an operand of the rule")
    narrow = expect(heads.args[0], aten.narrow.default, "an operand of the rule")
    source, dim, start, size = narrow.args
    assert isinstance(source, Node)
    if dim not in (-1, len(shape_of(source)) - 1) or heads.args[1] not in (-1, len(shape_of(narrow)) - 1):
        raise Refused(f"`{heads}` is not a part of each row")
    return source, int(start), int(size), (narrow, heads)  # type: ignore[arg-type]


def convolved_parts(q: Any, k: Any, v: Any, kept: Node | None = None) -> tuple[Node, tuple[Node, ...]]:
    """The convolution whose result q, k and v are, side by side and nothing else, and the nodes between; `kept` may
    read one of them as well."""
    pieces = [piece_of(item) for item in (q, k, v)]
    source, between = pieces[0][0], [node for piece in pieces for node in piece[3]]
    at = 0
    for found, start, size, _ in pieces:
        if found is not source or start != at:
            raise Refused("q, k and v do not lie side by side")
        at += size
    if at != shape_of(source)[-1]:
        raise Refused("the convolution has more channels than q, k and v")
    if set(source.users) - set(between) or any(len(set(node.users) - {kept}) != 1 for node in between):
        raise Refused("something else reads the convolution's result")
    return source, tuple(between)


def by_key_head(editor: Editor, x: Node, heads: int) -> Node:
    """x [B,M,H G] or [B,M,HV,V] with a dim for the key heads: [B,M,H,…]; without a copy where x is such a tensor."""
    if len(shape_of(x)) == 4:
        if shape_of(x)[2] == heads:
            return x
        flat = x.args[0] if x.target is aten.unflatten.int else None
        x = flat if isinstance(flat, Node) else editor.call(aten.flatten.using_ints, x, -2, -1)
    source = x.args[0] if x.target is aten.flatten.using_ints and tuple(x.args[1:]) == (-2, -1) else None
    if isinstance(source, Node) and len(shape_of(source)) == 4 and shape_of(source)[2] == heads:
        return source
    return editor.call(aten.unflatten.int, x, -1, [heads, -1])


def split_inputs(editor: Editor, mixed: Node, heads: int, sizes: tuple[int, ...]) -> list[Node]:
    """q, k, v before the convolution by key head, where they come from; else as parts of `mixed`."""
    if mixed.target is aten.cat.default and mixed.args[1] in (-1, 2) and len(mixed.args[0]) == len(sizes):  # type: ignore[arg-type]
        parts: list[Any] = list(mixed.args[0])  # type: ignore[arg-type]
        if [shape_of(part)[-1] for part in parts] == list(sizes):
            return [by_key_head(editor, part, heads) for part in parts]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [
        by_key_head(editor, editor.call(aten.narrow.default, mixed, -1, start, size), heads)
        for start, size in zip(starts, sizes, strict=True)
    ]


def normed(rule: Node, used: tuple[int, ...] = ()) -> tuple[Node, Node]:
    """(o, its gated norm) of a rule of whose results nothing else is read, but those numbered in `used`."""
    items = [user for user in rule.users if user.users]
    if any(user.target is not operator.getitem or user.args[1] not in (0, *used) for user in items):
        raise Refused("something else reads the rule's results")
    outputs = [user for user in items if user.args[1] == 0]
    if len(outputs) != 1 or len(outputs[0].users) != 1:
        raise Refused("the outputs have other readers than their norm")
    return outputs[0], expect(next(iter(outputs[0].users)), ops.gated_norm, "the outputs' reader")


def check_between(own: set[Node], written: set[Node], read: set[Node]) -> None:
    """Raises Refused where a node between the first and the last of `own` touches tensors that they write or writes
    what they read, or one elsewhere in the graph writes the same tensors."""
    order = [node for node in next(iter(own)).graph.nodes if node.op == "call_function"]
    places = [place for place, node in enumerate(order) if node in own]
    for place, node in enumerate(order):
        if node in own:
            continue
        used = {root(item) for item in flat_nodes((node.args, node.kwargs))}
        writes = used if is_loop(node) else {root(item) for item in flat_nodes(written_arguments(node))}
        inside = places[0] < place < places[-1]
        if writes & written or (inside and (used & written or writes & read)):
            raise Refused(f"`{node.name}` touches their tensors as well")


def copied(value: Node) -> tuple[Node, Node]:
    """(where to, the copy) of a value that is copied to one place of its own type. Raises Refused."""
    copies = [user for user in value.users if user.target is aten.copy_.default and user.args[1] is value]
    if len(copies) != 1 or copies[0].users:
        raise Refused(f"`{value}` is not kept in one place")
    place = copies[0].args[0]
    assert isinstance(place, Node)
    if place.meta["val"].dtype != value.meta["val"].dtype or shape_of(place) != shape_of(value):
        raise Refused(f"`{value}` is kept in another form")
    return place, copies[0]


def _step(block: GraphModule, rule: Node) -> None:
    """One rule over one token in the place of a layer's ops. Raises Refused."""
    state, q, k, v, g, beta = rule.args
    assert isinstance(state, Node)
    assert isinstance(g, Node)
    assert isinstance(beta, Node)
    conv, between = convolved_parts(q, k, v)
    expect(conv, ops.short_conv_, "what the rule's operands come from")
    o, norm = normed(rule)
    given, last = named_arguments(conv), named_arguments(norm)
    window, mixed = given["window"], given["x"]
    value_heads, values, keys = shape_of(state)[1:]
    heads = shape_of(q)[2]  # type: ignore[arg-type]
    types = {item.meta["val"].dtype for item in (window, mixed, o)}
    if shape_of(mixed)[1] != 1:
        raise Refused("there is more than one token")
    if state.meta["val"].dtype != torch.float32 or len(types) != 1 or not types <= set(TYPES):
        raise Refused("the kernel has float32 states and rows of one type up to float32")
    if shape_of(window)[1] < 1 or value_heads % heads:
        raise Refused("no window, or heads that are not shared evenly")
    gates = gates_of(g, beta, torch.float32)
    read = {root(item) for item in (mixed, gates.a, gates.b, last["gate"])}
    if any(item.op != "call_function" for item in read):
        raise Refused("a row is given, not made by a kernel in front of this one")
    check_between({conv, rule, norm}, {root(state), root(window)}, read)
    editor = Editor(block, ORIGIN)
    with editor.before(norm, conv, rule, norm):
        rows = split_inputs(editor, mixed, heads, (heads * keys, heads * keys, value_heads * values))
        more = [by_key_head(editor, item, heads) for item in (gates.a, gates.b, last["gate"])]
        made = editor.call(
            ops.delta_step_, state, window, *rows, *more, given["weight"], given.get("bias"), gates.a_log,
            gates.dt_bias, last["weight"], given.get("live"), gates.counted, gates.rate, last["eps"], name="stepped",
        )  # fmt: skip
    editor.replace(norm, made)
    for node in (norm, o, rule, *reversed(between), conv):
        for user in list(node.users):
            block.graph.erase_node(user)
        block.graph.erase_node(node)


def _tree(block: GraphModule, rule: Node) -> None:
    """A verify in tree form, with factors pending, in the place of a layer's ops. Raises Refused."""
    given = named_arguments(rule)
    state, g = given["state"], given["g"]
    if given["schedule"] != "tree" or given["mask"] is None or given["form"] != "rank_n":
        raise Refused("it goes node by node")
    k_factor, k_copy = copied(given["k"])
    conv, between = convolved_parts(given["q"], given["k"], given["v"], k_copy)
    expect(conv, ops.tree_conv, "what the rule's operands come from")
    o, norm = normed(rule, (1,))
    factors = [user for user in rule.users if user.args[1] == 1 and user.users]
    if len(factors) != 1 or len(factors[0].users) != 1:
        raise Refused("its factors have other readers than the place that they are kept in")
    u = factors[0]
    (u_factor, u_copy), (g_factor, g_copy) = copied(u), copied(g)
    first, last = named_arguments(conv), named_arguments(norm)
    mixed, heads = first["x"], shape_of(given["q"])[2]
    types = {item.meta["val"].dtype for item in (first["window"], mixed, o)}
    if first["parent_row"] is not given["parent_row"]:
        raise Refused("the convolution goes along other paths")
    if state.meta["val"].dtype != torch.float32 or len(types) != 1 or not types <= set(TYPES):
        raise Refused("the kernels have float32 states and rows of one type up to float32")
    gates = gates_of(g, given["beta"], torch.float32)
    if gates.counted is not None or shape_of(state)[1] % heads:
        raise Refused("only some nodes count, or heads are not shared evenly")
    own, written = {conv, rule, norm, k_copy, u_copy, g_copy}, {root(x) for x in (state, k_factor, u_factor, g_factor)}
    kept, kept_copy = copied(mixed)
    own, written = own | {kept_copy}, written | {root(kept)}
    read = {root(item) for item in (first["window"], mixed, gates.a, gates.b, last["gate"])}
    check_between(own, written, read)
    pending = (given[name] for name in ("pending_k", "pending_u", "pending_g", "path", "count", "window"))
    editor = Editor(block, ORIGIN)
    with editor.before(norm, *own):
        rows = split_inputs(editor, mixed, heads, tuple(piece_of(given[name])[2] for name in ("q", "k", "v")))
        more = [by_key_head(editor, item, heads) for item in (gates.a, gates.b, last["gate"])]
        made = editor.call(
            ops.delta_tree_step_, state, first["window"], *rows, *more, first["weight"], first.get("bias"),
            gates.a_log, gates.dt_bias, last["weight"], given["parent_row"], given["mask"], *pending, kept,
            k_factor, u_factor, g_factor, gates.rate, last["eps"], name="stepped",
        )  # fmt: skip
    editor.replace(norm, made)
    for node in (k_copy, u_copy, g_copy, kept_copy, norm, o, u, rule, *reversed(between), conv):
        for user in [*node.users]:
            block.graph.erase_node(user)
        block.graph.erase_node(node)


def _gated_norm(block: GraphModule, norm: Node) -> None:
    """rms_norm(o) * silu(gate) over a rule's outputs."""
    given = named_arguments(norm)
    o, weight = given["input"], given.get("weight")
    rule = o.args[0] if o.target is operator.getitem else None
    product = next(iter(norm.users)) if len(norm.users) == 1 else None
    if not isinstance(rule, Node) or not str(rule.target).startswith("specc.delta_rule") or o.args[1] != 0:
        return
    if product is None or product.target is not aten.mul.Tensor or weight is None or given.get("eps") is None:
        return
    silu = product.args[1]
    same = isinstance(silu, Node) and silu.target is aten.silu.default and shape_of(silu) == shape_of(o)
    if product.args[0] is not norm or not same or len(given["normalized_shape"]) != 1:
        return
    gate = silu.args[0]  # type: ignore[union-attr]
    if {item.meta["val"].dtype for item in (weight, gate, product)} != {o.meta["val"].dtype}:  # type: ignore[union-attr]
        return
    editor = Editor(block, ORIGIN)
    with editor.before(product, norm, product):
        editor.replace(product, editor.call(ops.gated_norm, o, weight, gate, given["eps"], name="gated"))
    for dead in (product, norm):
        block.graph.erase_node(dead)


FORMS: Mapping[object, Callable[[GraphModule, Node], None]] = {
    ops.delta_rule_: _step,
    ops.delta_rule_verify_pending_: _tree,
}
"""Rules that a layer is recognised by."""


def by_steps(graphs: Iterable[GraphModule]) -> bool:
    """Whether a program verifies node by node, in some layer: its layers must have the same bits in all graphs."""
    nodes = [node for graph in graphs for block in modules(graph) for node in block.graph.nodes]
    rules = [node for node in nodes if str(node.target).startswith("specc.delta_rule_verify")]
    return any(named_arguments(node)["schedule"] != "tree" for node in rules)


def recurrent_layers(module: GraphModule, apart: bool = False) -> tuple[GraphModule, list[str]]:
    """A copy of a step graph with its recurrent layers fused where they can be, and why others could not.

    `apart`: the program's layers have to stay as they are (see `by_steps`).
    """
    if apart:
        return module, ["all layers stay as they are: the program verifies node by node"]
    made = clone(module)
    notes: list[str] = []
    for block in list(modules(made)):
        for node in [item for item in block.graph.nodes if item.target is aten.rms_norm.default]:
            _gated_norm(block, node)
        for node in [item for item in block.graph.nodes if item.target in FORMS]:
            try:
                FORMS[node.target](block, node)
            except Refused as reason:
                notes.append(f"{node.name} stays a launch of its own: {reason}")
    prune(made)
    return finish(made), notes
