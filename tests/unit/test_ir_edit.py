"""Cloning, editing, typing and the loop operator itself."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from torch.fx import GraphModule, Interpreter, Transformer, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from specc.ir.build import BodyBuilder, GraphBuilder, fake, fake_mode
from specc.ir.clone import clone
from specc.ir.edit import (
    Editor,
    add_invariant,
    bodies,
    erase_dead,
    finish,
    is_impure,
    is_loop,
    loop_parts,
    make_loop,
    modules,
    replace,
    retype,
)
from specc.ir.infer import UntypedError, infer
from specc.ir.loop import loop, run_loop
from specc.ir.printer import print_module
from specc.ir.types import LoopTypeError, same_type, value_text
from specc.ir.verifier import verify
from tests.ir_graphs import assert_same_outcome, graphs

aten = torch.ops.aten
F64 = torch.float64


@given(graphs(writes=True))
def test_a_clone_is_equal_and_shares_no_graph_and_no_meta(module: GraphModule) -> None:
    made = clone(module)
    assert print_module(made) == print_module(module)
    for left, right in zip(modules(module), modules(made), strict=True):
        assert left is not right
        assert left.graph is not right.graph
        for old, new in zip(left.graph.nodes, right.graph.nodes, strict=True):
            assert old is not new
            assert old.meta is not new.meta
            assert old.meta.keys() == new.meta.keys()
    assert_same_outcome(module, made)


@given(graphs())
def test_editing_a_clone_leaves_the_original(module: GraphModule) -> None:
    before = print_module(module)
    made = clone(module)
    for item in modules(made):
        for node in item.graph.nodes:
            node.meta["keys"] = ("other",)
            if node.target is aten.add.Tensor:
                node.target = aten.sub.Tensor
        item.recompile()
    assert print_module(module) == before


@given(graphs())
def test_deepcopy_keeps_meta_in_bodies_too(module: GraphModule) -> None:
    made = copy.deepcopy(module)
    assert print_module(made) == print_module(module)


@given(graphs())
def test_retyping_finds_the_types_that_the_builder_recorded(module: GraphModule) -> None:
    made = clone(module)
    for item in modules(made):
        for node in item.graph.nodes:
            if node.op != "placeholder" or item is not made:
                node.meta.pop("val", None)
    retype(made)
    for left, right in zip(modules(module), modules(made), strict=True):
        for old, new in zip(left.graph.nodes, right.graph.nodes, strict=True):
            assert same_type(old.meta["val"], new.meta["val"]), (old, new)


def rows(trip: int | None = 3, axis: str = "layer") -> GraphModule:
    """x [3,4] -> (sum of rows + p, rows * 2)."""
    b = GraphBuilder(("verify",))
    x, p = b.placeholder("x", fake((3, 4), F64)), b.placeholder("p", fake((4,), F64))
    if axis == "token":
        p = b.call(aten.expand.default, b.call(aten.unsqueeze.default, b.call(aten.select.int, p, 0, 0), 0), [3])
        p = b.call(aten.unsqueeze.default, p, 1)
    body = BodyBuilder(axis, carried={"c": p}, sliced={"s": x}, invariant={"p": p}, keys=("verify",))
    total = body.call(aten.add.Tensor, body["c"], body["s"])
    twice = body.call(aten.mul.Tensor, body["s"], 2)
    return b.output(body.close(b, trip, [total, twice], "rows"))


def values() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(12, dtype=F64).reshape(3, 4), torch.ones(4, dtype=F64)


def test_loops_slice_and_stack_by_their_axis() -> None:
    x, p = values()
    total, twice = rows()(x, p)
    assert torch.equal(total, x.sum(0) + p)
    assert torch.equal(twice, 2 * x)
    total, twice = rows(None, "token")(x, p)
    assert torch.equal(total, x.sum(1, keepdim=True) + 1)
    assert torch.equal(twice, 2 * x)


def test_a_tuple_of_tensors_is_sliced_by_element() -> None:
    parts = (torch.ones(2), torch.full((2,), 2.0))
    (total, stacked) = loop("layer", lambda i, c, s: (c + s, s * i), 2, [torch.zeros(2)], [parts], [])
    assert total.tolist() == [3, 3]
    assert stacked.tolist() == [[0, 0], [2, 2]]


@pytest.mark.parametrize("axis", ["layer", "token"])
@pytest.mark.parametrize("trip", [3, None])
def test_a_loop_under_fake_tensors_has_the_real_shapes(axis: str, trip: int | None) -> None:
    if axis == "token" and trip is not None:
        trip = 4
    module = rows(trip, axis)
    real = module(*values())
    with fake_mode() as mode:
        fakes = module(*(mode.from_tensor(value) for value in values()))
    node = next(node for node in module.graph.nodes if is_loop(node))
    for one, other, recorded in zip(real, fakes, node.meta["val"], strict=True):
        assert one.shape == other.shape == recorded.shape
        assert one.dtype == other.dtype == recorded.dtype


def test_a_loop_runs_its_body_once_under_fake_tensors() -> None:
    visits: list[Any] = []

    def body(index: int, s: torch.Tensor) -> tuple[torch.Tensor]:
        visits.append(index)
        return (s,)

    with fake_mode():
        loop("layer", body, 30, [], [torch.empty(30, 2)], [])
    assert visits == [0]


def test_a_loop_without_a_count_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a sliced operand"):
        run_loop("layer", lambda index: (), None, [], [], [])


def test_a_pickled_module_runs_the_same() -> None:
    module = rows()
    made = pickle.loads(pickle.dumps(module))
    assert sum(is_loop(node) for node in made.graph.nodes) == 1
    for left, right in zip(module(*values()), made(*values()), strict=True):
        assert torch.equal(left, right)


def test_retracing_and_transforming_keep_the_loop() -> None:
    module = rows()
    for made in (symbolic_trace(module), Transformer(module).transform()):
        assert sum(is_loop(node) for node in made.graph.nodes) == 1
        assert torch.equal(made(*values())[0], module(*values())[0])
    assert torch.equal(Interpreter(module).run(*values())[0], module(*values())[0])
    unrolled = make_fx(module)(*values())
    assert torch.equal(unrolled(*values())[0], module(*values())[0])


def test_gradients_flow_through_a_loop() -> None:
    x, p = (value.requires_grad_() for value in values())
    total, _ = rows()(x, p)
    total.sum().backward()
    assert torch.equal(x.grad, torch.ones(3, 4, dtype=F64))


def test_fx_dead_code_elimination_keeps_a_loop_that_writes() -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3, 4), F64))
    body = BodyBuilder("layer", carried={}, sliced={"s": x}, invariant={}, keys=("verify",))
    body.call(aten.add_.Tensor, body["s"], 1.0)
    body.close(b, 3, [], "rows")
    module = b.output([x])
    node = next(node for node in module.graph.nodes if is_loop(node))
    assert is_impure(node)
    assert not erase_dead(clone(module))
    assert not is_impure(next(node for node in rows().graph.nodes if is_loop(node)))


@pytest.mark.parametrize(
    ("function", "impure"),
    [
        (lambda x: x.add_(1), True),
        (lambda x: x.add(1), False),
        (lambda x: torch.sigmoid_(x), True),
        (lambda x: torch.relu_(x), True),
        (lambda x: torch.nn.functional.relu(x, inplace=True), True),
        (lambda x: torch.add(x, 1, out=x), True),
        (lambda x: torch.relu(x), False),
        (lambda x: x[0], False),
    ],
)
def test_effects_of_a_users_functions_are_seen(function: Any, impure: bool) -> None:
    module = symbolic_trace(function)
    calls = [node for node in module.graph.nodes if node.op.startswith("call")]
    assert any(is_impure(node) for node in calls) is impure


def test_in_place_operators_are_effects() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    assert is_impure(graph.call_function(operator.iadd, (x, 1)))
    assert is_impure(graph.call_function(operator.setitem, (x, 0, 1)))
    assert not is_impure(graph.call_function(operator.add, (x, 1)))
    assert not is_impure(graph.call_function(operator.and_, (x, 1)))


def test_replacing_unites_keys_and_adds_provenance() -> None:
    module = clone(rows())
    body = next(bodies(module))[1]
    old = next(node for node in body.graph.nodes if node.target is aten.mul.Tensor)
    old.meta["keys"], old.meta["passes"] = ("commit.kv",), ("lower", "first")
    editor = Editor(body, "second")
    with editor.before(old):
        new = editor.call(aten.add.Tensor, old.args[0], old.args[0])
    assert new.meta["keys"] == ("commit.kv",)
    assert new.meta["passes"] == ("lower", "first", "second")
    new.meta["keys"] = ("verify",)
    editor.replace(old, new)
    assert set(new.meta["keys"]) == {"verify", "commit.kv"}
    assert not old.users
    assert erase_dead(module)
    verify(finish(module))
    assert torch.equal(module(*values())[1], 2 * values()[0])


def test_a_node_that_uses_the_one_it_replaces_keeps_it() -> None:
    module = clone(rows())
    old = next(node for node in module.graph.nodes if node.target is operator.getitem)
    with Editor(module, "p").after(old) as _:
        new = Editor(module, "p").call(aten.neg.default, old)
    replace(old, new, "p")
    assert new.args == (old,)
    assert torch.equal(finish(module)(*values())[0], -rows()(*values())[0])


def test_loop_parts_name_everything() -> None:
    parts = loop_parts(next(node for node in rows().graph.nodes if is_loop(node)))
    assert [node.name for node in (*parts.carried, *parts.sliced, *parts.invariant)] == ["p", "x", "p"]
    assert [node.name for node in (parts.index, *parts.inside)] == ["index", "c", "s", "p"]
    assert (len(parts.carried_out), len(parts.stacked_out), parts.trip, parts.axis) == (1, 1, 3, "layer")
    assert sorted(parts.results()) == [0, 1]


def test_a_loop_is_rebuilt_with_other_operands() -> None:
    module = clone(rows())
    node = next(node for node in module.graph.nodes if is_loop(node))
    parts = loop_parts(node)
    editor = Editor(module, "p")
    with editor.before(node):
        doubled = editor.call(aten.mul.Tensor, parts.sliced[0], 2)
        made = make_loop(editor, parts, body=clone(parts.body), sliced=[doubled])
    for place, old in sorted(parts.results().items()):
        editor.replace(old[0], made[place])
    erase_dead(module)
    verify(finish(module))
    assert torch.equal(module(*values())[1], 4 * values()[0])


def test_an_added_invariant_has_a_name_of_its_own() -> None:
    module = clone(rows())
    node = next(node for node in module.graph.nodes if is_loop(node))
    inside = add_invariant(node, next(iter(module.graph.nodes)), "p")
    assert inside.name == inside.target != "p"
    verify(finish(module))
    assert torch.equal(module(*values())[1], 2 * values()[0])


def test_carried_values_must_keep_their_type() -> None:
    module = clone(rows())
    body = next(bodies(module))[1]
    output = body.graph.output_node()
    values_out: Any = output.args[0]
    with Editor(body, "p").before(output):
        wide = Editor(body, "p").call(aten.unsqueeze.default, values_out[0], 0)
    output.args = ((wide, values_out[1]),)
    with pytest.raises(LoopTypeError, match="carried value 0 is f64"):
        retype(module)


def test_inference_needs_types_and_remembers_calls() -> None:
    module = symbolic_trace(lambda x: torch.relu(x))
    node = next(node for node in module.graph.nodes if node.op == "call_function")
    with pytest.raises(UntypedError):
        infer(aten.relu.default, node.args, {})
    x = fake((2, 3), F64)
    assert infer(aten.mul.Tensor, (x, 2), {}) is infer(aten.mul.Tensor, (x, 2), {})
    assert infer(aten.mul.Tensor, (fake((2, 3), torch.int64), 2), {}).dtype == torch.int64
    assert infer(aten.mul.Tensor, (fake((2, 3), torch.int64), 2.0), {}).dtype == torch.float32
    assert value_text((x, x)) == "2 x f64[2,3]"


def test_an_editor_adds_untyped_nodes_to_an_untyped_graph() -> None:
    module = symbolic_trace(lambda x: torch.relu(x))
    node = next(node for node in module.graph.nodes if node.op == "call_function")
    editor = Editor(module, "p")
    with editor.after(node):
        made = editor.call(aten.neg.default, node)
    assert "val" not in made.meta
    editor.replace(node, made)
    assert torch.equal(finish(module)(torch.ones(2)), -torch.ones(2))
