"""Contracts of the recurrent operator on a compiled program: faults in it, with their place in the YAML."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.backends.ascend.contracts import check_contracts
from specc.driver import lower_spec, run_passes, spans_of
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, modules
from specc.ir.port import ValueRange
from specc.program import DecodeProgram
from specc.spec import LoadedSpec
from tests.backends.ascend.chain_specs import chain

aten = torch.ops.aten
Edit = Callable[[GraphModule, Node], None]


@cache
def compiled() -> tuple[LoadedSpec, DecodeProgram]:
    loaded = chain()
    return loaded, run_passes(loaded, lower_spec(loaded, "ascend"), target="ascend", verify=False).program


def edited(target: object, edit: Edit) -> DecodeProgram:
    """The program with the first call of an op in verify changed."""
    program = compiled()[1]
    module = clone(program.graphs["verify"])
    edit(*next((item, node) for item in modules(module) for node in item.graph.nodes if node.target is target))
    return program.with_graphs(verify=module)


def through(position: int, target: object, *args: object, **kwargs: object) -> Edit:
    """An edit that sends an operand through another op first."""

    def edit(module: GraphModule, node: Node) -> None:
        editor = Editor(module, "planted")
        with editor.before(node):
            node.update_arg(position, editor.call(target, node.args[position], *args, **kwargs))  # type: ignore[arg-type]

    return edit


def shared_rows(module: GraphModule, node: Node) -> None:
    """All tokens of a sequence in one row."""
    through(6, aten.mul.Tensor, 0)(module, node)


FAULTS: dict[str, tuple[str, object, Edit]] = {
    "float32 states": ("SPC550", ops.npu_recurrent_chain, through(0, aten._to_copy.default, dtype=torch.float32)),
    "float16 values": ("SPC555", ops.npu_recurrent_chain, through(3, aten._to_copy.default, dtype=torch.float16)),
    "bfloat16 decays": ("SPC555", ops.npu_recurrent_chain, through(4, aten._to_copy.default, dtype=torch.bfloat16)),
    "one row for all tokens": ("SPC541", ops.npu_recurrent_chain, shared_rows),
    "rows of the next sequence's ring": ("SPC540", ops.npu_recurrent_chain, through(6, aten.add.Tensor, 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_program_is_refused_with_its_line(fault: str) -> None:
    code, target, edit = FAULTS[fault]
    found = check_contracts(edited(target, edit), spans_of(compiled()[0]))
    assert code in {item.code for item in found}, [item.render() for item in found]
    for item in found:
        assert item.help
        assert item.span is not None
        assert "comes from the spec's" in "\n".join(item.notes)


def test_the_program_itself_breaks_no_contract() -> None:
    assert [item.render() for item in check_contracts(compiled()[1])] == []


def test_rows_that_may_lie_outside_their_ring_are_refused() -> None:
    """`state_row` is declared to lie in the ring: without that, nothing shows that prompts read inside the pool."""
    program = compiled()[1]
    found = check_contracts(program, ranges={"slot:state_row": ValueRange(0, 8)})
    assert {item.code for item in found} == {"SPC561"}
