"""`accept`: one walk over the nodes that takes a root path of the drafted tree, then the bonus token.

The walk is a token loop over nodes 1 … N-1 in index order. It carries the node reached so far; a node is looked at
if it is valid and its parent is that node, so that siblings are tried in index order and only below what was
accepted (design 03, "Acceptance"). The rule that judges a node is the only difference between the methods.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import BodyBuilder
from specc.ir.dims import BATCH
from specc.lower.accept_rules import Rule, make_rule
from specc.lower.config import AcceptConfig
from specc.lower.context import LowerContext
from specc.lower.sampling import at_node, compute_dtype
from specc.lower.step import StepBuilder

aten = torch.ops.aten


def lower_accept(ctx: LowerContext, accept: AcceptConfig) -> GraphModule:
    """accept(state, tokens, parent, valid, logits, q_probs) -> the accepted path and the emitted tokens.

    Inputs [B,N] (parent absent for chains, q_probs [B,N,V] only for the rule true_q), logits [B,N,V]. Results: path
    [B,P] (path[:,0] = 0, then accepted nodes, then 0), accept_length [B], bonus [B], emitted_tokens [B,P] (padded
    with 0), emitted [B] (0 for finished rows), stopped [B]. The state does not change.
    """
    b = StepBuilder(ctx.slots, ctx.weights, ("accept", f"accept.{accept.method}", "sampling"))
    inputs = _inputs(b, ctx, accept)
    rule = make_rule(b, accept, inputs)
    current, path, count = _walk(b, ctx, inputs, rule)
    with b.spec("accept", "sampling"):
        bonus = rule.bonus(b, current, count)
    with b.spec("accept.stop_tokens", "runtime.max_sequence_length"):
        _finish(b, ctx, accept, inputs["tokens"], path, count, bonus)
    return b.finish()


def _inputs(b: StepBuilder, ctx: LowerContext, accept: AcceptConfig) -> dict[str, Node]:
    nodes, vocabulary = ctx.nodes, ctx.target.geometry.vocab_size
    made = {"tokens": b.input("tokens", (BATCH, nodes), torch.int64)}
    if not ctx.chain:
        made["parent"] = b.input("parent", (BATCH, nodes), torch.int64)
    made["valid"] = b.input("valid", (BATCH, nodes), torch.bool)
    made["logits"] = b.input("logits", (BATCH, nodes, vocabulary), ctx.dtype)
    if accept.uses_draft_law:
        made["q_probs"] = b.input("q_probs", (BATCH, nodes, vocabulary), compute_dtype(ctx.dtype))
    return made


def _walk(b: StepBuilder, ctx: LowerContext, inputs: dict[str, Node], rule: Rule) -> tuple[Node, Node, Node]:
    """The node reached [B], the path [B,P] padded with 0, the number of accepted nodes [B]; updates rule.carried."""
    tokens = inputs["tokens"]
    current = b.call(ops.full_rows, tokens, [-1], 0, torch.int64, name="root")
    count = b.call(ops.full_rows, tokens, [-1], 0, torch.int64, name="none_accepted")
    path = b.call(ops.full_rows, tokens, [-1, ctx.max_path], 0, torch.int64, name="root_path")
    if ctx.nodes == 1:
        return current, path, count
    carried = {"current": current, "count": count, "path": path, **rule.carried}
    sliced_names = ["tokens", "valid"] + ([] if ctx.chain else ["parent"])
    sliced = {
        name: b.call(aten.narrow.default, inputs[name], 1, 1, ctx.nodes - 1, name=f"drafted_{name}")
        for name in sliced_names
    }
    body = BodyBuilder("token", carried=carried, sliced=sliced, invariant=rule.invariant, keys=b.keys)
    parent = None if ctx.chain else body.call(aten.squeeze.dim, body["parent"], 1, name="parent_node")
    expected = body.index if parent is None else parent
    equal = aten.eq.Scalar if parent is None else aten.eq.Tensor
    child = body.call(equal, body["current"], expected, name="is_child")
    valid = body.call(aten.squeeze.dim, body["valid"], 1)
    looked = body.call(aten.logical_and.default, child, valid, name="looked_at")
    token = body.call(aten.squeeze.dim, body["tokens"], 1, name="token")
    accepted, updates = rule.judge(body, token, looked)
    depth = body.call(aten.add.Tensor, body["count"], 1, name="depth")
    body.inside["path"] = _put_node(body, accepted, depth)
    node = body.call(aten.full_like.default, body["current"], _node_number(body))
    body.inside["current"] = body.call(aten.where.self, accepted, node, body["current"], name="reached")
    body.inside["count"] = body.call(aten.where.self, accepted, depth, body["count"], name="accepted_nodes")
    body.inside |= updates
    out = body.close(b, ctx.nodes - 1, [body.inside[name] for name in carried], "nodes")
    rule.carried |= dict(zip(list(carried)[3:], out[3:], strict=True))
    return out[0], out[2], out[1]


def _node_number(body: BodyBuilder) -> Node:
    """Iteration i looks at node i + 1."""
    import operator

    return body.call(operator.add, body.index, 1, name="node")


def _put_node(body: BodyBuilder, accepted: Node, depth: Node) -> Node:
    """The path with the node of this iteration written at `depth` where it is accepted."""
    column = body.call(ops.iota, depth, body["path"].meta["val"].shape[1])
    here = body.call(aten.eq.Tensor, column, body.call(aten.unsqueeze.default, depth, 1))
    here = body.call(aten.logical_and.default, here, body.call(aten.unsqueeze.default, accepted, 1))
    node = body.call(aten.full_like.default, body["path"], _node_number(body))
    return body.call(aten.where.self, here, node, body["path"], name="path_so_far")
