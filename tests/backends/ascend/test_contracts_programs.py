"""Contracts on the programs of the shipped specs: nothing to find, and planted faults with their place in the YAML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.backends.ascend.contracts import check_contracts
from specc.diagnostics import Diagnostic
from specc.driver import run_passes, spans_of
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, modules
from specc.ir.port import ValueRange
from specc.lower.assemble import lower
from specc.program import DecodeProgram
from specc.spec import load
from tests.backends.ascend.contract_programs import HALF, SPECS, compiled
from tests.cells import ALL

aten = torch.ops.aten


def found(name: str, *overrides: str) -> list[Diagnostic]:
    loaded, program = compiled(name, *overrides)
    return check_contracts(program, spans_of(loaded))


QUICK = ("gdn-15m-tree", "smollm2-dynamic-tree", "smollm2-plain")
DTYPES = ("float32", "bfloat16", "float16")


CELLS = [
    pytest.param(path.stem, dtype, marks=() if path.stem in QUICK else pytest.mark.slow)
    for number, path in enumerate(SPECS)
    for place, dtype in enumerate(DTYPES)
    if ALL or (path.stem in QUICK and dtype != "float16") or number % 3 == place
]
"""Quick specs in two types, the others in one, in turn."""


@pytest.mark.parametrize(("name", "dtype"), CELLS)
def test_shipped_program_breaks_no_contract(name: str, dtype: str) -> None:
    assert [item.render() for item in found(name, f"runtime.dtype={dtype}")] == []


Fault = Callable[[DecodeProgram], DecodeProgram]
DYNAMIC, SAMPLED, RECURRENT = "smollm2-dynamic-tree", "smollm2-rejection", "gdn-15m-tree"


def nodes_of(module: GraphModule, target: object) -> Iterator[tuple[GraphModule, Node]]:
    """Calls of an op, in the module and its loop bodies."""
    for item in modules(module):
        for node in item.graph.nodes:
            if node.target == target:
                yield item, node


Edit = Callable[[GraphModule, Node], None]


def edited(program: DecodeProgram, graph: str, target: object, edit: Edit) -> DecodeProgram:
    """The program with the first call of an op in a graph changed."""
    module = clone(program.graphs[graph])
    edit(*next(nodes_of(module, target)))
    return program.with_graphs(**{graph: module})


def through(position: int, target: object, *args: object, **kwargs: object) -> Edit:
    """An edit that sends an operand through another op first."""

    def edit(module: GraphModule, node: Node) -> None:
        editor = Editor(module, "planted")
        with editor.before(node):
            node.update_arg(position, editor.call(target, node.args[position], *args, **kwargs))

    return edit


def argument(position: int, held: object) -> Edit:
    """An edit that changes an argument."""
    return lambda _, node: node.update_arg(position, held)


def old_cache(module: GraphModule, attention: Node) -> None:
    """Attention over the cache as it was before the scatter."""
    attention.update_arg(1, attention.args[1].args[0])


def twice(module: GraphModule, scatter: Node) -> None:
    """Another scatter on the result of the first."""
    editor = Editor(module, "planted")
    users = list(scatter.users)
    with editor.after(scatter):
        second = editor.call(ops.npu_scatter_update, scatter, *scatter.args[1:])
    for user in users:
        user.replace_input_with(scatter, second)


def widened(program: DecodeProgram, name: str, low: int, high: int) -> DecodeProgram:
    """Another declared range of a slot or an input."""
    return replace(program, ranges={**program.ranges, name: ValueRange(low, high)})


def constant_draw(module: GraphModule, node: Node) -> None:
    """u = 0 in place of the drawn number."""
    through(1, aten.zeros_like.default)(module, node)


PLUS = aten.add.Tensor
FUSED, MASK, SCATTER = ops.npu_fused_infer_attention_score, ops.attention_mask, ops.npu_scatter_update
FAULTS: dict[str, tuple[str, str, Fault]] = {
    "tree mask negated": (DYNAMIC, "SPC512", lambda p: edited(p, "verify", MASK, through(1, aten.logical_not.default))),
    "mask negated": (DYNAMIC, "SPC512", lambda p: edited(p, "verify", FUSED, through(3, aten.eq.Scalar, 0))),
    "mask of another op": (DYNAMIC, "SPC513", lambda p: edited(p, "verify", MASK, through(1, aten.flip.default, [1]))),
    "mask in bfloat16": (
        DYNAMIC,
        "SPC510",
        lambda p: edited(p, "verify", FUSED, through(3, aten._to_copy.default, dtype=torch.bfloat16)),
    ),
    "mask per head": (
        DYNAMIC,
        "SPC514",
        lambda p: edited(p, "verify", FUSED, through(3, aten.repeat.default, [1, 9, 1, 1])),
    ),
    "layout of another op": (DYNAMIC, "SPC520", lambda p: edited(p, "verify", FUSED, argument(8, "BSH"))),
    "float32 query": (
        DYNAMIC,
        "SPC521",
        lambda p: edited(p, "verify", FUSED, through(0, aten._to_copy.default, dtype=torch.float32)),
    ),
    "triangle mode": (DYNAMIC, "SPC524", lambda p: edited(p, "verify", FUSED, argument(9, 3))),
    "inner_precise 7": (DYNAMIC, "SPC526", lambda p: edited(p, "verify", FUSED, argument(10, 7))),
    "lengths past the cache": (
        DYNAMIC,
        "SPC532",
        lambda p: edited(p, "verify", FUSED, through(4, PLUS, 999)),
    ),
    "rows past the cache": (
        DYNAMIC,
        "SPC540",
        lambda p: edited(p, "verify", SCATTER, through(1, PLUS, 999)),
    ),
    "attention over the old cache": (DYNAMIC, "SPC543", lambda p: edited(p, "verify", FUSED, old_cache)),
    "two scatters": (DYNAMIC, "SPC544", lambda p: edited(p, "verify", SCATTER, twice)),
    "-1 in the path": (DYNAMIC, "SPC560", lambda p: widened(p, "slot:pending_path", -1, 15)),
    "path past the candidates": (DYNAMIC, "SPC561", lambda p: widened(p, "slot:pending_path", 0, 16)),
    "draw of u = 0": (SAMPLED, "SPC573", lambda p: edited(p, "prefill", ops.sample_index, constant_draw)),
}


def read_slot(module: GraphModule) -> None:
    """The slot whose layers are scattered inside a loop is summed outside of it."""
    top = next(item for item in module.graph.nodes if item.op == "placeholder" and item.meta["port"].name == "k_cache")
    editor = Editor(module, "planted")
    with editor.before(module.graph.output_node()):
        total = editor.call(aten.sum.default, top)
        editor.call(aten.add.Tensor, total, 1)


EAGER = ops.masked_attention
EAGER_FAULTS: dict[str, tuple[str, Edit]] = {
    "mask negated": ("SPC512", through(3, aten.eq.Scalar, 0)),
    "mask of another op": ("SPC513", through(3, aten.flip.default, [3])),
    "mask in float32": ("SPC510", through(3, aten._to_copy.default, dtype=torch.float32)),
    "mask per head": ("SPC514", through(3, aten.repeat.default, [1, 9, 1, 1])),
}


@pytest.mark.parametrize("fault", EAGER_FAULTS)
def test_planted_fault_is_refused_where_attention_is_matmuls(fault: str) -> None:
    code, edit = EAGER_FAULTS[fault]
    _, program = compiled(DYNAMIC, "runtime.dtype=float32")
    assert {item.code for item in check_contracts(edited(program, "verify", EAGER, edit))} == {code}


def test_slot_that_is_read_beside_its_loop_is_refused() -> None:
    _, program = compiled(DYNAMIC, HALF)
    module = clone(program.graphs["verify"])
    read_slot(module)
    found_there = check_contracts(program.with_graphs(verify=module))
    assert {item.code for item in found_there} == {"SPC543"}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_refused_with_its_code_and_yaml_line(fault: str) -> None:
    name, code, plant = FAULTS[fault]
    loaded, program = compiled(name, HALF)
    diagnostics = check_contracts(plant(program), spans_of(loaded))
    assert {item.code for item in diagnostics} == {code}, "\n\n".join(item.render() for item in diagnostics)
    for item in diagnostics:
        assert item.span is not None
        assert item.span.file.endswith(f"{name}.yaml") or item.span.file == "--set"
        assert "the IR there:" in "\n".join(item.notes)
        assert "comes from the spec's" in item.render()


def test_longer_prefill_than_the_capacity_allows_is_refused() -> None:
    _, program = compiled(DYNAMIC, HALF)
    chunk = program.attributes["prefill_chunk"]
    assert check_contracts(program) == []
    longer = replace(program, attributes={**program.attributes, "prefill_chunk": 2 * chunk})
    assert {item.code for item in check_contracts(longer)} == {"SPC532", "SPC540"}


def test_seventeen_nodes_are_refused_by_fused_attention_only() -> None:
    loaded = load(next(path for path in SPECS if path.stem == DYNAMIC), [HALF, "draft.num_speculative_tokens=16"])
    program = run_passes(loaded, lower(loaded.spec), target="ascend", verify=False).program
    assert check_contracts(program) == []  # legalize-ascend took matmuls

    def fuse(_: GraphModule, node: Node) -> None:
        node.target = FUSED
        node.args = (*node.args[:4], None, 9, 3, node.args[4], "BSND", 1, 0)

    fused = edited(program, "verify", ops.masked_attention, fuse)
    assert {item.code for item in check_contracts(fused)} == {"SPC523"}


def test_state_in_half_precision_is_refused() -> None:
    _, program = compiled(RECURRENT)
    graph = "verify"
    node = next(
        node
        for item in modules(program.graphs[graph])
        for node in item.graph.nodes
        if str(node.target).startswith("specc.delta_rule_verify")
    )
    narrowed = edited(program, graph, node.target, through(0, aten._to_copy.default, dtype=torch.bfloat16))
    assert {item.code for item in check_contracts(narrowed)} == {"SPC554"}
