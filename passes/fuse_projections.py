"""fuse-projections: linear layers on one input become one linear layer and a split.

    q = x Wq^T + bq; k = x Wk^T + bk; v = x Wv^T + bv   ->   q, k, v = split(x Wqkv^T + bqkv),  Wqkv = [Wq; Wk; Wv]

Weights are program declarations, so nothing is concatenated at run time: the fused weight's `sources` are those of its
parts, one behind the other along dim 0, and the loader reads them so. A group is fused only if every graph uses its
weights in exactly this way and in no other: one program has one set of weights.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch.fx import GraphModule, Node

from specc.ir.build import fake
from specc.ir.clone import clone
from specc.ir.edit import Editor, erase_dead, finish, is_loop
from specc.ir.port import Port
from specc.ir.prune import prune
from specc.ir.scope import Scope, Value, add_operand
from specc.manager import Note, Pass, PassContext, PassResult
from specc.program import BUFFERED, DEFERRED, INDEX_SAFE, LAYER_MAJOR, TREE_MASKED, DecodeProgram, Weight

aten = torch.ops.aten
NAME = "fuse-projections"
Signature = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Linear layers on one input in one body; `names` pairs each one's weight with its bias."""

    scope: Scope
    linears: tuple[Node, ...]
    names: Signature


@dataclass(slots=True)
class Uses:
    """How the graphs use the weights: the groups, and weights that something other than a linear layer reads."""

    groups: list[tuple[str, Group]] = field(default_factory=list)
    other: dict[str, str] = field(default_factory=dict)


def weight_name(value: Value) -> str | None:
    """The program weight that a value is (one layer's part of it, if there is one per layer), else None."""
    value = value.resolved()
    role = value.scope.role(value.node)
    if role is not None and role[0] == "slice" and value.scope.loop is not None and value.scope.loop.axis == "layer":
        assert value.scope.parent is not None
        operand = value.scope.loop.sliced[role[1]]
        return weight_name(Value(value.scope.parent, operand)) if isinstance(operand, Node) else None
    port = value.node.meta.get("port")
    return port.name if isinstance(port, Port) and port.kind == "weight" else None


def _name(scope: Scope, argument: object) -> str | None:
    return weight_name(Value(scope, argument)) if isinstance(argument, Node) else None


def _collect(scope: Scope, order: Mapping[str, int], other: dict[str, str]) -> Iterator[Group]:
    """Groups of one body, and in `other` the weights that it uses in another way."""
    by_input: dict[Node, list[Node]] = {}
    for node in scope.module.graph.nodes:
        if is_loop(node) or node.op in ("placeholder", "get_attr"):
            continue
        linear = node.target is aten.linear.default
        weight = _name(scope, node.args[1]) if linear else None
        if weight is not None:
            assert isinstance(node.args[0], Node)
            by_input.setdefault(node.args[0], []).append(node)
        for argument in node.all_input_nodes:
            name = _name(scope, argument)
            if name is not None and (weight is None or argument not in node.args[1:]):
                other.setdefault(name, node.name)
    for nodes in by_input.values():
        pairs = [(_name(scope, node.args[1]), _bias(scope, node)) for node in nodes]
        ranked = sorted(zip(nodes, pairs, strict=True), key=lambda pair: order[str(pair[1][0])])
        names = tuple((str(weight), bias) for _, (weight, bias) in ranked)
        yield Group(scope, tuple(node for node, _ in ranked), names)


def _bias(scope: Scope, node: Node) -> str | None:
    """Name of a linear layer's bias; "" where it is no weight of the program."""
    if len(node.args) < 3 or node.args[2] is None:
        return None
    return _name(scope, node.args[2]) or ""


def _uses(program: DecodeProgram) -> Uses:
    order = {name: place for place, name in enumerate(program.weights)}
    uses = Uses()
    for name, module in program.graphs.items():
        for scope in Scope(module).walk():
            uses.groups.extend((name, group) for group in _collect(scope, order, uses.other))
    return uses


def _refusal(program: DecodeProgram, names: Signature, uses: Uses) -> str | None:
    """Why a group can't be fused; None if it can."""
    weights = [program.weights[weight] for weight, _ in names]
    if len({weight.name for weight in weights}) != len(weights):
        return "one weight is applied twice to the same input"
    if any(weight.experts for weight in weights):
        return "a weight holds its experts one behind the other"
    if len({(weight.dtype, weight.layers, weight.model, weight.shape[1:]) for weight in weights}) != 1:
        return "the weights differ in dtype, input size, number of layers or model"
    if len({(weight.first_layer, weight.layer_step) for weight in weights}) != 1:
        return "the weights are those of different layers of the period"
    biases = [bias for _, bias in names]
    if "" in biases:
        return "a bias is no weight of the program"
    if None in biases and any(biases):
        return "some have a bias and some have none"
    for member in [*(weight for weight, _ in names), *(bias for bias in biases if bias)]:
        if member in uses.other:
            return f"`{member}` is also read by `{uses.other[member]}`"
        for graph, group in uses.groups:
            mentioned = {name for pair in group.names for name in pair}
            if member in mentioned and group.names != names:
                return f"graph {graph} uses `{member}` with other weights or alone"
    return None


def fused_name(parts: tuple[str, ...]) -> str:
    """Name of a fused weight: q_proj, k_proj, v_proj -> qkv_proj; l0_gate_proj, l0_up_proj -> l0_gate_up_proj;
    in_proj_qkvz, in_proj_ba -> in_proj_qkvz_ba. Words that all names begin with are written once."""
    words = [part.removesuffix("_proj").split("_") for part in parts]
    shared = 0
    while all(len(item) > shared + 1 for item in words) and len({item[shared] for item in words}) == 1:
        shared += 1
    stems = ["_".join(item[shared:]) for item in words]
    joined = ("" if all(len(stem) == 1 for stem in stems) else "_").join(stems)
    suffix = ["proj"] if any(part.endswith("_proj") for part in parts) else []
    return "_".join([*words[0][:shared], joined, *suffix])


def _fuse_weights(program: DecodeProgram, plan: Mapping[Signature, str]) -> dict[str, Weight]:
    """The program's weights with each planned group's parts replaced, in place of the first, by the fused one."""
    made: dict[str, Weight] = {}
    gone: set[str] = set()
    for names, fused in plan.items():
        for parts, name in ((tuple(w for w, _ in names), fused), (tuple(b for _, b in names if b), f"{fused}_bias")):
            if parts:
                made[parts[0]] = _concatenated([program.weights[part] for part in parts], name)
                gone.update(parts[1:])
    weights = (made.get(name, weight) for name, weight in program.weights.items() if name not in gone)
    return {weight.name: weight for weight in weights}


def _concatenated(parts: list[Weight], name: str) -> Weight:
    rows = sum(part.shape[0] for part in parts)
    sources = tuple(source for part in parts for source in part.sources)
    return replace(parts[0], name=name, shape=(rows, *parts[0].shape[1:]), sources=sources)


@dataclass(slots=True)
class _Rewriter:
    """Rewrites one cloned graph; `made` caches the fused weights' nodes by scope."""

    weights: Mapping[str, Weight]
    made: dict[tuple[GraphModule, str], Node] = field(default_factory=dict)

    def provide(self, scope: Scope, name: str, like: Node) -> Node:
        """The fused weight in a body, handed in beside `like`, the placeholder of its first part."""
        key = scope.module, name
        if key not in self.made:
            role = scope.role(like)
            if role is None or scope.loop is None:
                self.made[key] = self._placeholder(scope.module, name, like)
            else:
                assert scope.parent is not None
                kind = "sliced" if role[0] == "slice" else "invariant"
                operands = scope.loop.sliced if role[0] == "slice" else scope.loop.invariant
                outer = self.provide(scope.parent, name, operands[role[1]])
                self.made[key] = add_operand(scope.loop.node, kind, outer, name)
        return self.made[key]

    def _placeholder(self, module: GraphModule, name: str, like: Node) -> Node:
        weight = self.weights[name]
        one = fake(weight.shape, weight.dtype)
        editor = Editor(module, NAME)
        with editor.before(like):
            value = one if weight.layers is None else tuple(one for _ in range(weight.layers))
            return editor.placeholder(f"w_{name}", value, Port("weight", name))

    def fuse(self, group: Group, name: str) -> None:
        """One linear layer and a split in place of the group's layers."""
        first = min(group.linears, key=list(group.scope.module.graph.nodes).index)
        lead = group.linears[0]
        arguments = [lead.args[0], self.provide(group.scope, name, lead.args[1])]  # type: ignore[arg-type]
        if group.names[0][1] is not None:
            arguments.append(self.provide(group.scope, f"{name}_bias", lead.args[2]))  # type: ignore[arg-type]
        sizes = [int(node.meta["val"].shape[-1]) for node in group.linears]
        editor = Editor(group.scope.module, NAME)
        with editor.before(first, *group.linears):
            joined = editor.call(aten.linear.default, *arguments, name=name.removesuffix("_proj"))
            parts = editor.call(aten.split_with_sizes.default, joined, sizes, -1)
            items = [
                editor.call(operator.getitem, parts, place, name=old.name) for place, old in enumerate(group.linears)
            ]
        for node, item in zip(group.linears, items, strict=True):
            editor.replace(node, item)


def _rewrite(
    module: GraphModule, plan: Mapping[Signature, str], order: Mapping[str, int], weights: Mapping[str, Weight]
) -> GraphModule:
    """A copy of the module with the planned groups fused; `order` ranks the old weights, `weights` are the new ones."""
    work = clone(module)
    rewriter = _Rewriter(weights)
    for scope in list(Scope(work).walk()):
        for group in list(_collect(scope, order, {})):
            if group.names in plan:
                rewriter.fuse(group, plan[group.names])
    erase_dead(work)
    prune(work)
    for node in list(work.graph.nodes):
        port = node.meta.get("port") if node.op == "placeholder" else None
        if port is not None and port.kind == "weight" and port.name not in weights:
            work.graph.erase_node(node)
    return finish(work)


@dataclass(frozen=True, slots=True)
class FuseProjections(Pass):
    """q, k, v into one linear layer; gate and up into one; whatever else shares its input, in every graph alike."""

    name: ClassVar[str] = NAME
    preserves: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR, DEFERRED, BUFFERED})

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """Fuses what every graph uses alike; notes say which weights, and why others stay apart."""
        uses = _uses(program)
        plan: dict[Signature, str] = {}
        notes: dict[str, Note] = {}
        for graph, group in uses.groups:
            if len(group.names) < 2 or group.names in plan:
                continue
            parts = tuple(weight for weight, _ in group.names)
            reason = _refusal(program, group.names, uses)
            name = fused_name(parts)
            if reason is None and name in program.weights:
                reason = f"the program has a weight `{name}` already"
            text = ", ".join(parts)
            message = f"{text} became {name}" if reason is None else f"{text} stay apart: {reason}"
            keys = tuple(group.linears[0].meta.get("keys", ()))
            notes.setdefault(message, Note(NAME, graph, message, reason is None, keys))
            if reason is None:
                plan[group.names] = name
        if not plan:
            return PassResult(program, False, tuple(notes.values()))
        fused = replace(program, weights=_fuse_weights(program, plan))
        order = {name: place for place, name in enumerate(program.weights)}
        touched = {graph for graph, group in uses.groups if group.names in plan}
        graphs = {name: _rewrite(program.graphs[name], plan, order, fused.weights) for name in touched}
        ordered = {name: graphs.get(name, module) for name, module in program.graphs.items()}
        return PassResult(replace(fused, graphs=ordered), True, tuple(notes.values()))
