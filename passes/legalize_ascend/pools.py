"""Edits of `recurrent`: a rule as the device's operator, and committed and candidate states in one pool of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import fake, output_node, output_values
from specc.ir.dims import BATCH
from specc.ir.edit import Editor, is_loop
from specc.ir.port import Port, ValueRange
from specc.ir.prune import prune
from specc.ir.scope import named_arguments
from specc.passes.legalize_ascend.chains import slot_behind, slot_of
from specc.passes.legalize_ascend.common import NAME, At, Place, Plan, Refused, aten, become
from specc.program import DecodeProgram, Slot, output_ports

VERIFIES = (ops.delta_rule_verify, ops.delta_rule_verify_states, ops.delta_rule_verify_pending)
CHAINS = (ops.delta_rule, ops.delta_rule_chunk)
FACTORS, STATES = 1, 2
"""Results of a rule: corrected values, and the state behind the tokens or the states of the nodes."""
ROW = "state_row"
COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class Rule:
    """A delta rule in a step graph, and the slot whose layer it starts from (None: a computed state)."""

    step: str
    place: Place
    node: Node
    slot: str | None

    @property
    def tokens(self) -> int:
        """Rows of a sequence; may be symbolic."""
        return int(named_arguments(self.node)["k"].meta["val"].shape[1])

    @property
    def top(self) -> Place:
        """The step graph."""
        place = self.place
        while place.parent is not None:
            place = place.parent
        return place


@dataclass(frozen=True, slots=True)
class Pool:
    """Rows of committed and candidate states in one slot, which takes the place of two."""

    name: str
    committed: str
    candidate: str
    rows: int


def rules_of(step: str, module: GraphModule) -> list[Rule]:
    """The delta rules of a step, at any depth."""
    return [
        Rule(step, place, node, slot_behind(At(place, named_arguments(node)["state"])))
        for place in Place(module).walk()
        for node in place.module.graph.nodes
        if node.target in (*VERIFIES, *CHAINS)
    ]


def pools_of(program: DecodeProgram, rules: Sequence[Rule], verifies: Sequence[Rule]) -> dict[str, Pool]:
    """By the slot of the committed state. Empty where steps do something else with states than rules and commits."""
    found: dict[str, Pool] = {}
    for rule in verifies:
        candidate = _slot_of_states(rule)
        if rule.slot is None or candidate is None or rule.slot in found:
            return {}
        found[rule.slot] = Pool(f"{rule.slot}_pool", rule.slot, candidate, rule.tokens + 1)
    for step, module in program.graphs.items():
        own = [rule.slot for rule in rules if rule.step == step]
        for node in module.graph.nodes:
            slot = slot_of(node)
            if step == COMMIT or not node.users or slot not in (*found, *(pool.candidate for pool in found.values())):
                continue
            if own.count(slot) != 1 or len(node.users) != 1 or not is_loop(next(iter(node.users))):
                return {}
    return found


def _slot_of_states(rule: Rule) -> str | None:
    """The slot that gets the nodes' states of a verify."""
    states = next((user for user in rule.node.users if user.args[1] == STATES), None)
    if rule.place.loop is None or rule.place.parent is None or states not in rule.place.parts.stacked_out:
        return None
    parts, module = rule.place.parts, rule.place.parent.module
    number = len(parts.carried) + parts.stacked_out.index(states)
    ports = dict(zip(output_values(module), output_ports(module), strict=True))
    return next((ports[item].name for item in parts.results().get(number, []) if item in ports), None)


def operator_of(rule: Rule, plan: Plan, pool: Pool | None) -> int:
    """The rule as the operator, on the pool or on the committed states themselves; the tokens of a sequence."""
    node, given = rule.node, named_arguments(rule.node)
    rows, tokens = (1, 1) if pool is None else (pool.rows, rule.tokens)
    if pool is not None and node.target in VERIFIES:
        tokens += 1
    slots = plan.inside(_slots(rule, plan, rows, tokens), rule.place)
    _see_pool(rule, pool)
    become(node, ops.npu_recurrent_chain, *(given[name] for name in ("state", "q", "k", "v", "g", "beta")), slots)
    for user in list(node.users):
        if user.args[1] == STATES:
            user.args = (node, 1)
        elif user.args[1] == FACTORS:
            rule.place.module.graph.erase_node(user)
    return tokens


def _slots(rule: Rule, plan: Plan, rows: int, tokens: int) -> At:
    """The rows of a pool that the tokens' states go to, made once per step."""
    top = rule.top

    def make(editor: Editor, row: Node, rows: int, tokens: int) -> Node:
        return editor.call(ops.npu_chain_slots, row, rows, tokens, name="chain_slots")

    def first(editor: Editor, like: Node) -> Node:
        return editor.call(ops.full_rows, like, [-1], 0, torch.int64, name="first_row")

    if rows == 1:
        row = plan.outside("first_row", [At(top, _slot(top.module, "length"))], first)
    else:
        row = At(top, _slot(top.module, ROW))
    return plan.outside("chain_slots", [row], make, rows, tokens)


def through_pool(rule: Rule, plan: Plan, pool: Pool) -> None:
    """A rule that stays as it is reads the committed row of the pool and writes all rows."""
    row = plan.inside(At(rule.top, _slot(rule.top.module, ROW)), rule.place)
    state = named_arguments(rule.node)["state"]
    _see_pool(rule, pool)
    editor = Editor(rule.place.module, NAME)
    with editor.before(rule.node, rule.node):
        before = editor.call(ops.npu_pool_read, state, row, name="committed_state")
    rule.node.replace_input_with(state, before)
    for after in [user for user in rule.node.users if user.args[1] == STATES]:
        with editor.after(after, after):
            filled = editor.call(ops.npu_pool_fill, state, after, name="pool_after")
        for reader in [user for user in after.users if user is not filled]:
            reader.replace_input_with(after, filled)


def _see_pool(rule: Rule, pool: Pool | None) -> None:
    """The slot's placeholders, at the top and inside the loop, stand for the pool from now on."""
    if pool is None:
        return
    inside = named_arguments(rule.node)["state"]
    parts = rule.place.parts
    outer = parts.sliced[parts.sliced_inside.index(inside)]
    for node, dim in ((inside, 1), (outer, 2)):
        old = node.meta["val"]
        node.meta["val"] = fake((*old.shape[:dim], pool.rows, *old.shape[dim:]), old.dtype)
    outer.meta["port"] = Port("slot", pool.name)


def _slot(module: GraphModule, name: str) -> Node:
    """The step's placeholder of an integer slot [B], made in front where it has none."""
    for node in module.graph.nodes:
        if slot_of(node) == name:
            found: Node = node
            return found
    first = next(iter(module.graph.nodes))
    editor = Editor(module, NAME)
    with editor.before(first, first):
        return editor.placeholder(name, fake((BATCH,), torch.int64), Port("slot", name))


def pooled(program: DecodeProgram, pools: Mapping[str, Pool]) -> DecodeProgram:
    """The program with the pools as slots, in the place of the committed states. Raises Refused."""
    by_name = {slot: pool for pool in pools.values() for slot in (pool.committed, pool.candidate)}
    _move_on(program.graphs[COMMIT], pools)
    for module in program.graphs.values():
        _bind_outputs(module, by_name)
        prune(module)
        for node in list(module.graph.nodes):
            if slot_of(node) in by_name:
                if node.users:
                    raise Refused(f"`{node.name}` is read beside the rule and the commit of its states")
                module.graph.erase_node(node)
    slots: dict[str, Slot] = {}
    for name, slot in program.slots.items():
        if name not in by_name:
            slots[name] = slot
        elif name in pools:
            slots |= _declared(slot, by_name[name])
    nodes = next(iter(pools.values())).rows - 1
    return replace(program, slots=slots, ranges={**program.ranges, f"slot:{ROW}": ValueRange(0, nodes)})


def _declared(state: Slot, pool: Pool) -> dict[str, Slot]:
    shape = (*state.shape[:2], pool.rows, *state.shape[2:])
    doc = (
        "recurrent states, a ring of rows: the committed one, and those of the nodes verified last behind it, per layer"
    )
    row = Slot(ROW, (BATCH,), torch.int64, "committed", "the row of the pools that holds the committed state")
    return {ROW: row, pool.name: replace(state, name=pool.name, shape=shape, doc=doc)}


def _move_on(module: GraphModule, pools: Mapping[str, Pool]) -> None:
    """A commit: the committed row moves on by the number of committed nodes, around the ring."""
    rows = next(iter(pools.values())).rows
    row = _slot(module, ROW)
    count = next(node for node in module.graph.nodes if node.meta.get("port") == Port("input", "emitted"))
    output = output_node(module)
    values: Any = output.args[0]
    ports = output.meta["ports"]
    old = [value for port, value in zip(ports, values, strict=True) if port.name in pools]
    editor = Editor(module, NAME)
    with editor.before(output, *old):
        place = editor.call(aten.add.Tensor, row, count, name="place")
        around = editor.call(aten.sub.Tensor, place, rows, name="around")
        last = editor.call(aten.ge.Scalar, place, rows, name="past_the_end")
        moved = editor.call(aten.where.self, last, around, place, name="new_row")
    kept = {port: value for port, value in zip(ports, values, strict=True) if port.name not in pools}
    bound = {Port("slot", ROW): moved, **kept}
    output.args, output.meta["ports"] = (tuple(bound.values()),), tuple(bound)
    output.meta["val"] = tuple(value.meta["val"] for value in bound.values())


def _bind_outputs(module: GraphModule, by_name: Mapping[str, Pool]) -> None:
    """What a step gives as a committed or a candidate state is the pool."""
    output = output_node(module)
    ports = output.meta["ports"]
    output.meta["ports"] = tuple(
        Port("slot", by_name[port.name].name) if port.kind == "slot" and port.name in by_name else port
        for port in ports
    )
