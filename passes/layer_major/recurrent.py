"""Recurrent ops over all tokens at once: along the chain, or over a tree from the committed state.

    chain   y, S' = op(S, row t)                        y, S' = op(S0, rows)
    tree    y, S' = op(table[row of the parent], row) ->  y = tree op(S0, rows, parent_row, mask)

Legal because the state that token t starts from is that of an earlier token (t - 1, or the parent) in the same layer,
which is proved here again on the loop as it was; that a parent comes before its children (I1) is what the ancestor
mask over the same parents stands for. A state that nothing else reads vanishes together with its table.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.dims import is_symbolic
from specc.ir.edit import inherit
from specc.ir.recurrence import Recurrence, op_named, recurrence_of
from specc.ir.scope import Miss, Scope, Value, named_arguments
from specc.passes.layer_major.batch import NAME, Batcher
from specc.passes.layer_major.values import Carried, ParentRow, Recurred, Refused, Rows, StateAfter, Uniform, describe
from specc.passes.parents import Parent, mask_parent, masked_parent, slice_operand
from specc.passes.recurrences import chain_place, own_states, tree_state

aten = torch.ops.aten


def emit_recurrence(batcher: Batcher, node: Node) -> Recurred:
    """The call of a recurrent op for all tokens. Raises Refused."""
    declared = recurrence_of(node.target)
    assert declared is not None
    state = batcher.env[named_arguments(node)[declared.state]]
    try:
        if isinstance(state, ParentRow) and state.dropped:
            return _tree(batcher, Value(batcher.scope, node), declared, state)
        if isinstance(state, Carried) and state.committed is not None:
            return _chain(batcher, Value(batcher.scope, node), declared, state)
    except Miss as miss:
        raise Refused(str(miss)) from None
    raise Refused(f"`{node.name}` starts from {describe(state)}, not from the state that an earlier token left")


def _chain(batcher: Batcher, call: Value, declared: Recurrence, state: Carried) -> Recurred:
    place = chain_place(call, batcher.token)
    assert (place.place, place.sliced) == (state.place, state.sliced)
    given = _operands(batcher, call, declared) | {declared.state: state.committed}
    if not _states_wanted(batcher, call, state):
        made = _call(batcher, call, call.node.target, given)
        last = batcher.builder.item(made, declared.result, own_states(call)[0].name)
        inherit(last, call.node, NAME)
        return Recurred(made, declared.result, StateAfter(state.place, state.sliced, last, None))
    if is_symbolic(batcher.tokens):
        raise Refused(f"the states of all tokens of `{call.node.name}` are read, and their number is not fixed")
    made, states = _with_states(batcher, call, declared, given)
    last = batcher.builder.call(aten.select.int, states, 1, batcher.tokens - 1)
    inherit(last, call.node, NAME)
    return Recurred(made, declared.result, StateAfter(state.place, state.sliced, last, states))


def _tree(batcher: Batcher, call: Value, declared: Recurrence, state: ParentRow) -> Recurred:
    name, table = call.node.name, state.table
    if is_symbolic(batcher.tokens):
        raise Refused(f"the number of nodes of `{name}` is not fixed")
    found = tree_state(call, batcher.token, batcher.tokens)
    if found.write.shift != 1 or found.write.table.rows != batcher.tokens + 1:
        raise Refused(
            f"the table of `{name}` has the committed state in another row than 0, where a parent row of 0 is"
        )
    given = _operands(batcher, call, declared) | {declared.state: table.committed, "parent_row": state.number.node}
    given["mask"] = _mask(batcher, call, declared, found.parent)
    wanted = _states_wanted(batcher, call, table)
    if wanted:
        made, states = _with_states(batcher, call, declared, given)
        return Recurred(made, declared.result, StateAfter(table.place, table.sliced, None, states))
    made = _call(batcher, call, op_named(declared.tree), given)
    return Recurred(made, declared.result, StateAfter(table.place, table.sliced, None, None))


def _with_states(batcher: Batcher, call: Value, declared: Recurrence, given: dict[str, Any]) -> tuple[Node, Node]:
    if declared.states is None:
        raise Refused(f"the states of all tokens of `{call.node.name}` are read, and no op gives them")
    made = _call(batcher, call, op_named(declared.states), given)
    states = batcher.builder.item(made, len(made.meta["val"]) - 1, own_states(call)[0].name)
    inherit(states, call.node, NAME)
    return made, states


def _call(batcher: Batcher, call: Value, target: Any, given: dict[str, Any]) -> Node:
    """A call with operands by schema name; what is given and has no such name must be None. Raises Refused."""
    names = [argument.name for argument in target._schema.arguments]
    for name, value in given.items():
        if name not in names and value is not None and name != "mask":
            raise Refused(f"`{call.node.name}` has an operand `{name}`, which `{target}` does not take")
    values = {"schedule": "unscheduled", "parent_row": None, "mask": None, **given}
    defaults = {argument.name: argument.default_value for argument in target._schema.arguments}
    arguments = [values.get(name, defaults[name]) for name in names]
    while arguments and names[len(arguments) - 1] not in values:
        arguments.pop()
    name = call.node.name if target is call.node.target else target._schema.name.split("::")[-1]
    made = batcher.builder.call(target, *arguments, name=name)
    inherit(made, call.node, NAME)
    return made


def _operands(batcher: Batcher, call: Value, declared: Recurrence) -> dict[str, Any]:
    """All operands but the state and the ancestors, over all tokens. Raises Refused, Miss."""
    found: dict[str, Any] = {}
    for name, argument in named_arguments(call.node).items():
        if name in (declared.state, declared.ancestors):
            continue
        if not isinstance(argument, Node):
            found[name] = argument
            continue
        value = batcher.env[argument]
        by_token = name in declared.rows or name == declared.live
        if not isinstance(value, Rows if by_token else Uniform) or (isinstance(value, Rows) and value.axis != 1):
            wanted = "rows with the token axis as dim 1" if by_token else "the same for every token"
            raise Refused(f"operand `{name}` of `{call.node.name}` is {describe(value)}, but must be {wanted}")
        if name == declared.live:
            _check_live(call.at(argument), batcher)
        found[name] = value.node
    return found


def _check_live(live: Value, batcher: Batcher) -> None:
    """Proves that the tokens that count come first: number < length of the sequence. Raises Refused, Miss."""
    if batcher.tokens == 1:
        return
    outer = batcher.token.parent
    assert outer is not None
    rows = Value(outer, slice_operand(live, batcher.token)).resolved()
    if rows.calls(aten.lt.Tensor):
        number, length = (rows.at(argument) for argument in rows.node.args)
        if number.calls(ops.iota) and length.calls(aten.unsqueeze.default) and length.node.args[1] in (1, -1):
            return
    raise Refused(
        f"`{rows.node.name}` is not known to mark the first tokens of each sequence, so a state could skip some"
    )


def _mask(batcher: Batcher, call: Value, declared: Recurrence, parent: Parent) -> Node | None:
    """The ancestor mask [B,N,N] over the op's parents; None for ops that don't take it. Raises Refused."""
    if declared.ancestors is None:
        if not any(mask == parent for mask in _masks(batcher.token)):
            raise Refused(
                f"no ancestor mask covers the parents of `{call.node.name}`: one may come after its child (I1)"
            )
        return None
    argument = named_arguments(call.node).get(declared.ancestors)
    if argument is None:
        raise Refused(f"`{call.node.name}` has no ancestor mask, so a node may start from a later one's state")
    value = batcher.env[argument]
    if not isinstance(value, Rows) or masked_parent(call.at(argument), batcher.token) != parent:
        raise Refused(f"the ancestors of `{call.node.name}` are not those of the parents whose states it starts from")
    return value.node


def _masks(token: Scope) -> list[Parent | None]:
    assert token.loop is not None
    assert token.parent is not None
    return [mask_parent(Value(token.parent, item).resolved()) for item in token.loop.sliced if isinstance(item, Node)]


def _states_wanted(batcher: Batcher, call: Value, own: Carried) -> bool:
    """True where more than the recurrence itself reads the states of single tokens."""
    for item in own_states(call):
        for user in item.users:
            if user.target is not aten.select_scatter.default or user.args[1] is not item:
                continue
            table = batcher.env.get(user.args[0])  # type: ignore[arg-type]
            if not isinstance(table, Carried) or table.place != own.place or own.place in batcher.read_after:
                return True
    return False
