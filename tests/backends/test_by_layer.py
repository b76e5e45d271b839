"""Steps printed by layer and stored in place: the state afterwards is what the graph says, whatever shares memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule, Node

from specc.backends.printing.by_layer import LayerLists, listed_results, slots_shared
from specc.backends.printing.runtime.stored import store
from specc.backends.printing.steps import print_step, signature
from specc.backends.reference.backend import DIALECT
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.port import Port

aten = torch.ops.aten
LAYERS, BATCH = 3, 2
SMALL, LAYERED = ("a", "b", "c"), ("k", "v")
SHAPES = dict.fromkeys(SMALL, (BATCH, 2)) | dict.fromkeys(LAYERED, (LAYERS, BATCH, 2))
MOVES = ("same", "twice", "view", "copied by layer", "one more by layer", "one more at once", "first layer")


class Slots(NamedTuple):
    """The slots of these graphs, whole or by layer."""

    a: Any
    b: Any
    c: Any
    k: Any
    v: Any


def by_layer(b: GraphBuilder, value: Node, more: int) -> Node:
    """A loop over layers whose stacked result is each layer, or that and one."""
    body = BodyBuilder("layer", carried={}, sliced={"rows": value}, invariant={})
    rows = body["rows"]
    made = rows if more == 0 else body.call(aten.add.Tensor, rows, more)
    return body.close(b, LAYERS, [made], "layers")[0]


def moved(b: GraphBuilder, places: dict[str, Node], source: str, move: str) -> Node:
    """A new value of a slot that is made from slot `source`."""
    value = places[source]
    if move == "same":
        return value
    if move == "twice":
        return b.call(aten.mul.Tensor, value, 2)
    if move == "view":
        return b.call(aten.transpose.int, b.call(aten.transpose.int, value, 0, 1), 0, 1)
    if move == "one more at once":
        return b.call(aten.add.Tensor, value, 1)
    return by_layer(b, value, 0 if move == "copied by layer" else 1)


def graph(plan: dict[str, tuple[str, str]]) -> GraphModule:
    """A step that gives each slot of `plan` a value made from another slot."""
    b = GraphBuilder()
    places = {name: b.placeholder(name, fake(shape, torch.int64), Port("slot", name)) for name, shape in SHAPES.items()}
    values = []
    for source, move in plan.values():
        if move == "first layer":
            values.append(b.call(aten.select.int, places[source], 0, 0))
        else:
            values.append(moved(b, places, source, move))
    return b.output(values, [Port("slot", name) for name in plan])


def printed(module: GraphModule) -> str:
    """The function `run_flush` that takes and gives slots by layer."""
    dialect = replace(DIALECT, by_layer=True)
    call = signature("flush", (), (), ())
    return print_step(dialect, "flush", module, call, lambda _: "unused", (), {}, frozenset(LAYERED))


def stored(module: GraphModule, state: Slots) -> None:
    """Run the printed step on views of a state, and store what it gives."""
    scope: dict[str, Any] = {"torch": torch, "Views": Slots, "Tensor": Tensor}
    exec(printed(module), scope)
    views = Slots(*(value.unbind(0) if name in LAYERED else value for name, value in state._asdict().items()))
    store(views, scope["run_flush"](views))  # type: ignore[arg-type]


def states() -> tuple[Slots, Slots]:
    """Two equal states with a different number in every place."""
    numbers = iter(torch.arange(1000).split(50))
    values = [next(numbers)[: torch.Size(shape).numel()].reshape(shape) for shape in SHAPES.values()]
    return Slots(*(value.clone() for value in values)), Slots(*(value.clone() for value in values))


def check(plan: dict[str, tuple[str, str]]) -> None:
    module = graph(plan)
    own, old = states()
    wanted = old._replace(**dict(zip(plan, module(*old), strict=True)))
    stored(module, own)
    for name, value in wanted._asdict().items():
        assert torch.equal(getattr(own, name), value), name


@st.composite
def plans(draw: st.DrawFn) -> dict[str, tuple[str, str]]:
    """Some slots, each with a source of the same shape (a small one also a layer of a layered one)."""
    plan = {}
    for name in draw(st.lists(st.sampled_from(tuple(SHAPES)), min_size=1, unique=True)):
        layered = name in LAYERED
        move = draw(st.sampled_from(MOVES[:-1] if layered else ("same", "twice", "view", "first layer")))
        sources = LAYERED if layered or move == "first layer" else SMALL
        plan[name] = (draw(st.sampled_from(sources)), move)
    return plan


@given(plan=plans())
def test_the_state_is_what_the_graph_says(plan: dict[str, tuple[str, str]]) -> None:
    check(plan)


def test_slots_change_places() -> None:
    check({"a": ("b", "same"), "b": ("a", "same"), "k": ("v", "same"), "v": ("k", "copied by layer")})
    check({"a": ("k", "first layer"), "k": ("v", "copied by layer"), "v": ("k", "view")})


@pytest.mark.parametrize(
    ("plan", "stacked"),
    [
        ({"k": ("v", "one more by layer")}, False),
        ({"k": ("v", "one more by layer"), "a": ("k", "first layer")}, False),
        ({"k": ("v", "one more at once")}, True),
    ],
)
def test_layers_are_stacked_only_where_something_reads_them_at_once(
    plan: dict[str, tuple[str, str]], stacked: bool
) -> None:
    assert ("torch.stack" in printed(graph(plan))) == stacked


def names_of(nodes: Sequence[Node] | set[Node]) -> set[str]:
    return {node.name for node in nodes}


def test_a_result_that_a_loop_carries_or_an_op_reads_is_no_list() -> None:
    """Two loops over layers: the second takes the first's result by layer; what the last op reads is one tensor."""
    b = GraphBuilder()
    k = b.placeholder("k", fake(SHAPES["k"], torch.int64), Port("slot", "k"))
    first = by_layer(b, k, 1)
    second = by_layer(b, first, 1)
    whole = b.call(aten.sum.dim_IntList, second, [0])
    module = b.output([first, whole], [Port("slot", "k"), Port("result", "total")])
    assert names_of(LayerLists(module, frozenset({"k"})).nodes) == {"k", first.name}


def test_memory_is_shared_through_views_and_loops_not_through_computations() -> None:
    b = GraphBuilder()
    k = b.placeholder("k", fake(SHAPES["k"], torch.int64), Port("slot", "k"))
    a = b.placeholder("a", fake(SHAPES["a"], torch.int64), Port("slot", "a"))
    kept, computed = by_layer(b, k, 0), by_layer(b, k, 1)
    body = BodyBuilder("step", carried={"x": a, "y": b.call(aten.mul.Tensor, a, 2)}, sliced={}, invariant={})
    carried = body.close(b, 2, [body["y"], body["x"]], "swaps")
    cast = b.call(aten._to_copy.default, a, dtype=torch.int64)
    module = b.output([kept, computed, *carried, cast], [Port("result", str(n)) for n in range(5)])
    shared = slots_shared(module)
    assert shared[kept] == {"k"}
    assert shared[computed] == set()
    assert shared[carried[0]] == shared[carried[1]] == {"a"}, "which of the two it is depends on the number of rounds"
    assert shared[cast] == {"a"}, "PyTorch gives the same tensor for the same type"


def passed_on(first: int, read_whole: bool) -> GraphModule:
    """Layers of slot k, as they are (0) or with something added, given to a second loop, the stack perhaps read too."""
    b = GraphBuilder()
    k = b.placeholder("k", fake(SHAPES["k"], torch.int64), Port("slot", "k"))
    between = by_layer(b, k, first)
    after = by_layer(b, between, 1)
    result = b.call(aten.add.Tensor, after, between) if read_whole else b.call(aten.neg.default, after)
    return b.output([result], [Port("slot", "v")])


@pytest.mark.parametrize(("first", "read_whole", "listed"), [(2, False, True), (2, True, False), (0, False, False)])
def test_results_that_other_layers_alone_read_are_not_stacked(first: int, read_whole: bool, listed: bool) -> None:
    """Nor where they are layers of a slot, which may change before they are read: a stack is a copy."""
    module = passed_on(first, read_whole)
    assert bool(listed_results(module)) == listed
    call = signature("flush", (), (), ())
    text = print_step(replace(DIALECT, listed=True), "flush", module, call, lambda _: "unused", (), {})
    assert text.count("torch.stack") == (1 if listed else 2)
    assert text.count(".contiguous()") == (1 if listed else 0)
    scope: dict[str, Any] = {"torch": torch, "State": Slots, "Tensor": Tensor}
    exec(text, scope)
    state = states()[0]
    found, k = scope["run_flush"](state).v, state.k
    between = k + first
    assert torch.equal(found, 2 * between + 1 if read_whole else -(between + 1))
