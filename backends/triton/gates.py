"""A recurrent layer's gates, and the copy of its convolution's inputs, join the convolution's launch.

    y = short_conv_(window, x, …, live)                          y, g, beta = token_conv_gates_(window, x, …, live,
    g = where(live, -exp(A) softplus(a + dt), 0)          ->                                    a, b, A, dt, 1)
    beta = where(live, sigmoid(b), 0)

    kept.copy_(x)                                                y, g, beta = tree_conv_gates_(window, x, …, a, b, A,
    y = tree_conv(window, x, …)                           ->                                   dt, 1, kept)
    g = -exp(A) softplus(a + dt)
    beta = sigmoid(b)

The gates need nothing of the convolution: other programs of the same launch make them. A token's rule comes right
behind it then, and may read its state while the convolution runs (`settled`). Found in the graphs when code is
generated, since only this backend has kernels that do both. All tokens' gates come from one formula, so a token has the
same bits however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.triton.regions.effects import launches_nothing, root, touched
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, bodies, finish, loop_parts
from specc.ir.effects import is_view
from specc.ir.prune import prune
from specc.ir.scope import named_arguments

ORIGIN = "join-gates"
CONVOLUTIONS = (ops.short_conv_, ops.tree_conv)
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
aten = torch.ops.aten


class _Refused(Exception):
    """A convolution keeps its launch to itself; the message says why."""


@dataclass(frozen=True, slots=True)
class _Gates:
    """g and beta as a rule has them, and what they are made of: beta = scale sigmoid(b), 0 where not `counted`."""

    g: Node
    beta: Node
    a: Node
    b: Node
    a_log: Node
    dt_bias: Node
    scale: int
    counted: Node | None


def joined_gates(module: GraphModule) -> tuple[GraphModule, list[str]]:
    """A copy of a step graph with one op for a convolution and its layer's gates, and why others stay apart."""
    made = clone(module)
    notes: list[str] = []
    for loop, block in list(bodies(made)):
        parts = loop_parts(loop)
        outside = dict(zip(parts.inside, parts.operands, strict=True))
        for node in [item for item in block.graph.nodes if item.target in CONVOLUTIONS]:
            try:
                _join(block, node, _rule(node), outside)
            except _Refused as reason:
                notes.append(f"{node.name} is a launch apart from the gates: {reason}")
    prune(made)
    for _, block in bodies(made):
        for node in [item for item in block.graph.nodes if item.target is ops.token_conv_gates_]:
            rule = next(iter(next(user for user in node.users if user.args[1] == 1).users))
            if rule.target is ops.delta_rule_ and _nothing_between(node, rule):
                rule.args = (*rule.args[:6], True)
    return finish(made), notes


def _join(block: GraphModule, conv: Node, rule: Node, outside: Mapping[Node, Any]) -> None:
    """One op in the place of the convolution and the gates; `outside`: what the body's placeholders stand for."""
    given, gates = named_arguments(conv), _gates(rule)
    x = given["x"]
    rest = (gates.a, gates.b, gates.a_log, gates.dt_bias, gates.scale)
    operands = (given["window"], x, given["weight"], given.get("bias"))
    _check(x, gates)
    arguments: tuple[Any, ...]
    kept, copied = None, None
    if conv.target is ops.tree_conv:
        if gates.counted is not None:
            raise _Refused("only some nodes count")
        kept, copied = _copied(x)
        target, arguments = ops.tree_conv_gates_, (*operands, given["parent_row"], *rest, kept)
    else:
        live = given.get("live")
        if x.meta["val"].shape[1] != 1:
            raise _Refused("there is more than one token, or any number of them")
        if not _says_the_same(gates.counted, live, outside):
            raise _Refused("other rows count than those that are live")
        target, arguments = ops.token_conv_gates_, (*operands, live, *rest)
    own = (conv,) if copied is None else (conv, copied)
    results = (conv, gates.g, gates.beta)
    place = _place(own, results, (gates.a, gates.b, gates.a_log, gates.dt_bias))
    editor = Editor(block, ORIGIN)
    with editor.before(place, *results):
        made = editor.call(target, *arguments, name="gated_conv")
        parts = [editor.item(made, number) for number in range(3)]
    for old, new in zip(results, parts, strict=True):
        editor.replace(old, new)
    for node in (*own, gates.g, gates.beta):
        if node in block.graph.nodes:
            block.graph.erase_node(node)


def _nothing_between(conv: Node, rule: Node) -> bool:
    """Whether no launch can come between the two: the rule's state is then complete when the convolution starts."""
    order = list(conv.graph.nodes)
    between = order[order.index(conv) + 1 : order.index(rule)]
    return all(launches_nothing(node) for node in between)


def _rule(conv: Node) -> Node:
    """The delta rule that reads a convolution's result through views."""
    seen, stack = set(), [conv]
    while stack:
        for user in stack.pop().users:
            if str(user.target).startswith("specc.delta_rule"):
                return user
            if user not in seen and user.op == "call_function" and is_view(user):
                seen.add(user)
                stack.append(user)
    raise _Refused("no delta rule reads it")


def _expect(value: Any, target: Any, what: str) -> Any:
    """The node, if it calls `target`. Raises _Refused."""
    if not isinstance(value, Node) or value.target is not target:
        raise _Refused(f"{what} is `{value}`")
    return value


def _before_cast(value: Any) -> Node:
    """What a float32 node is a cast of, or the node itself."""
    if not isinstance(value, Node) or value.meta["val"].dtype != torch.float32:
        raise _Refused(f"`{value}` is not computed in float32")
    source = value.args[0] if value.target is aten._to_copy.default and set(value.kwargs) == {"dtype"} else value
    assert isinstance(source, Node)
    return source


def _gates(rule: Node) -> _Gates:
    """The parts of a rule's gates. Raises _Refused."""
    given = named_arguments(rule)
    g, beta = given["g"], given["beta"]
    soft: Any = g
    fade: Any = beta
    counted: Any = None
    if g.target is aten.where.self and beta.target is aten.where.self:
        if g.args[0] is not beta.args[0]:
            raise _Refused("decay and beta count different rows")
        for node in (g, beta):
            _expect(node.args[2], aten.zeros_like.default, "what a row that does not count has")
        counted, soft, fade = g.args[0], g.args[1], beta.args[1]
    scale = 1
    if fade.target is aten.mul.Tensor or fade.target is aten.mul.Scalar:
        if fade.args[1] not in (1.0, 2.0):
            raise _Refused("beta is scaled by something else than 2")
        scale, fade = int(fade.args[1]), fade.args[0]
    b = _before_cast(_expect(fade, aten.sigmoid.default, "beta").args[0])
    soft, speed = _expect(soft, aten.mul.Tensor, "the log decay").args
    _expect(soft, aten.softplus.default, "the log decay")
    exp = _expect(_expect(speed, aten.neg.default, "the log decay's factor").args[0], aten.exp.default, "its factor")
    shifted = _expect(soft.args[0], aten.add.Tensor, "the softplus' operand")
    if len(soft.args) != 1 or soft.kwargs or shifted.kwargs or len(shifted.args) != 2:
        raise _Refused("the softplus has a scale or a threshold of its own")
    a, dt_bias = (_before_cast(item) for item in shifted.args)
    return _Gates(g, beta, a, b, _before_cast(exp.args[0]), dt_bias, scale, counted)


def _check(x: Node, gates: _Gates) -> None:
    """Raises _Refused for shapes and types that the kernels do not have."""
    shape = (*x.meta["val"].shape[:2], gates.a_log.meta["val"].shape[-1])
    if any(tuple(item.meta["val"].shape) != shape for item in (gates.a, gates.b, gates.g, gates.beta)):
        raise _Refused("the gates are not one for each token and head")
    if tuple(gates.dt_bias.meta["val"].shape) != shape[2:] or gates.a_log.meta["val"].dim() != 1:
        raise _Refused("the gates' weights are not one for each head")
    kinds = {item.meta["val"].dtype for item in (x, gates.a, gates.b)}
    if not kinds <= set(KERNEL_TYPES) or len(kinds) != 1:
        raise _Refused("no kernel takes these types")


def _says_the_same(counted: Node | None, live: Node | None, outside: Mapping[Node, Any]) -> bool:
    """Whether `counted` [B,1,1] is `live` [B,1] with one dim more."""
    if counted is None or live is None:
        return counted is live
    wide = outside.get(counted, counted)
    same = wide.target is aten.unsqueeze.default and wide.args[1] in (-1, 2)
    return same and wide.args[0] in (live, outside.get(live))


def _copied(x: Node) -> tuple[Node | None, Node | None]:
    """(where to, the copy) if x is copied as it is to one place; else nothing."""
    copies = [user for user in x.users if user.target is aten.copy_.default and user.args[1] is x and not user.users]
    if len(copies) != 1:
        return None, None
    place = copies[0].args[0]
    assert isinstance(place, Node)
    same = place.meta["val"].dtype == x.meta["val"].dtype and place.meta["val"].shape == x.meta["val"].shape
    return (place, copies[0]) if same else (None, None)


def _place(own: tuple[Node, ...], results: tuple[Node, ...], operands: Iterable[Node]) -> Node:
    """The first reader of the results, before which the op stands: `own` nodes move there. Raises _Refused where an
    operand comes later, or where something on the way could tell."""
    order = {node: number for number, node in enumerate(own[0].graph.nodes)}
    place = min((user for node in results for user in node.users if user not in own), key=lambda user: order[user])
    needed = {item for node in own for item in node.all_input_nodes} | set(operands)
    if any(order[node] >= order[place] for node in needed):
        raise _Refused(f"`{place.name}` reads a result before all operands are there")
    effects = [touched(node) for node in own]
    written = {item for effect in effects for item in effect.writes}
    read = {item for effect in effects for item in effect.reads} | {root(item) for item in operands}
    ends = [order[item] for item in (*own, place)]
    for node in list(order)[min(ends) : max(ends)]:
        if node not in own and node.op == "call_function":
            other = touched(node)
            if other.writes & (read | written) or (other.reads & written and not is_view(node)):
                raise _Refused(f"`{node.name}` touches what they read or write")
    return place
