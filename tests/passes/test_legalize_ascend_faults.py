"""legalize-ascend: what it refuses, what its predicate sees, and that planted faults show in the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.diagnostics import DiagnosticError
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, modules
from specc.ir.op import REGISTRY
from specc.manager import PassContext
from specc.passes.legalize_ascend import LegalizeAscend, illegal
from specc.program import DecodeProgram
from tests.passes.npu_steps import CHUNK, Pair, Twins, pair, prefill, speculate

aten = torch.ops.aten


def nodes_of(module: GraphModule, target: object) -> Iterator[tuple[GraphModule, Node]]:
    """Calls of an op, with the body that each stands in."""
    for body in modules(module):
        for node in list(body.graph.nodes):
            if node.target is target:
                yield body, node


Edit = Callable[[GraphModule], None]


def with_edit(program: DecodeProgram, step: str, edit: Edit) -> DecodeProgram:
    """The program with one graph edited."""
    work = clone(program.graphs[step])
    edit(work)
    return program.with_graphs(**{step: finish(work)})


def later_start(module: GraphModule) -> None:
    """The scatter starts one row further on."""
    for body, node in nodes_of(module, ops.npu_scatter_update):
        editor = Editor(body, "fault")
        with editor.before(node):
            node.args = (node.args[0], editor.call(aten.add.Tensor, node.args[1], 1), *node.args[2:])


def all_counted(module: GraphModule) -> None:
    """The rows of a commit count whatever was accepted."""
    for body, node in nodes_of(module, ops.joined_rows):
        editor = Editor(body, "fault")
        with editor.before(node):
            whole = editor.call(aten.full_like.default, node.args[3], node.args[2].meta["val"].shape[1])
        node.args = (*node.args[:3], whole)


def no_tree_mask(module: GraphModule) -> None:
    """Nodes see each other as a chain's do."""
    for _, node in nodes_of(module, ops.attention_mask):
        node.args = (node.args[0], None, *node.args[2:])


def longer_prefix(module: GraphModule) -> None:
    """A row of junk counts as committed."""
    for body, node in nodes_of(module, ops.attention_mask):
        editor = Editor(body, "fault")
        with editor.before(node):
            node.args = (editor.call(aten.add.Tensor, node.args[0], 1), *node.args[1:])


def swapped_path(module: GraphModule) -> None:
    """A commit moves the nodes' rows in the order of their numbers."""
    for body, node in nodes_of(module, ops.joined_rows):
        editor = Editor(body, "fault")
        with editor.before(node):
            turned = editor.call(aten.flip.default, node.args[2], [1])
        node.args = (*node.args[:2], turned, node.args[3])


FAULTS = [
    ("verify", later_start),
    ("verify", all_counted),
    ("verify", no_tree_mask),
    ("verify", longer_prefix),
    ("verify", swapped_path),
    ("flush", later_start),
    ("prefill", later_start),
    ("prefill", all_counted),
    ("draft", longer_prefix),
    ("decode", later_start),
]


@pytest.mark.parametrize(("step", "edit"), FAULTS, ids=[f"{step} {edit.__name__}" for step, edit in FAULTS])
def test_planted_faults_show_in_the_results(step: str, edit: Edit) -> None:
    both = pair("smollm2-dynamic-tree")
    wrong = with_edit(both.after, step, edit)
    assert wrong.graphs[step] is not both.after.graphs[step]
    with pytest.raises((AssertionError, IndexError)):
        walks(both, wrong, 6)


def walks(both: Pair, after: DecodeProgram, count: int) -> None:
    """Some fixed walks."""
    for seed in range(count):
        fixed_walk(Twins(both, 2, after), Random(seed))


def fixed_walk(twins: Twins, random: Random) -> None:
    """Prompts, steps, a flush, a continued prompt and a plain step."""
    prefill(twins, random, 2)
    for _ in range(2):
        twins.set(finished=torch.zeros(2, dtype=torch.bool))
        speculate(twins, random)
    twins.run("flush", {})
    prefill(twins, random, 1)
    twins.set(finished=torch.zeros(2, dtype=torch.bool))
    speculate(twins, random)
    twins.set(finished=torch.zeros(2, dtype=torch.bool))
    twins.run("decode", {})


def test_without_a_fault_the_same_walks_agree() -> None:
    both = pair("smollm2-dynamic-tree")
    walks(both, both.after, 2)


def second_scatter(module: GraphModule) -> None:
    """Writes once more."""
    body, node = next(nodes_of(module, ops.npu_scatter_update))
    editor = Editor(body, "fault")
    with editor.after(node):
        made = editor.call(ops.npu_scatter_update, node, *node.args[1:])
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


def second_reader(module: GraphModule) -> None:
    """Something else reads the cache as the step finds it."""
    body, node = next(nodes_of(module, ops.npu_scatter_update))
    editor = Editor(body, "fault")
    cache = node.args[0]
    with editor.before(node):
        editor.call(aten.neg.default, cache)


def test_the_predicate_sees_a_second_scatter_and_a_second_reader() -> None:
    program = pair("smollm2-dynamic-tree").after
    assert any("a second time" in text for text in illegal(with_edit(program, "verify", second_scatter)))
    assert any("beside the scatter" in text for text in illegal(with_edit(program, "verify", second_reader)))


def append_behind(module: GraphModule) -> None:
    """Writes rows by count to what the scatter returned."""
    body, node = next(nodes_of(module, ops.npu_scatter_update))
    editor = Editor(body, "fault")
    with editor.after(node):
        made = editor.call(ops.append_rows, node, node.args[2], node.args[1], node.args[1])
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


def test_the_predicate_sees_an_append_behind_the_scatter() -> None:
    program = pair("pangu-chain").after
    for step in ("decode", "commit"):
        assert any("writes rows by count" in text for text in illegal(with_edit(program, step, append_behind)))


def test_the_predicate_sees_the_value_form() -> None:
    both = pair("smollm2-plain")
    mixed = both.after.with_graphs(decode=both.before.graphs["decode"])
    found = illegal(mixed)
    assert any("attention of the value form" in text for text in found)
    assert any("0 scatters" in text for text in found)


def refusal(program: DecodeProgram) -> str:
    with pytest.raises(DiagnosticError) as caught:
        LegalizeAscend(prefill_chunk=CHUNK).run(program, PassContext())
    assert {item.code for item in caught.value.diagnostics} == {"SPC317"}
    return caught.value.diagnostics[0].message


def shift(target: object, operand: int) -> Edit:
    """Adds 1 to an operand of the outer graph's loops that hold calls of an op."""

    def edit(module: GraphModule) -> None:
        for body, node in nodes_of(module, target):
            editor = Editor(body, "fault")
            with editor.before(node):
                moved = editor.call(aten.add.Tensor, node.args[operand], 1)
            arguments = list(node.args)
            arguments[operand] = moved
            node.args = tuple(arguments)

    return edit


def test_refuses_rows_that_are_appended_elsewhere() -> None:
    before = pair("smollm2-plain").before
    assert "behind those that it sees" in refusal(with_edit(before, "decode", shift(ops.append_rows, 2)))


def output_of(module: GraphModule, slot: str) -> tuple[int, Node]:
    output = module.graph.output_node()
    place = [port.name for port in output.meta["ports"]].index(slot)
    value: Any = output.args[0]
    return place, value[place]


def changed_slot(slot: str, more: int) -> Edit:
    """The step leaves another number in a slot."""

    def edit(module: GraphModule) -> None:
        output = module.graph.output_node()
        place, value = output_of(module, slot)
        editor = Editor(module, "fault")
        with editor.before(output):
            made = editor.call(aten.add.Tensor, value, more)
        values: Any = output.args[0]
        output.args = ((*values[:place], made, *values[place + 1 :]),)

    return edit


@pytest.mark.parametrize(
    ("step", "slot", "more", "reason"),
    [
        ("commit", "pending_length", 1, "what is pending ends at `length`"),
        ("commit", "length", 1, "what is pending ends at `length`"),
        ("commit", "recent_count", 9, "missed no more tokens than there are"),
        ("decode", "length", 1, "leaves rows of `k_cache`"),
    ],
)
def test_refuses_a_program_whose_numbers_do_not_add_up(step: str, slot: str, more: int, reason: str) -> None:
    before = pair("smollm2-dynamic-tree").before
    assert reason in refusal(with_edit(before, step, changed_slot(slot, more)))


def test_every_op_of_the_form_is_declared_for_values_only() -> None:
    names = ("npu_", "joined_rows", "attention_mask", "masked_attention")
    found = [info for info in REGISTRY.values() if info.name.startswith(names)]
    assert len(found) >= 8
    assert all(info.levels == {"value"} for info in found)
