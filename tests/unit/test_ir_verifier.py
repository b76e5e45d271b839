"""The verifier finds each kind of damage, says where it is, and accepts what lowering makes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from torch.fx import GraphModule, Node

from specc.diagnostics import DiagnosticError, Span
from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.clone import clone
from specc.ir.dims import BATCH
from specc.ir.edit import is_loop, loop_parts
from specc.ir.port import Port
from specc.ir.verifier import verify
from specc.lower.assemble import lower
from specc.program import BUFFERED, DecodeProgram, Slot
from tests.ir_graphs import graphs
from tests.unit.decoding_fixtures import small_spec

aten = torch.ops.aten
TREE = {"method": "prompt_lookup", "tree": "static", "choices": [[0], [1], [0, 0]]}


@cache
def lowered() -> DecodeProgram:
    return lower(small_spec(TREE))


def damaged(damage: Callable[[GraphModule], object], step: str = "verify") -> DecodeProgram:
    program = lowered()
    module = clone(program.graphs[step])
    damage(module)
    return program.with_graphs(**{step: module})


def node_of(module: GraphModule, target: Any) -> Node:
    return next(node for node in module.graph.nodes if node.target is target)


def loop_of(module: GraphModule) -> Node:
    return next(node for node in module.graph.nodes if is_loop(node))


def findings(item: DecodeProgram | GraphModule, **options: Any) -> list[str]:
    with pytest.raises(DiagnosticError) as caught:
        verify(item, **options)
    return [finding.code for finding in caught.value.diagnostics]


def test_lowered_programs_are_fine() -> None:
    verify(lowered())


@given(graphs())
def test_whatever_the_builder_makes_is_fine(module: GraphModule) -> None:
    verify(module)


def _order(module: GraphModule) -> None:
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    nodes[-1].append(nodes[0])


def _unregistered(module: GraphModule) -> None:
    node_of(module, aten.linear.default).target = torch.nn.functional.linear


def _random(module: GraphModule) -> None:
    node = node_of(module, aten.linear.default)
    with module.graph.inserting_before(node):
        made = module.graph.call_function(aten.rand_like.default, (node.args[0],))
    made.meta = dict(node.args[0].meta)  # type: ignore[union-attr]


def _in_place(module: GraphModule) -> None:
    node = node_of(module, aten.linear.default)
    with module.graph.inserting_before(node):
        made = module.graph.call_function(aten.relu_.default, (node.args[0],))
    made.meta = dict(node.args[0].meta)  # type: ignore[union-attr]


def _buffer_op(module: GraphModule) -> None:
    node = node_of(module, aten.linear.default)
    cache = next(item for item in module.graph.nodes if item.name == "k_cache")
    length = next(item for item in module.graph.nodes if item.name == "length")
    with module.graph.inserting_before(node):
        made = module.graph.call_function(ops.append_rows_, (cache, cache, length, length))
    made.meta = {"val": None, "keys": ("verify",), "passes": ("lower",)}


def _tensor_arithmetic(module: GraphModule) -> None:
    node = node_of(module, aten.linear.default)
    with module.graph.inserting_before(node):
        made = module.graph.call_function(operator.add, (node.args[0], 1))
    made.meta = dict(node.args[0].meta)  # type: ignore[union-attr]


def _shape(module: GraphModule) -> None:
    node_of(module, aten.linear.default).meta["val"] = fake((BATCH, 3), torch.float64)


def _dtype(module: GraphModule) -> None:
    node = node_of(module, aten.linear.default)
    node.meta["val"] = fake(node.meta["val"].shape, torch.float32)


def _operand(module: GraphModule) -> None:
    node = node_of(module, aten.linear.default)
    node.args = (node.args[0], node.args[0])


def _body_shape(module: GraphModule) -> None:
    body = loop_parts(loop_of(module)).body
    _shape(loop_parts(loop_of(body)).body)


def _no_keys(module: GraphModule) -> None:
    del node_of(module, aten.linear.default).meta["keys"]


def _no_value(module: GraphModule) -> None:
    body = loop_parts(loop_of(module)).body
    del node_of(body, aten.embedding.default).meta["val"]


def _unbound(module: GraphModule) -> None:
    del next(iter(module.graph.nodes)).meta["port"]


def _unknown_slot(module: GraphModule) -> None:
    next(node for node in module.graph.nodes if node.name == "length").meta["port"] = Port("slot", "lenght")


def _other_slot(module: GraphModule) -> None:
    next(node for node in module.graph.nodes if node.name == "length").meta["port"] = Port("slot", "finished")


def _twice(module: GraphModule) -> None:
    next(node for node in module.graph.nodes if node.name == "v_cache").meta["port"] = Port("slot", "k_cache")


def _result_twice(module: GraphModule) -> None:
    output = module.graph.output_node()
    output.meta["ports"] = (output.meta["ports"][0], output.meta["ports"][0], *output.meta["ports"][2:])


def _weight_result(module: GraphModule) -> None:
    output = module.graph.output_node()
    output.meta["ports"] = (Port("weight", "norm"), *output.meta["ports"][1:])


def _ports_missing(module: GraphModule) -> None:
    output = module.graph.output_node()
    output.meta["ports"] = output.meta["ports"][1:]


def _loop_argument(place: int, value: Any) -> Callable[[GraphModule], None]:
    def damage(module: GraphModule) -> None:
        node = loop_of(module)
        node.args = (*node.args[:place], value, *node.args[place + 1 :])

    return damage


def _swapped_operands(module: GraphModule) -> None:
    node = loop_of(module)
    carried = loop_parts(node).carried
    node.args = (*node.args[:3], list(reversed(carried)), *node.args[4:])


def _missing_operand(module: GraphModule) -> None:
    node = loop_of(module)
    node.args = (*node.args[:5], list(loop_parts(node).invariant[1:]))


def _body_result(module: GraphModule) -> None:
    body = loop_parts(loop_of(module)).body
    output = body.graph.output_node()
    values = output.args[0]
    assert isinstance(values, tuple)
    output.args = ((*values[1:2], *values[2:3], *values[1:]),)
    output.meta["val"] = tuple(value.meta["val"] for value in output.args[0])  # type: ignore[union-attr]


def _shared_body(module: GraphModule) -> None:
    node = loop_of(module)
    with module.graph.inserting_before(node):
        attribute = module.graph.get_attr(str(loop_parts(node).attribute.target))
        attribute.meta = dict(loop_parts(node).attribute.meta)
        made = module.graph.call_function(node.target, (node.args[0], attribute, *node.args[2:]))  # type: ignore[arg-type]
    made.meta = dict(node.meta)


DAMAGES: list[tuple[Callable[[GraphModule], object], str]] = [
    (_order, "SPC310"),
    (_unregistered, "SPC311"),
    (_random, "SPC311"),
    (_in_place, "SPC311"),
    (_buffer_op, "SPC311"),
    (_tensor_arithmetic, "SPC311"),
    (_shape, "SPC312"),
    (_dtype, "SPC312"),
    (_operand, "SPC312"),
    (_body_shape, "SPC312"),
    (_no_keys, "SPC313"),
    (_no_value, "SPC313"),
    (_unbound, "SPC314"),
    (_unknown_slot, "SPC314"),
    (_other_slot, "SPC314"),
    (_twice, "SPC314"),
    (_result_twice, "SPC314"),
    (_weight_result, "SPC314"),
    (_ports_missing, "SPC314"),
    (_loop_argument(0, "column"), "SPC315"),
    (_loop_argument(2, -1), "SPC315"),
    (_loop_argument(2, 9), "SPC315"),
    (_loop_argument(2, 2.0), "SPC315"),
    (_loop_argument(1, None), "SPC315"),
    (_loop_argument(4, None), "SPC315"),
    (_swapped_operands, "SPC315"),
    (_missing_operand, "SPC315"),
    (_body_result, "SPC315"),
    (_shared_body, "SPC315"),
]


@pytest.mark.parametrize(("damage", "code"), DAMAGES)
def test_each_kind_of_damage_is_found(damage: Callable[[GraphModule], object], code: str) -> None:
    assert code in findings(damaged(damage))


def test_a_finding_shows_the_op_the_lines_around_it_the_keys_and_the_passes() -> None:
    span = Span("s.yaml", 4, 1, 5, "target:")
    with pytest.raises(DiagnosticError) as caught:
        verify(damaged(_body_shape), after="layer-major", spans={"verify.attention": span})
    found = next(item for item in caught.value.diagnostics if item.code == "SPC312")
    excerpt = found.notes[0].splitlines()
    assert len(excerpt) == 12
    assert [line for line in excerpt if line.startswith(">")] == [excerpt[6]]
    assert "= aten.linear(" in excerpt[6]
    assert found.span == span
    assert "in graph `verify`" in found.message
    assert any("verify.attention" in note for note in found.notes)
    assert found.notes[-2:] == ("made by lower", "found after pass `layer-major`")


def test_only_looks_into_the_named_graphs() -> None:
    program = damaged(_shape)
    verify(program, only=["draft"])
    assert "SPC312" in findings(program, only=["verify"])


def test_a_slot_that_is_not_stored_can_not_be_bound() -> None:
    program = lowered()
    slots = {**program.slots, "k_candidate": replace(program.slots["k_candidate"], alias="k_cache[length]")}
    assert "SPC314" in findings(replace(program, slots=slots))


def buffered(*, read: bool, in_loop: bool, view: bool = False, before: bool = False) -> DecodeProgram:
    """Appends rows to a cache in place; then (or before) reads the cache."""
    slots = {
        "cache": Slot("cache", (2, BATCH, 8, 4), torch.float64, "committed", "", batch_dim=1),
        "length": Slot("length", (BATCH,), torch.int64, "committed", ""),
    }
    b = GraphBuilder(("commit",))
    cache = b.placeholder("cache", fake((2, BATCH, 8, 4), torch.float64), Port("slot", "cache"))
    length = b.placeholder("length", fake((BATCH,), torch.int64), Port("slot", "length"))
    rows = b.placeholder("rows", fake((BATCH, 3, 4), torch.float64), Port("input", "rows"))
    results: list[Node] = []

    def reads(builder: GraphBuilder, source: Node) -> None:
        if read:
            seen = builder.call(aten.select.int, source, 0, 0) if view else source
            results.append(builder.call(aten.neg.default, seen))

    if in_loop:
        body = BodyBuilder(
            "layer", carried={}, sliced={"c": cache}, invariant={"rows": rows, "n": length}, keys=("commit",)
        )
        if before:
            reads(body, body["c"])
        body.call(ops.append_rows_, body["c"], body["rows"], body["n"], body["n"])
        if not before:
            reads(body, body["c"])
        results = body.close(b, 2, list(results), "layers")
    else:
        one = b.call(aten.select.int, cache, 0, 1)
        if before:
            reads(b, cache)
        b.call(ops.append_rows_, one, rows, length, length)
        if not before:
            reads(b, cache)
    module = b.output(results, [Port("result", "seen")] * len(results))
    return DecodeProgram("p", slots, {}, {"commit": module}, frozenset({BUFFERED}))


@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize("view", [False, True])
def test_a_read_after_a_write_in_place_is_found(in_loop: bool, view: bool) -> None:
    assert findings(buffered(read=True, in_loop=in_loop, view=view)) == ["SPC316"]
    verify(buffered(read=True, in_loop=in_loop, view=view, before=True))
    verify(buffered(read=False, in_loop=in_loop))


def test_writing_in_place_needs_the_buffer_level() -> None:
    program = buffered(read=False, in_loop=True)
    verify(program)
    assert findings(replace(program, properties=frozenset())) == ["SPC311"]


def test_a_read_in_a_later_iteration_is_found_where_the_whole_slot_is_passed_in() -> None:
    b = GraphBuilder(("commit",))
    cache = b.placeholder("cache", fake((BATCH, 8, 4), torch.float64), Port("slot", "cache"))
    length = b.placeholder("length", fake((BATCH,), torch.int64), Port("slot", "length"))
    rows = b.placeholder("rows", fake((2, BATCH, 3, 4), torch.float64), Port("input", "rows"))
    body = BodyBuilder("layer", carried={}, sliced={"r": rows}, invariant={"c": cache, "n": length}, keys=("commit",))
    seen = body.call(aten.neg.default, body["c"])
    body.call(ops.append_rows_, body["c"], body["r"], body["n"], body["n"])
    out = body.close(b, 2, [seen], "layers")
    slots = {
        "cache": Slot("cache", (BATCH, 8, 4), torch.float64, "committed", ""),
        "length": Slot("length", (BATCH,), torch.int64, "committed", ""),
    }
    module = b.output(out, [Port("result", "seen")])
    assert findings(DecodeProgram("p", slots, {}, {"commit": module}, frozenset({BUFFERED}))) == ["SPC316"]
