"""`accept`: one walk over the nodes that takes a root path of the drafted tree, then the bonus token.

The walk is a token loop over nodes 1 … N-1 in index order. It carries the node reached so far; a node is looked at
if it is valid and its parent is that node, so that siblings are tried in index order and only below what was
accepted (design 03, "Acceptance"). The rule that judges a node is the only difference between the methods.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import BodyBuilder
from specc.ir.dims import BATCH
from specc.lower.accept_rules import Rule, make_rule
from specc.lower.config import AcceptConfig, DraftConfig
from specc.lower.context import LowerContext
from specc.lower.sampling import compute_dtype, zero_like
from specc.lower.step import StepBuilder

aten = torch.ops.aten


def lower_accept(ctx: LowerContext, accept: AcceptConfig, draft: DraftConfig) -> GraphModule:
    """accept(state, tokens, parent, valid, logits, q_probs) -> the accepted path and the emitted tokens.

    Inputs [B,N] (parent absent for chains, q_probs [B,N,V] only for the rule true_q), logits [B,N,V]. Results: path
    [B,P] (path[:,0] = 0, then accepted nodes, then 0), accept_length [B], bonus [B], emitted_tokens [B,P] (padded
    with 0), emitted [B] (0 for finished rows), stopped [B]. The state does not change.
    """
    b = StepBuilder(ctx.slots, ctx.weights, ("accept", f"accept.{accept.method}", "sampling"))
    if accept.uses_draft_law != draft.draws:
        raise ValueError("the rule true_q needs drawn drafts, and only that rule may judge them")
    inputs = _inputs(b, ctx, accept)
    rule = make_rule(b, accept, inputs)
    current, path, count = walk(b, inputs, rule, ctx.nodes, ctx.max_path)
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


def walk(b: StepBuilder, inputs: Mapping[str, Node], rule: Rule, nodes: int, max_path: int) -> tuple[Node, Node, Node]:
    """The node reached [B], the path [B,P] padded with 0, the number of accepted nodes [B]; updates rule.carried.

    inputs: tokens, valid and, except for chains, parent [B,nodes].
    """
    tokens, chain = inputs["tokens"], "parent" not in inputs
    current = b.call(ops.full_rows, tokens, [-1], 0, torch.int64, name="root")
    count = b.call(ops.full_rows, tokens, [-1], 0, torch.int64, name="none_accepted")
    path = b.call(ops.full_rows, tokens, [-1, max_path], 0, torch.int64, name="root_path")
    if nodes == 1:
        return current, path, count
    carried = {"current": current, "count": count, "path": path, **rule.carried}
    sliced_names = ["tokens", "valid"] + ([] if chain else ["parent"])
    sliced = {
        name: b.call(aten.narrow.default, inputs[name], 1, 1, nodes - 1, name=f"drafted_{name}")
        for name in sliced_names
    }
    body = BodyBuilder("token", carried=carried, sliced=sliced, invariant=rule.invariant, keys=b.keys)
    parent = None if chain else body.call(aten.squeeze.dim, body["parent"], 1, name="parent_node")
    expected = body.index if parent is None else parent
    equal = aten.eq.Scalar if parent is None else aten.eq.Tensor
    child = body.call(equal, body["current"], expected, name="is_child")
    valid = body.call(aten.squeeze.dim, body["valid"], 1)
    looked = body.call(aten.logical_and.default, child, valid, name="looked_at")
    token = body.call(aten.squeeze.dim, body["tokens"], 1, name="token")
    accepted, updates = rule.judge(body, token, looked)
    depth = body.call(aten.add.Tensor, body["count"], 1, name="depth")
    number = body.call(operator.add, body.index, 1, name="node")
    body.inside["path"] = _put_node(body, accepted, depth, number)
    node = body.call(aten.full_like.default, body["current"], number)
    body.inside["current"] = body.call(aten.where.self, accepted, node, body["current"], name="reached")
    body.inside["count"] = body.call(aten.where.self, accepted, depth, body["count"], name="accepted_nodes")
    body.inside |= updates
    out = body.close(b, nodes - 1, [body.inside[name] for name in carried], "nodes")
    rule.carried |= dict(zip(list(carried)[3:], out[3:], strict=True))
    return out[0], out[2], out[1]


def _put_node(body: BodyBuilder, accepted: Node, depth: Node, number: Node) -> Node:
    """The path with the node of this iteration written at `depth` where it is accepted."""
    column = body.call(ops.iota, depth, body["path"].meta["val"].shape[1])
    here = body.call(aten.eq.Tensor, column, body.call(aten.unsqueeze.default, depth, 1))
    here = body.call(aten.logical_and.default, here, body.call(aten.unsqueeze.default, accepted, 1))
    node = body.call(aten.full_like.default, body["path"], number)
    return body.call(aten.where.self, here, node, body["path"], name="path_so_far")


def _finish(
    b: StepBuilder, ctx: LowerContext, accept: AcceptConfig, tokens: Node, path: Node, count: Node, bonus: Node
) -> None:
    """Cut the emitted tokens at the first stop token or at the limit, blank finished rows, and set the results.

    Emitted token j (1-based) that is a stop token, or the last that fits into min(remaining, max_sequence_length -
    length), becomes the bonus, with accept_length = j - 1 and stopped set (design 00, "Conventions").
    """
    column = b.call(ops.iota, path, ctx.max_path, name="column")
    room = b.call(aten.rsub.Scalar, b.slot("length"), ctx.max_sequence_length)
    limit = b.call(aten.minimum.default, b.slot("remaining"), room, name="limit")
    unfinished = b.call(aten.logical_not.default, b.slot("finished"))
    live = b.call(aten.logical_and.default, unfinished, b.call(aten.gt.Scalar, limit, 0), name="live")
    drafted = _path_tokens(b, tokens, path)
    is_bonus = b.call(aten.eq.Tensor, column, _column(b, count))
    emitted = b.call(aten.where.self, is_bonus, _column(b, bonus), drafted, name="all_emitted")
    ends = b.call(aten.eq.Tensor, column, b.call(aten.sub.Tensor, _column(b, limit), 1))
    for token in accept.stop_tokens:
        ends = b.call(aten.logical_or.default, ends, b.call(aten.eq.Scalar, emitted, token))
    ends = b.call(aten.logical_and.default, ends, b.call(aten.le.Tensor, column, _column(b, count)), name="ends")
    ended = b.call(aten.any.dim, ends, 1, name="ended")
    first = b.call(aten.argmax.default, b.call(aten._to_copy.default, ends, dtype=torch.int64), 1, name="first_end")
    # No path is longer than its tensor; the clamp states it, so that index analysis can prove the gather.
    length = b.call(aten.clamp_max.default, b.call(aten.where.self, ended, first, count), ctx.max_path - 1)
    last = b.call(aten.squeeze.dim, b.call(aten.gather.default, emitted, 1, _column(b, length)), 1)
    zero = zero_like(b, count)
    accept_length = b.call(aten.where.self, live, length, zero, name="accept_length")
    shown = b.call(aten.le.Tensor, column, _column(b, accept_length), name="shown")
    blank = zero_like(b, path)
    b.result("path", b.call(aten.where.self, shown, path, blank, name="accepted_path"))
    b.result("accept_length", accept_length)
    b.result("bonus", b.call(aten.where.self, live, last, zero, name="bonus"))
    shown = b.call(aten.logical_and.default, shown, _column(b, live))
    b.result("emitted_tokens", b.call(aten.where.self, shown, emitted, blank, name="emitted_tokens"))
    counted = b.call(aten.add.Tensor, accept_length, 1)
    b.result("emitted", b.call(aten.where.self, live, counted, zero, name="emitted"))
    out_of_room = b.call(aten.le.Scalar, limit, 0)
    stops = b.call(aten.logical_or.default, ended, out_of_room)
    b.result("stopped", b.call(aten.logical_and.default, unfinished, stops, name="stopped"))


def _column(b: StepBuilder, node: Node) -> Node:
    """[B] -> [B,1]."""
    return b.call(aten.unsqueeze.default, node, 1)


def _path_tokens(b: StepBuilder, tokens: Node, path: Node) -> Node:
    """The tokens [B,P] of path[:, 1:], then 0: emitted token j is the token of path entry j + 1."""
    batch = b.call(ops.batch_index, path)
    after_root = b.call(aten.narrow.default, path, 1, 1, path.meta["val"].shape[1] - 1)
    drafted = b.call(aten.index.Tensor, tokens, [batch, after_root])
    return b.call(aten.constant_pad_nd.default, drafted, [0, 1], 0, name="drafted_path")
