"""fuse-deferred-state-update: `verify; accept; commit` becomes `commit(previous); verify; accept`.

    commit:  cache = C(cache, candidate, x)         commit:  pending_x = x
    verify:  … cache …                        ->    verify:  cache = C(cache, candidate, pending_x) …; pending nothing
                                                    flush:   cache = C(cache, candidate, pending_x); pending nothing

C is whatever part of `commit` computes the cache slots (found by data flow: the backward slice of every output that
reads a candidate slot); x is what that part reads besides caches and candidates (the path, the count, the length
before the step), recorded in slots of role `pending`. The fold is then fused into the loop over layers of `verify`
(iteration l folds layer l, then verifies with it), so that no separate pass over the caches remains
(EAGLE-Pangu, path-index commit; SpecLA, deferred update).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.fx import Graph, GraphModule, Node

from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, is_impure, is_loop, loop_parts
from specc.ir.op import info
from specc.ir.port import Port, ValueRange
from specc.manager import Note, Pass, PassContext, PassResult, predicate
from specc.passes.loop_fusion import fuse_loops
from specc.program import DEFERRED, INDEX_SAFE, LAYER_MAJOR, TREE_MASKED, DecodeProgram, Slot, output_ports

NAME = "fuse-deferred-state-update"
# Steps that must not run with something pending: their wrappers call flush first.
FLUSH_FIRST = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of `commit` that is moved: result nodes by slot, all nodes in order, and the ports it reads."""

    results: dict[str, Node]
    nodes: tuple[Node, ...]
    caches: tuple[str, ...]
    candidates: tuple[str, ...]
    recorded: dict[Port, Node]
    count: Port


def _backward(results: list[Node]) -> list[Node]:
    """All nodes that the results depend on, in graph order."""
    seen: set[Node] = set()
    stack = list(results)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return [node for node in results[0].graph.nodes if node in seen]


def _ports(nodes: list[Node]) -> dict[Port, Node]:
    return {node.meta["port"]: node for node in nodes if node.op == "placeholder"}


def _count_port(module: GraphModule, nodes: list[Node]) -> Port | None:
    """The port that makes every moved op the identity when it is 0 (`identity_when_zero` of its declaration)."""
    found: set[Node | None] = set()

    def visit(owner: Graph, node: Node, outside: dict[Node, Node]) -> None:
        if is_loop(node):
            parts = loop_parts(node)
            inner = {i: outside.get(o, o) for o, i in zip(parts.operands, parts.inside, strict=True)}
            for item in parts.body.graph.nodes:
                if item.op == "call_function":
                    visit(parts.body.graph, item, inner)
            return
        declared = info(node.target)
        operand = declared.meta.get("identity_when_zero") if declared else None
        if operand is None:
            found.add(None)
            return
        names = [argument.name for argument in declared.overload._schema.arguments] if declared else []
        argument: Any = node.args[names.index(operand)]
        found.add(outside.get(argument, argument))

    for node in nodes:
        if node.op == "call_function" and "getitem" not in str(node.target):
            visit(module.graph, node, {})
    only = found.pop() if len(found) == 1 else None
    return only.meta["port"] if only is not None and only.op == "placeholder" else None


def find_slice(program: DecodeProgram) -> Slice | str:
    """What can be deferred, or the reason why nothing can."""
    commit = program.graphs["commit"]
    output = next(node for node in reversed(commit.graph.nodes) if node.op == "output")
    values: Any = output.args[0]
    results: dict[str, Node] = {}
    for port, value in zip(output_ports(commit), values, strict=True):
        reads = {item.name for item in _ports(_backward([value])) if item.kind == "slot"}
        if port.kind == "slot" and any(program.slots[name].role == "candidate" for name in reads):
            results[port.name] = value
    if not results:
        return "commit moves no candidate rows: nothing to defer"
    nodes = _backward(list(results.values()))
    impure = next((node for node in nodes if is_impure(node) and node.op != "placeholder"), None)
    if impure is not None:
        return f"`{impure.name}` in commit has a side effect and can't be moved to the next step"
    ports = _ports(nodes)
    caches = tuple(results)
    candidates = tuple(
        port.name for port in ports if port.kind == "slot" and program.slots[port.name].role == "candidate"
    )
    reason = _blocked(program, caches, candidates)
    if reason is not None:
        return reason
    recorded = {
        port: node for port, node in ports.items() if port.name not in (*caches, *candidates) and port.kind != "weight"
    }
    count = _count_port(commit, nodes)
    if count is None:
        return "no operand of the moved ops makes them the identity when it is 0, so an empty commit can't be pending"
    return Slice(results, tuple(nodes), caches, candidates, recorded, count)


def _blocked(program: DecodeProgram, caches: tuple[str, ...], candidates: tuple[str, ...]) -> str | None:
    """A step between commit and the next verify that reads a cache, or one other than verify that writes candidates."""
    for name, module in program.graphs.items():
        reads = {node.meta["port"].name for node in module.graph.nodes if node.op == "placeholder" and node.users}
        writes = {port.name for port in output_ports(module) if port.kind == "slot"}
        if name in ("draft", "accept") and reads & set(caches):
            return f"{name} reads `{sorted(reads & set(caches))[0]}` before the next verify could fold the commit"
        if name != "verify" and writes & set(candidates):
            return f"{name} overwrites `{sorted(writes & set(candidates))[0]}` while its commit may be pending"
    return None


def pending_name(port: Port) -> str:
    """`path` -> `pending_path`."""
    return f"pending_{port.name}"


def _pending_slots(program: DecodeProgram, found: Slice) -> dict[str, Slot]:
    slots = dict(program.slots)
    for port, node in found.recorded.items():
        value = node.meta["val"]
        doc = f"`{port.name}` of the commit that is pending" + (" (0: nothing is)" if port == found.count else "")
        slots[pending_name(port)] = Slot(pending_name(port), tuple(value.shape), value.dtype, "pending", doc)
    return slots


def _pending_ranges(program: DecodeProgram, found: Slice) -> dict[str, ValueRange]:
    """What is recorded keeps its declared range."""
    ranges = dict(program.ranges)
    for port in found.recorded:
        declared = ranges.get(f"{port.kind}:{port.name}")
        if declared is not None:
            ranges[f"slot:{pending_name(port)}"] = declared
    return ranges


def _placeholder(module: GraphModule, editor: Editor, port: Port, value: Any) -> Node:
    """The module's placeholder of a port, made in front where it has none."""
    for node in module.graph.nodes:
        if node.op == "placeholder" and node.meta["port"] == port:
            return node
    first = next(node for node in module.graph.nodes)
    with editor.before(first):
        made = editor.placeholder(port.name, value, port)
    made.meta["keys"] = ("commit.update",)
    return made


def _set_output(module: GraphModule, port: Port, value: Node) -> None:
    """Bind the output of `port` (added in front of the results where the step had none)."""
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    entries = dict(zip(output.meta["ports"], output.args[0], strict=True))
    entries[port] = value
    ordered = sorted(entries.items(), key=lambda entry: entry[0].kind != "slot")
    output.args = (tuple(item for _, item in ordered),)
    output.meta["ports"] = tuple(item for item, _ in ordered)
    output.meta["val"] = tuple(item.meta["val"] for _, item in ordered)


def insert_fold(module: GraphModule, commit: GraphModule, found: Slice) -> list[Node]:
    """Fold what is pending at the head of `module` (edited in place); returns the fold's loops.

    All other reads of the caches in the module see the folded ones, and nothing is pending afterwards.
    """
    editor = Editor(module, NAME)
    mapping: dict[Node, Node] = {}
    originals: dict[str, Node] = {}
    for port, node in _ports(list(found.nodes)).items():
        target = Port("slot", pending_name(port)) if port in found.recorded else port
        mapping[node] = _placeholder(module, editor, target, node.meta["val"])
        if port.name in found.caches:
            originals[port.name] = mapping[node]
    readers = {name: list(node.users) for name, node in originals.items()}
    first = next(node for node in module.graph.nodes if node.op != "placeholder")
    loops: list[Node] = []
    with editor.before(first, *found.results.values()):
        for node in found.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "get_attr":
                mapping[node] = editor.body(clone(commit.get_submodule(str(node.target))), str(node.target))  # type: ignore[arg-type]
            else:
                mapping[node] = module.graph.node_copy(node, lambda item: mapping[item])
            mapping[node].meta["passes"] = (*node.meta["passes"], NAME)
            mapping[node].meta["keys"] = (*node.meta["keys"], "commit.update")
            if is_loop(node):
                loops.append(mapping[node])
        count = mapping[found.recorded[found.count]]
        cleared = editor.call(torch.ops.aten.zeros_like.default, count, name="nothing_pending")
    for name, users in readers.items():
        for user in users:
            user.replace_input_with(originals[name], mapping[found.results[name]])
    for name, node in found.results.items():
        _bind_unless_written(module, Port("slot", name), mapping[node])
    _set_output(module, Port("slot", pending_name(found.count)), cleared)
    return loops


def _bind_unless_written(module: GraphModule, port: Port, value: Node) -> None:
    if port not in output_ports(module):
        _set_output(module, port, value)


def _record(commit: GraphModule, found: Slice) -> GraphModule:
    """`commit` without the moved part: it records what that part would have read."""
    made = clone(commit)
    output = next(node for node in reversed(made.graph.nodes) if node.op == "output")
    entries = {
        port: value
        for port, value in zip(output.meta["ports"], output.args[0], strict=True)
        if not (port.kind == "slot" and port.name in found.caches)
    }
    output.args = (tuple(entries.values()),)
    output.meta["ports"] = tuple(entries)
    output.meta["val"] = tuple(value.meta["val"] for value in entries.values())
    by_port = {node.meta["port"]: node for node in made.graph.nodes if node.op == "placeholder"}
    for port in found.recorded:
        _set_output(made, Port("slot", pending_name(port)), by_port[port])
    made.graph.eliminate_dead_code(lambda node: node.op == "output")
    made.delete_all_unused_submodules()
    return finish(made)


def _fuse_folds(verify: GraphModule, folds: list[Node]) -> list[Note]:
    """Fuse each fold into the loop of verify that reads its slices; a note says what happened."""
    notes = []
    for fold in folds:
        readers = {user for item in fold.users for user in item.users if is_loop(user)}
        if len(readers) != 1:
            reason: str | None = f"{len(readers)} loops read the folded slot"
        else:
            reason = fuse_loops(verify, fold, readers.pop(), NAME)
        message = "fold fused into the loop that reads it" if reason is None else f"fold not fused: {reason}"
        notes.append(Note(NAME, "verify", message, reason is None, ("commit.update",)))
    return notes


@dataclass(frozen=True, slots=True)
class FuseDeferredStateUpdate(Pass):
    """Moves the row movement of commit to the head of the next verify; see the module's docstring.

    Legal where the moved part is pure, nothing between commit and verify reads the caches, only verify writes the
    candidates, and the ops are the identity for a count of 0 (first step, finished rows, re-used slots).
    """

    name: ClassVar[str] = NAME
    requires: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR})
    establishes: ClassVar[frozenset[str]] = frozenset({DEFERRED})
    preserves: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR})

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        found = find_slice(program)
        if isinstance(found, str):
            return PassResult(program, False, (Note(NAME, "commit", found, False, ("commit.update",)),))
        commit = program.graphs["commit"]
        verify, flush = clone(program.graphs["verify"]), clone(program.graphs["flush"])
        folds = insert_fold(verify, commit, found)
        insert_fold(flush, commit, found)
        notes = _fuse_folds(verify, folds)
        moved = ", ".join(f"`{name}`" for name in found.caches)
        kept = ", ".join(f"`{pending_name(port)}`" for port in found.recorded)
        notes.insert(
            0, Note(NAME, "commit", f"{moved} folded by the next verify; recorded: {kept}", True, ("commit.update",))
        )
        graphs = {"verify": finish(verify), "flush": finish(flush), "commit": _record(commit, found)}
        made = replace(
            program.with_graphs(**graphs),
            slots=_pending_slots(program, found),
            ranges=_pending_ranges(program, found),
            attributes={
                **program.attributes,
                "flush_first": list(FLUSH_FIRST),
                "pending_count": pending_name(found.count),
            },
        )
        return PassResult(made, True, tuple(notes))


@predicate(DEFERRED)
def unfolded_reads(program: DecodeProgram) -> list[str]:
    """Why the program is not DEFERRED: steps that read a cache with something pending, or keep it pending."""
    count = program.attributes.get("pending_count")
    if count is None:
        return ["no commit is recorded as pending"]
    candidates = {name for name, slot in program.slots.items() if slot.role == "candidate"}
    reasons = []
    for step in ("verify", "flush"):
        written = {port.name for port in output_ports(program.graphs[step]) if port.kind == "slot"}
        if count not in written:
            reasons.append(f"{step} does not clear `{count}`")
    for step, module in program.graphs.items():
        reads = {node.meta["port"].name for node in module.graph.nodes if node.op == "placeholder"}
        if step in ("verify", "flush") or step in program.attributes["flush_first"]:
            continue
        if reads & candidates:
            reasons.append(f"{step} reads candidate rows although their commit is deferred")
    return reasons
