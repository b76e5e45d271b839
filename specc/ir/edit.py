"""Rewriting graphs: typed insertion, replacement that keeps spec keys and provenance, and a named view of loops.

Passes clone a module first (`clone`), then edit it in place with these helpers, then call `finish`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir.build import GraphBuilder, output_values, value_of
from specc.ir.loop import loop
from specc.ir.types import UntypedError, body_of, infer, retype

__all__ = [
    "Editor",
    "LoopParts",
    "add_invariant",
    "bodies",
    "drop_unused_bodies",
    "erase_dead",
    "finish",
    "inherit",
    "is_impure",
    "is_loop",
    "loop_parts",
    "make_loop",
    "modules",
    "replace",
    "retype",
]

_INPLACE_FUNCTIONS = frozenset(
    {operator.setitem, operator.delitem}
    | {getattr(operator, name) for name in dir(operator) if name.startswith("i") and name[1:] in dir(operator)}
) - {operator.is_, operator.is_not}


_HAVE_EFFECTS: dict[torch._ops.OpOverload, bool] = {}
"""Asked for every node of every graph by several passes, while an operator's schema and tags never change."""


def is_loop(node: Node) -> bool:
    """True for a structured loop."""
    return node.op == "call_function" and node.target is loop


def is_impure(node: Node) -> bool:
    """True where deleting, merging or moving the node could be noticed: it writes, draws random numbers or asserts.

    A loop is impure where its body, at any depth, holds an impure node. Placeholders and outputs count as impure.
    """
    if is_loop(node):
        owner = node.graph.owning_module
        assert owner is not None
        return any(
            is_impure(inner) for inner in body_of(owner, node).graph.nodes if inner.op not in ("placeholder", "output")
        )
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    is_operator = getattr(node.target, "__module__", "") == "_operator"  # and_, or_ are no writes
    if node.op.startswith("call_") and name.endswith("_") and not name.endswith("__") and not is_operator:
        return True
    if node.op == "call_method":
        return False
    if node.kwargs.get("inplace") or node.kwargs.get("out") is not None:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target in _INPLACE_FUNCTIONS or bool(node.is_impure())
    if node.target not in _HAVE_EFFECTS:
        _HAVE_EFFECTS[node.target] = bool(node.is_impure())
    return _HAVE_EFFECTS[node.target]


def modules(module: GraphModule) -> Iterator[GraphModule]:
    """The module and all loop bodies below it, outermost first."""
    yield module
    for _, body in bodies(module):
        yield body


def bodies(module: GraphModule) -> Iterator[tuple[Node, GraphModule]]:
    """(loop node, body) of every loop at any depth, an outer loop before those inside it."""
    for node in list(module.graph.nodes):
        if is_loop(node):
            body = body_of(module, node)
            yield node, body
            yield from bodies(body)


@dataclass(frozen=True, slots=True)
class LoopParts:
    """A loop node by its parts. `*_inside` are the body's placeholders in the order of the operands.

    `carried_out` and `stacked_out` are what the body returns; `results` maps a result number (carried first, then
    stacked) to its `getitem` nodes.
    """

    node: Node
    axis: str
    attribute: Node
    body: GraphModule
    trip: int | None
    carried: tuple[Any, ...]
    sliced: tuple[Any, ...]
    invariant: tuple[Any, ...]
    index: Node
    carried_inside: tuple[Node, ...]
    sliced_inside: tuple[Node, ...]
    invariant_inside: tuple[Node, ...]
    carried_out: tuple[Any, ...]
    stacked_out: tuple[Any, ...]

    @property
    def operands(self) -> tuple[Any, ...]:
        """All operands in the order of the body's placeholders after `index`."""
        return (*self.carried, *self.sliced, *self.invariant)

    @property
    def inside(self) -> tuple[Node, ...]:
        """The body's placeholders after `index`."""
        return (*self.carried_inside, *self.sliced_inside, *self.invariant_inside)

    def results(self) -> dict[int, list[Node]]:
        """Result number -> the `getitem` nodes that read it (absent where nothing does)."""
        found: dict[int, list[Node]] = {}
        for user in self.node.users:
            if user.target is operator.getitem:
                found.setdefault(user.args[1], []).append(user)  # type: ignore[arg-type]
        return found


def loop_parts(node: Node) -> LoopParts:
    """The named view of a loop node. The node's graph must belong to a GraphModule."""
    owner = node.graph.owning_module
    assert owner is not None
    arguments: tuple[Any, ...] = node.args
    axis, attribute, trip, carried, sliced, invariant = arguments
    body = body_of(owner, node)
    inside = tuple(item for item in body.graph.nodes if item.op == "placeholder")
    values = output_values(body)
    first, second = 1 + len(carried), 1 + len(carried) + len(sliced)
    return LoopParts(
        node=node,
        axis=axis,
        attribute=attribute,
        body=body,
        trip=trip,
        carried=tuple(carried),
        sliced=tuple(sliced),
        invariant=tuple(invariant),
        index=inside[0],
        carried_inside=inside[1:first],
        sliced_inside=inside[first:second],
        invariant_inside=inside[second:],
        carried_out=values[: first - 1],
        stacked_out=values[first - 1 :],
    )


class Editor(GraphBuilder):
    """A GraphBuilder on an existing module: `with editor.before(node): new = editor.call(…)`.

    New nodes inherit the spec keys and the provenance of the node they are made for, plus the pass's name.
    In a graph without types (a user's `symbolic_trace`) new nodes have none either.
    """

    def __init__(self, module: GraphModule, origin: str) -> None:
        super().__init__((), origin, module)
        self.module = module
        self._provenance: tuple[str, ...] = ()

    @contextmanager
    def before(self, node: Node, *more: Node) -> Iterator[None]:
        """Insert in front of `node`; `more` are further nodes whose keys and provenance new nodes inherit."""
        with self.graph.inserting_before(node), self._inherit(node, *more):
            yield

    @contextmanager
    def after(self, node: Node, *more: Node) -> Iterator[None]:
        """Insert behind `node`; as `before`."""
        with self.graph.inserting_after(node), self._inherit(node, *more):
            yield

    @contextmanager
    def _inherit(self, *nodes: Node) -> Iterator[None]:
        saved = self.keys, self._provenance
        self.keys = _union(*(node.meta.get("keys", ()) for node in nodes))
        self._provenance = _union(*(node.meta.get("passes", ()) for node in nodes))
        try:
            yield
        finally:
            self.keys, self._provenance = saved

    def _finish(self, node: Node, value: Any) -> Node:
        super()._finish(node, value)
        node.meta["passes"] = _union(self._provenance, (self.origin,))
        return node

    def call(self, target: Callable[..., Any], *args: Any, name: str | None = None, **kwargs: Any) -> Node:
        """As GraphBuilder.call, in the fake mode of the operands."""
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        try:
            value = infer(target, args, kwargs)
        except UntypedError:
            self._finish(node, None)
            del node.meta["val"]
            return node
        return self._finish(node, value)

    def replace(self, old: Node, new: Node) -> None:
        """`replace` with this editor's pass name."""
        replace(old, new, self.origin)


def add_invariant(node: Node, operand: Any, name: str) -> Node:
    """Append an invariant operand to a loop; returns its placeholder inside the body, named after `name`."""
    parts = loop_parts(node)
    last = parts.inside[-1] if parts.inside else parts.index
    with parts.body.graph.inserting_after(last):
        inside = parts.body.graph.placeholder(name)
    inside.target = inside.name  # FX renames a node whose name is taken, but not the argument it stands for
    source = operand if isinstance(operand, Node) else node
    inside.meta |= {key: source.meta[key] for key in ("keys", "passes") if key in source.meta}
    if not isinstance(operand, Node) or "val" in operand.meta:
        inside.meta["val"] = value_of(operand)
    node.args = (*node.args[:5], [*parts.invariant, operand])
    return inside


def make_loop(
    editor: GraphBuilder,
    parts: LoopParts,
    *,
    body: GraphModule | None = None,
    axis: str | None = None,
    carried: Sequence[Any] | None = None,
    sliced: Sequence[Any] | None = None,
    invariant: Sequence[Any] | None = None,
) -> list[Node]:
    """A new loop at the editor's place like `parts`, with what is given replaced; one node per result.

    The old loop stays until its users are replaced and it is erased. The body's types must be right already.
    """
    return editor.loop(
        axis or parts.axis,
        parts.body if body is None else body,
        trip=parts.trip,
        carried=parts.carried if carried is None else carried,
        sliced=parts.sliced if sliced is None else sliced,
        invariant=parts.invariant if invariant is None else invariant,
        name=str(parts.attribute.target).removesuffix("_body"),
    )


def _union(*groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for group in groups for item in group))


def inherit(new: Node, old: Node, origin: str) -> None:
    """Give `new` the spec keys and provenance of `old` as well, and note the pass."""
    new.meta["keys"] = _union(old.meta.get("keys", ()), new.meta.get("keys", ()))
    new.meta["passes"] = _union(old.meta.get("passes", ()), new.meta.get("passes", ()), (origin,))


def replace(old: Node, new: Node, origin: str) -> None:
    """All users of `old` (except `new` itself) read `new` instead; keys are united, `origin` is added to passes.

    `old` is left without users, for `erase_dead`.
    """
    inherit(new, old, origin)
    old.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)


def erase_dead(module: GraphModule) -> bool:
    """Erase nodes nobody reads and that have no effect, in the module and its loop bodies; True where any was.

    Signatures stay: placeholders and loop results are kept (the dce pass removes those).
    """
    changed = False
    for node in reversed(module.graph.nodes):
        if not node.users and not is_impure(node):
            module.graph.erase_node(node)
            changed = True
    for node in module.graph.nodes:
        if is_loop(node):
            changed |= erase_dead(body_of(module, node))
    if changed:
        drop_unused_bodies(module)
    return changed


def drop_unused_bodies(module: GraphModule) -> None:
    """Remove the loop bodies that no node of the graph refers to.

    FX's `delete_all_unused_submodules` would also remove the bodies inside bodies.
    """
    used = {str(node.target).split(".")[0] for node in module.graph.nodes if node.op in ("get_attr", "call_module")}
    for name, child in list(module.named_children()):
        if name not in used and isinstance(child, GraphModule):
            delattr(module, name)


def finish(module: GraphModule) -> GraphModule:
    """Lint and recompile the module and its bodies after edits; returns it."""
    for item in modules(module):
        item.graph.lint()
        item.recompile()
    return module
