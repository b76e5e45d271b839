"""How many rows a cache needs: start + rows <= capacity for every state that a step can find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import fake
from specc.ir.dims import CHUNK
from specc.ir.edit import modules
from specc.ir.ranges import Ranges, analyse
from specc.passes.legalize_ascend.chains import slot_of
from specc.passes.legalize_ascend.common import Plan, Refused
from specc.program import DecodeProgram

DEFAULT_CHUNK = 512


def grown(program: DecodeProgram, plan: Plan, chunk: int, multiple: int) -> DecodeProgram:
    """The program with caches of enough rows, and with `prefill_chunk` among its attributes."""
    longest = int(program.attributes.get("max_sequence_length") or plan.capacity or DEFAULT_CHUNK)
    chunk = min(chunk or int(program.attributes.get("prefill_chunk", DEFAULT_CHUNK)), longest)
    needed, why = plan.capacity, ""
    for step, module in program.graphs.items():
        found = analyse(module, program.ranges)
        for body in modules(module):
            for node in body.graph.nodes:
                if node.target is ops.npu_scatter_update:
                    end = _highest(node, found) + _rows(node, chunk)
                    if end > needed:
                        needed, why = end, step
    if why:
        needed = -(-needed // multiple) * multiple
        message = f"caches have {needed} rows, not {plan.capacity}: rows beyond those that count are written too"
        plan.note(why, message, keys=("runtime.max_sequence_length",))
    plan.note("prefill", f"at most {chunk} prompt tokens in one call", keys=("runtime",))
    slots = {name: _resized(slot, needed) if name in plan.caches else slot for name, slot in program.slots.items()}
    for module in program.graphs.values():
        _resize(module, plan, needed)
    attributes = {**program.attributes, "prefill_chunk": chunk}
    return replace(program, slots=slots, attributes=attributes)


def _highest(node: Node, found: Ranges) -> int:
    high = found.of(node.args[1]).high.constant
    if high is None:
        raise Refused(f"`{node.name}` may start anywhere")
    return high


def _rows(node: Node, chunk: int) -> int:
    rows: Any = node.args[2]
    number = int(rows.meta["val"].shape[1])
    whole, rest = divmod(number, CHUNK)
    return whole * chunk + rest


def _resized(slot: Any, rows: int) -> Any:
    return replace(slot, shape=(*slot.shape[:2], rows, *slot.shape[3:]))


def _resize(module: GraphModule, plan: Plan, rows: int) -> None:
    for body in modules(module):
        for node in body.graph.nodes:
            if slot_of(node) in plan.caches:
                old = node.meta["val"]
                node.meta["val"] = fake((*old.shape[:2], rows, *old.shape[3:]), old.dtype)
            elif node.target is ops.attention_mask:
                node.args = (*node.args[:3], rows, *node.args[4:])
