"""dce: what nobody reads goes, at any depth; what writes stays; the ABI of steps stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from torch.fx import GraphModule

from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.dims import BATCH
from specc.ir.edit import bodies, loop_parts
from specc.ir.port import Port
from specc.ir.printer import print_program
from specc.ir.verifier import verify
from specc.manager import PassContext
from specc.passes.dce import DeadCode, eliminate_dead_code
from specc.program import DecodeProgram, Slot, Weight, input_ports, output_ports
from tests.ir_graphs import assert_same_outcome, count, graphs

aten = torch.ops.aten
F64 = torch.float64


@given(graphs())
def test_results_are_equal_bit_by_bit(module: GraphModule) -> None:
    made = eliminate_dead_code(module)
    verify(made)
    assert_same_outcome(module, made)


@given(graphs(writes=True))
def test_results_and_written_inputs_are_equal_in_graphs_that_write(module: GraphModule) -> None:
    assert_same_outcome(module, eliminate_dead_code(module))


@given(graphs())
def test_every_node_that_is_left_is_read(module: GraphModule) -> None:
    made = eliminate_dead_code(module)
    assert all(node.users or node.op in ("placeholder", "output") for node in made.graph.nodes)
    for node, body in bodies(made):
        parts = loop_parts(node)
        # A carried value may be replaced unread; the count of iterations and the index are always there.
        assert all(item.users for item in (*parts.sliced_inside, *parts.invariant_inside))
        assert all(item.users or item.op in ("placeholder", "output") for item in body.graph.nodes)
        assert all(inside.users or place in parts.results() for place, inside in enumerate(parts.carried_inside))


@pytest.mark.parametrize("nested", [False, True])
def test_a_write_that_nobody_reads_stays(nested: bool) -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3, 4), F64))
    if nested:
        body = BodyBuilder("layer", carried={}, sliced={"s": x}, invariant={}, keys=("verify",))
        body.call(aten.add_.Tensor, body["s"], 1.0)
        body.call(aten.neg.default, body["s"])
        body.close(b, 3, [], "rows")
    else:
        b.call(aten.add_.Tensor, x, 1.0)
    b.call(aten.neg.default, x)
    module = b.output([])
    made = eliminate_dead_code(module)
    assert count(made, aten.neg.default) == 0
    value = torch.zeros(3, 4, dtype=F64)
    made(value)
    assert torch.equal(value, torch.ones(3, 4, dtype=F64))


def test_a_carried_table_that_feeds_only_itself_goes_with_its_operands() -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3, 4), F64))
    table = b.call(aten.zeros_like.default, x)
    body = BodyBuilder("layer", carried={"c": x, "table": table}, sliced={"s": x}, invariant={"p": x}, keys=("verify",))
    moved = body.call(aten.add.Tensor, body["table"], body["p"])
    out = body.close(b, 3, [body.call(aten.add.Tensor, body["c"], 1.0), moved, body["s"]], "rows")
    made = eliminate_dead_code(b.output([out[0]]))
    parts = loop_parts(next(node for node, _ in bodies(made)))
    assert (len(parts.carried), len(parts.sliced), len(parts.invariant), len(parts.stacked_out)) == (1, 0, 0, 0)
    assert count(made, aten.zeros_like.default) == 0
    assert torch.equal(made(torch.zeros(3, 4, dtype=F64))[0], torch.full((3, 4), 3.0, dtype=F64))


def test_the_slice_that_counts_the_iterations_stays() -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((2, 5), F64))
    body = BodyBuilder("token", carried={"c": x}, sliced={"s": x}, invariant={}, keys=("verify",))
    out = body.close(b, None, [body.call(aten.add.Tensor, body["c"], 1.0)], "tokens")
    made = eliminate_dead_code(b.output(out))
    assert torch.equal(made(torch.zeros(2, 5, dtype=F64))[0], torch.full((2, 5), 5.0, dtype=F64))


def program() -> DecodeProgram:
    """Slots: `length` is kept, `scratch` (candidate) is written and never read; weight `w` is unused."""
    slots = {
        "length": Slot("length", (BATCH,), torch.int64, "committed", ""),
        "scratch": Slot("scratch", (BATCH,), torch.int64, "candidate", ""),
    }
    b = GraphBuilder(("verify",))
    length = b.placeholder("length", fake((BATCH,), torch.int64), Port("slot", "length"))
    tokens = b.placeholder("tokens", fake((BATCH,), torch.int64), Port("input", "tokens"))
    b.placeholder("w", fake((4,), F64), Port("weight", "w"))
    more, other = b.call(aten.add.Tensor, length, 1), b.call(aten.add.Tensor, length, 2)
    module = b.output([more, other], [Port("slot", "length"), Port("slot", "scratch")])
    assert tokens.name == "tokens"
    weights = {"w": Weight("w", (4,), F64, ("w",))}
    return DecodeProgram("p", slots, weights, {"verify": module})


def test_programs_lose_dead_slots_weights_and_placeholders_but_no_inputs() -> None:
    before = program()
    result = DeadCode().run(before, PassContext())
    verify(result.program)
    assert result.changed
    assert set(result.program.slots) == {"length"}
    assert not result.program.weights
    assert set(input_ports(result.program.graphs["verify"])) == {"slot:length", "input:tokens"}
    assert output_ports(result.program.graphs["verify"]) == (Port("slot", "length"),)
    messages = {note.message for note in result.notes}
    assert messages >= {
        "slots that nothing reads: scratch",
        "weights that nothing reads: w",
    }
    assert "scratch" in print_program(before)
    again = DeadCode().run(result.program, PassContext())
    assert not again.changed
    assert again.program is result.program


@pytest.mark.parametrize("role", ["committed", "control", "rng"])
def test_slots_of_the_state_stay_even_if_unread(role: str) -> None:
    before = program()
    slots = {**before.slots, "scratch": replace(before.slots["scratch"], role=role)}  # type: ignore[arg-type]
    result = DeadCode().run(replace(before, slots=slots), PassContext())
    assert "scratch" in result.program.slots
