"""fuse-linear: a linear layer takes in the norm in front of it, and the gate or the residual behind it.

    n = rms_norm(x, [H], w, eps); y = linear(n, W, b)              ->   y = fused_linear(x, W, b, w, eps, none, None)
    y = linear(x, W, b); gate, up = split(y); z = silu(gate) * up  ->   z = fused_linear(x, W, b, …, silu_mul, None)
    y = linear(x, W, b); z = residual + y                          ->   z = fused_linear(x, W, b, …, none, residual)

and any of them together, in every step graph and at any depth of its loops. A value is taken in only if nothing else
reads it (else it would be computed twice) and nothing writes between where it was computed and where the fused layer
stands. With `plain`, linear layers that have nothing to take in become `fused_linear` as well, so that a row goes
through one kernel wherever it is computed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, erase_dead, finish, is_impure, modules
from specc.ir.scope import named_arguments
from specc.manager import ALL_PROPERTIES, Note, Pass, PassContext, PassResult
from specc.program import DecodeProgram

aten = torch.ops.aten
NAME = "fuse-linear"
SIZES = (aten.split_with_sizes.default, aten.split.Tensor, aten.chunk.default)


class Apart(Exception):
    """Something that could be taken in stays apart; the message says why."""


@dataclass(slots=True)
class Site:
    """A linear layer and what it takes in. `last` is the node whose value the fused layer computes."""

    linear: Node
    last: Node
    norm: Node | None = None
    gated: bool = False
    residual: Node | None = None

    @property
    def parts(self) -> str:
        """What is taken in, in words."""
        found = [
            *(["its norm"] if self.norm is not None else []),
            *(["silu(gate) * up"] if self.gated else []),
            *(["the residual"] if self.residual is not None else []),
        ]
        return ", ".join(found)


def _shape(node: Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape)


def _only_reader(node: Node, what: str) -> Node:
    """The one node that reads `node`, once. Raises Apart."""
    if len(node.users) != 1:
        raise Apart(f"{len(node.users)} nodes read {what}")
    (user,) = node.users
    return user


def _quiet(first: Node, last: Node) -> None:
    """Raises Apart where a node between the two writes: operands would be read after it instead of before."""
    node = first.next
    while node is not last:
        if is_impure(node):
            raise Apart(f"`{node.name}` writes between `{first.name}` and `{last.name}`")
        node = node.next


def _norm(site: Site) -> None:
    """Takes in the rms_norm that makes the layer's input. Raises Apart."""
    made = site.linear.args[0]
    if not isinstance(made, Node) or made.target is not aten.rms_norm.default:
        return
    given = named_arguments(made)
    if len(given["normalized_shape"]) != 1 or given.get("weight") is None or given.get("eps") is None:
        raise Apart(f"`{made.name}` has no weight, no eps or more than one dim")
    _only_reader(made, f"the norm `{made.name}`")
    _quiet(made, site.linear)
    site.norm = made


def _halves(split: Node) -> tuple[Node, Node] | None:
    """gate and up of a split of the last dim into two equal parts, each read once and by one node."""
    items = {user.args[1]: user for user in split.users if user.target is operator.getitem}
    if split.target not in SIZES or set(items) != {0, 1} or len(split.users) != 2:
        return None
    first, second = (items[place] for place in (0, 1))
    source = split.args[0]
    assert isinstance(source, Node)
    shapes = _shape(first), _shape(second)
    whole = (*shapes[0][:-1], 2 * shapes[0][-1])
    return (first, second) if shapes[0] == shapes[1] and whole == _shape(source) else None


def _gate(site: Site) -> None:
    """Takes in silu(gate) * up of the two halves of the layer's result. Raises Apart."""
    if len(site.last.users) != 1:
        return
    (split,) = site.last.users
    halves = _halves(split)
    if halves is None:
        return
    gate, up = halves
    if len(gate.users) != 1 or next(iter(gate.users)).target is not aten.silu.default:
        return
    (silu,) = gate.users
    product = _only_reader(silu, f"`{silu.name}`")
    if product.target is not aten.mul.Tensor or set(product.args) != {silu, up}:
        raise Apart(f"`{product.name}` is not silu(`{gate.name}`) * `{up.name}`")
    _only_reader(up, f"`{up.name}`")
    _quiet(site.last, product)
    site.last, site.gated = product, True


def _residual(site: Site) -> None:
    """Takes in the other operand of the sum that reads the result. Raises Apart."""
    sums = [user for user in site.last.users if user.target is aten.add.Tensor]
    if not sums:
        return
    total = _only_reader(site.last, f"`{site.last.name}`")
    left, right, *_ = total.args
    other = right if left is site.last else left
    if total.kwargs or not isinstance(other, Node) or other is site.last:
        raise Apart(f"`{total.name}` is not a plain sum of two tensors")
    if _shape(other) != _shape(site.last) or other.meta["val"].dtype != site.last.meta["val"].dtype:
        raise Apart(f"`{other.name}` has another shape or dtype than `{site.last.name}`")
    _quiet(site.last, total)
    site.last, site.residual = total, other


def match(linear: Node) -> tuple[Site, list[str]]:
    """What a linear layer takes in, and the reasons for what stays apart though it looks like it."""
    site, reasons = Site(linear, linear), []
    for step in (_norm, _gate, _residual):
        try:
            step(site)
        except Apart as reason:
            reasons.append(str(reason))
    return site, reasons


def fuse(module: GraphModule, site: Site) -> None:
    """The fused layer in place of the site's nodes (edited in place; what is read no more is left for `erase_dead`)."""
    x, weight, *bias = site.linear.args
    given: dict[str, Any] = {"weight": None, "eps": 0.0}
    if site.norm is not None:
        given = named_arguments(site.norm)
        x = given["input"]
    editor = Editor(module, NAME)
    parts = [site.linear, *([site.norm] if site.norm is not None else [])]
    activation = "silu_mul" if site.gated else "none"
    with editor.before(site.last, *parts):
        made = editor.call(
            ops.fused_linear,
            *(x, weight, bias[0] if bias else None),
            *(given["weight"], float(given["eps"]), activation, site.residual),
            name=site.last.name,
        )
    editor.replace(site.last, made)


def linears(module: GraphModule) -> Iterator[tuple[GraphModule, Node]]:
    """Linear layers with a weight [F,H] of a graph and its loop bodies, with the body each stands in."""
    for body in modules(module):
        for node in list(body.graph.nodes):
            if node.target is aten.linear.default and len(_shape(node.args[1])) == 2 and len(_shape(node)) > 1:
                yield body, node


@dataclass(frozen=True, slots=True)
class FuseLinear(Pass):
    """Norm, gated activation and residual into the linear layers; see this file's docstring."""

    name: ClassVar[str] = NAME
    preserves: ClassVar[frozenset[str]] = ALL_PROPERTIES
    plain: bool = True

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """Fuses in every graph; notes say what each layer took in, and why something stayed apart."""
        graphs, notes = dict(program.graphs), list[Note]()
        for name, module in program.graphs.items():
            if not any(True for _ in linears(module)):
                continue
            work, fused = clone(module), 0
            for body, linear in linears(work):
                site, reasons = match(linear)
                keys = tuple(linear.meta.get("keys", ()))
                notes += [Note(NAME, name, f"`{linear.name}`: {reason}", False, keys) for reason in reasons]
                if site.parts:
                    notes.append(Note(NAME, name, f"`{linear.name}` takes in {site.parts}", True, keys))
                if site.parts or self.plain:
                    fuse(body, site)
                    fused += 1
            if fused:
                erase_dead(work)
                graphs[name] = finish(work)
        changed = any(graphs[name] is not module for name, module in program.graphs.items())
        unique = tuple(dict.fromkeys(notes))
        return PassResult(replace(program, graphs=graphs) if changed else program, changed, unique)
