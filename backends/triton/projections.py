"""A step's attention and the projection behind it become one op.

    o = rope_attention_(q, k, v, …)
    y = fused_linear(flatten(o), W, b, …, residual)     ->      y = rope_attention_linear_(q, k, v, …, W, b, residual)

With one token the projection then joins attention's parts itself; with several a launch does it, which lets the
projection start early. The attention moves down to the projection: nothing between may notice. Projections that take
more than one step over their columns stay apart: each of their programs would join too much, and an early start loses.
Over pages, rope_attention_paged_ becomes rope_attention_paged_linear_.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.triton.ops.attention import MOST_TOKENS
from specc.backends.triton.ops.linear import linear_config
from specc.backends.triton.regions.effects import touched
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, modules
from specc.ir.prune import prune
from specc.ir.scope import named_arguments

ORIGIN = "fuse-attention-projection"
aten = torch.ops.aten
PROJECTED: Mapping[object, torch._ops.OpOverload] = {
    ops.rope_attention_: ops.rope_attention_linear_,
    ops.rope_attention_paged_: ops.rope_attention_paged_linear_,
}
"""Attentions of a step, and the op that has a projection too."""


class _Refused(Exception):
    """An attention keeps its op; the message says why."""


def attention_projections(module: GraphModule) -> tuple[GraphModule, list[str]]:
    """A copy of a step graph with one op for an attention and the projection behind it, and why others have none."""
    made = clone(module)
    notes: list[str] = []
    for block in list(modules(made)):
        for node in [item for item in block.graph.nodes if item.target in PROJECTED]:
            try:
                flat, projection = _found(node)
            except _Refused as reason:
                notes.append(f"{node.name} is joined by a launch of its own: {reason}")
                continue
            attended, given = named_arguments(node), named_arguments(projection)
            editor = Editor(block, ORIGIN)
            with editor.before(projection, node):
                fused, behind = attended.pop("fused", True), (given["weight"], given["bias"], given["residual"])
                editor.replace(projection, editor.call(PROJECTED[node.target], *attended.values(), fused, *behind))
            for inner in (projection, flat, node):
                block.graph.erase_node(inner)
    prune(made)
    return finish(made), notes


def _found(node: Node) -> tuple[Node, Node]:
    """What flattens the heads of the attention `node`, and the projection of that. Raises _Refused."""
    batch, tokens, heads, dim = node.meta["val"].shape
    if not isinstance(tokens, int) or tokens > MOST_TOKENS:
        raise _Refused("many tokens")
    flat = _only_user(node)
    if flat.target is not aten.flatten.using_ints or flat.meta["val"].shape != (batch, tokens, heads * dim):
        raise _Refused("its heads are not laid side by side")
    projection = _only_user(flat)
    if projection.target is not ops.fused_linear:
        raise _Refused("no projection behind it")
    given = named_arguments(projection)
    if given["x"] is not flat or given["norm_weight"] is not None or given["activation"] != "none":
        raise _Refused("more than a projection behind it")
    features, hidden = given["weight"].meta["val"].shape
    if not linear_config(hidden, features, False, node.meta["val"].dtype).once(hidden):
        raise _Refused("the projection takes several steps")
    _nothing_between(node, flat, projection)
    return flat, projection


def _only_user(node: Node) -> Node:
    if len(node.users) != 1:
        raise _Refused(f"`{node.name}` is read elsewhere")
    return next(iter(node.users))


def _nothing_between(node: Node, flat: Node, projection: Node) -> None:
    """Raises _Refused where a call between the two could tell that the attention moves behind it."""
    own = touched(node)
    item: Any = node.next
    while item is not projection:
        if item.op == "call_function" and item is not flat:
            other = touched(item)
            if other.writes & (own.reads | own.writes) or other.reads & own.writes:
                raise _Refused(f"`{item.name}` touches what it reads or writes")
        item = item.next
