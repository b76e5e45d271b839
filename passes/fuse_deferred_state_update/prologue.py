"""Fusing the fold of a recurrent state into the verify op that reads it: the state tile is loaded once.

S = delta_rule_commit(S0, factors, path, count); o, u = delta_rule_verify(S, …); S is the new state
->  S, o, u = delta_rule_verify_pending(S0, factors, path, count, window=1, …)

S = delta_rule_commit(S0, factors, count); K = delta_rule_commit(S0, factors, where(count >= W, count, 0));
o, u = delta_rule_verify(S, …); K is the new state
->  K, o, u = delta_rule_verify_pending(S0, factors, count, window=W, …)
"""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Node

from specc.ir import ops
from specc.ir.edit import Editor
from specc.ir.scope import Scope, Value, named_arguments
from specc.ir.text import target_text
from specc.passes.fuse_deferred_state_update.common import NAME
from specc.passes.fuse_deferred_state_update.find import Refused
from specc.passes.fuse_deferred_state_update.order import due_window, in_order

FACTORS = ("k", "u", "g")


def folds_of_states(scope: Scope) -> list[tuple[Scope, Node]]:
    """Folds of recurrent states whose result another op of the same body reads."""
    return [
        (inner, node)
        for inner in scope.walk()
        for node in inner.module.graph.nodes
        if node.target is ops.delta_rule_commit and any(user.op != "output" for user in node.users)
    ]


def fuse_prologue(scope: Scope, fold: Node) -> str | None:
    """Fuse the fold into its reader (edited in place); the reason where that is not legal, else None."""
    try:
        reader = _reader(fold)
        kept, window = _kept(scope, fold)
    except Refused as reason:
        return str(reason)
    arguments = named_arguments(fold)
    path = None if in_order(Value(scope, arguments["path"])) else arguments["path"]
    rows = named_arguments(reader)
    tree = [rows.get("parent_row"), rows.get("mask"), rows.get("schedule", "unscheduled")]
    editor = Editor(scope.module, NAME)
    with editor.before(reader, fold):
        pending = editor.call(
            ops.delta_rule_verify_pending,
            arguments["state"],
            *(arguments[name] for name in FACTORS),
            path,
            arguments["count"],
            window,
            arguments["form"],
            *(rows[name] for name in ("q", "k", "v", "g", "beta")),
            *tree,
            name=reader.name,
        )
        state, o, u = (editor.item(pending, place, name) for place, name in enumerate(("folded_state", "o", "u")))
    _replace_items(editor, reader, (o, u))
    for old in {fold, kept}:
        editor.replace(old, state)
        scope.module.graph.erase_node(old)
    return None


def _reader(fold: Node) -> Node:
    """The verify op that takes the folded state. Raises Refused."""
    readers = [user for user in fold.users if user.op != "output"]
    if len(readers) != 1:
        raise Refused(f"{len(readers)} ops read the folded state `{fold.name}`")
    reader = readers[0]
    if reader.target not in (ops.delta_rule_verify, ops.delta_rule):
        raise Refused(f"`{reader.name}` ({target_text(reader.target)}) takes no pending factors")
    if reader.args[0] is not fold or fold in reader.args[1:]:
        raise Refused(f"`{reader.name}` reads the folded state elsewhere than as its state")
    items = [user for user in reader.users if user.target is operator.getitem and user.users]
    if reader.target is ops.delta_rule and any(user.args[1] == 2 for user in items):
        raise Refused(f"`{reader.name}` hands on a state that has its own rows too: that of the fold is not its result")
    if reader.target is ops.delta_rule and named_arguments(reader).get("ancestors") is not None:
        raise Refused(f"`{reader.name}` computes one node of a tree")
    return reader


def _kept(scope: Scope, fold: Node) -> tuple[Node, int]:
    """What becomes of the state slot: the fold itself, or its twin that is due only when the window is full."""
    if any(user.op == "output" for user in fold.users):
        return fold, 1
    mine = named_arguments(fold)
    for node in scope.module.graph.nodes:
        if node.target is not ops.delta_rule_commit or node is fold:
            continue
        other = named_arguments(node)
        if all(other[name] is mine[name] or other[name] == mine[name] for name in mine if name != "count"):
            window = due_window(Value(scope, other["count"]), Value(scope, mine["count"]))
            if window is not None and all(user.op == "output" for user in node.users):
                return node, window
    raise Refused(f"nothing keeps the folded state `{fold.name}`, nor its fold for a full window")


def _replace_items(editor: Editor, reader: Node, values: tuple[Node, ...]) -> None:
    graph = reader.graph
    for user in list(reader.users):
        place: Any = user.args[1]
        if place < len(values):
            editor.replace(user, values[place])
        graph.erase_node(user)
    graph.erase_node(reader)
