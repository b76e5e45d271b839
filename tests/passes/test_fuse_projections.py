"""fuse-projections: equal results, declarations that match, one form for all graphs, reasons for what stays apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.clone import clone
from specc.ir.dims import BATCH
from specc.ir.edit import Editor, finish, modules
from specc.ir.interpreter import Interpreter
from specc.ir.port import Port
from specc.manager import PassContext, PassResult, Pipeline
from specc.passes.canonicalize import Canonicalize
from specc.passes.fuse_projections import FuseProjections, fused_name
from specc.program import DecodeProgram, Weight, input_ports
from tests.passes.recurrent_steps import Lockstep, any_steps, layer_major_program
from tests.passes.tree_programs import (
    CHAINS,
    TREES,
    Small,
    assert_same,
    batches,
    fused_weights,
    naive_program,
    run,
    staged,
    state_of,
    verified,
    weights_of,
)

aten = torch.ops.aten
CONTEXT = PassContext()


def calls(module: GraphModule, target: object) -> list[Node]:
    """Calls of an op in a module and its loop bodies."""
    return [node for item in modules(module) for node in item.graph.nodes if node.target is target]


def fuse(program: DecodeProgram) -> PassResult:
    """The pass with the verifier on its result."""
    Pipeline((FuseProjections(),)).run(program)
    return FuseProjections().run(program, CONTEXT)


@given(st.data())
@settings(max_examples=25)
def test_fused_and_separate_projections_agree(data: st.DataObject) -> None:
    small = data.draw(st.sampled_from((TREES[0], TREES[3], CHAINS[4])))
    batch = data.draw(batches(small))
    before = verified(naive_program(small), batch, small, weights_of(small))
    program = staged(small)["fuse-projections"].program
    assert_same(before, verified(program, batch, small, fused_weights(program, small), strict=True))


@pytest.mark.parametrize("small", [TREES[0], TREES[2], TREES[3]])
def test_fused_prefill_agrees(small: Small) -> None:
    program = staged(small)["fuse-projections"].program
    inputs = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]]), "lengths": torch.tensor([3, 2])}
    state = state_of(program, [4, 0])
    before = run(naive_program(small), "prefill", state, weights_of(small), inputs)
    assert_same(before, run(program, "prefill", state, fused_weights(program, small), inputs))


@pytest.mark.parametrize("small", [TREES[0], TREES[3]])
def test_weights_and_biases_are_declared_as_the_concatenation_of_their_parts(small: Small) -> None:
    before, after = naive_program(small).weights, staged(small)["fuse-projections"].program.weights
    groups = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    if small.family == "pangu":
        groups["qkv_proj_bias"] = ("q_proj_bias", "k_proj_bias", "v_proj_bias")
    for name, parts in groups.items():
        assert after[name].sources == tuple(source for part in parts for source in before[part].sources)
        assert after[name].shape[0] == sum(before[part].shape[0] for part in parts)
        assert after[name].shape[1:] == before[parts[0]].shape[1:]
        assert after[name].layers == small.layers
        assert not set(parts) & set(after)
    gone = {part for parts in groups.values() for part in parts}
    assert set(after) == set(before) - gone | set(groups)
    assert {"o_proj", "down_proj", "lm_head"} <= set(after)


def test_every_graph_uses_the_fused_weights_and_no_old_ones() -> None:
    program = staged(TREES[0])["fuse-projections"].program
    for name in ("verify", "prefill"):
        ports = {key.removeprefix("weight:") for key in input_ports(program.graphs[name]) if key.startswith("weight:")}
        assert ports <= set(program.weights)
        assert {"qkv_proj", "gate_up_proj"} <= ports
        assert len(calls(program.graphs[name], aten.linear.default)) == 5, "qkv, o, gate and up, down, head"


def test_it_works_on_token_major_programs_through_nested_loops() -> None:
    small = TREES[3]
    program = fuse(naive_program(small)).program
    assert {"qkv_proj", "qkv_proj_bias", "gate_up_proj"} <= set(program.weights)
    state, inputs = state_of(program, [3]), {"tokens": torch.tensor([[1, 2, 3, 4, 5]])}
    inputs |= {"parent": torch.tensor([[-1, 0, 0, 1, 1]]), "valid": torch.ones(1, 5, dtype=torch.bool)}
    before = run(naive_program(small), "verify", state, weights_of(small), inputs)
    assert_same(before, run(program, "verify", state, fused_weights(program, small), inputs))


def test_a_second_run_changes_nothing() -> None:
    program = staged(TREES[0])["fuse-projections"].program
    result = FuseProjections().run(program, CONTEXT)
    assert not result.changed
    assert result.program is program


def test_names() -> None:
    assert fused_name(("q_proj", "k_proj", "v_proj")) == "qkv_proj"
    assert fused_name(("gate_proj", "up_proj")) == "gate_up_proj"
    assert fused_name(("draft_q_proj", "draft_k_proj", "draft_v_proj")) == "draft_qkv_proj"
    assert fused_name(("q_proj", "draft_k_proj")) == "q_draft_k_proj"
    assert fused_name(("q_proj", "k_proj", "v_proj", "a_proj", "b_proj", "g_proj")) == "qkvabg_proj"
    assert fused_name(("l0_gate_proj", "l0_up_proj")) == "l0_gate_up_proj"
    assert fused_name(("l3_in_proj_qkvz", "l3_in_proj_ba")) == "l3_in_proj_qkvz_ba"
    shared = ("l1_shared_gate_proj", "l1_shared_up_proj", "l1_shared_expert_gate")
    assert fused_name(shared) == "l1_shared_gate_up_expert_gate_proj"


RECURRENT = {
    "delta": {"qkvabg_proj": 6, "gate_up_proj": 2},
    "hybrid": {
        "l0_in_proj_qkvz_ba": 2,
        "l0_gate_up_proj": 2,
        "l1_qkv_proj": 3,
        "l1_shared_gate_up_expert_gate_proj": 3,
    },
}


@pytest.mark.parametrize("draft", ["tree", "chain"])
@pytest.mark.parametrize("target", ["delta", "hybrid"])
@given(data=st.data())
@settings(max_examples=3)
def test_recurrent_layers_have_one_projection_and_decode_the_same(target: str, draft: str, data: st.DataObject) -> None:
    before = layer_major_program(target, draft)
    after = FuseProjections().run(before, CONTEXT).program
    assert set(after.weights) - set(before.weights) == set(RECURRENT[target])
    for name, parts in RECURRENT[target].items():
        assert len(after.weights[name].sources) == parts
        position = re.match(r"l(\d)_", name)
        assert after.weights[name].first_layer == (int(position[1]) if position else 0)
        assert after.weights[name].layer_step == (2 if position else 1)
    lockstep = Lockstep([before, after], target, 2, exact=False)
    any_steps(lockstep, data, 2, draft == "tree", steps=2)


def test_the_convolution_reads_its_part_of_the_projection_without_a_copy() -> None:
    program = Canonicalize().run(FuseProjections().run(layer_major_program("delta", "tree"), CONTEXT).program, CONTEXT)
    for step in ("verify", "prefill", "decode"):
        nodes = [node for module in modules(program.program.graphs[step]) for node in module.graph.nodes]
        (conv,) = [node for node in nodes if node.target in (ops.tree_conv, ops.short_conv)]
        assert conv.args[1].target is aten.narrow.default
        assert conv.args[1].args[0].target is aten.linear.default
        assert not [node for node in nodes if node.target is aten.cat.default and "mixed" in node.name]


# Near misses on a program of two linear layers.


def two_layers(
    weights: Mapping[str, Weight], uses: tuple[tuple[str, str | None], ...], extra: str | None = None
) -> GraphModule:
    """x -> the sum of linear layers on x, by weight and bias; `extra`: a weight that is read in another way."""
    b = GraphBuilder(("target",))
    x = b.placeholder("x", fake((BATCH, 3, 6), torch.float64), Port("input", "x"))
    nodes = {
        name: b.placeholder(f"w_{name}", fake(weight.shape, weight.dtype), Port("weight", name))
        for name, weight in weights.items()
        if name == extra or any(name in use for use in uses)
    }
    out = None
    for weight, bias in uses:
        arguments = [x, nodes[weight], *([nodes[bias]] if bias else [])]
        y = b.call(aten.sum.dim_IntList, b.call(aten.linear.default, *arguments), [-1])
        out = y if out is None else b.call(aten.add.Tensor, b.call(aten.mul.Tensor, out, 3), y)
    if extra is not None:
        out = b.call(aten.add.Tensor, out, b.call(aten.sum.dim_IntList, nodes[extra], [0, 1]))
    return b.output([out], [Port("result", "y")])


def _weight(name: str, *shape: int, **options: object) -> Weight:
    return Weight(name, shape, torch.float64, (f"model.{name}",), **options)  # type: ignore[arg-type]


SHAPES = {"a_proj": (2, 6), "b_proj": (4, 6), "a_bias": (2,), "b_bias": (4,)}
WEIGHTS = {name: _weight(name, *shape) for name, shape in SHAPES.items()}
BOTH = (("a_proj", None), ("b_proj", None))
BIASED = (("a_proj", "a_bias"), ("b_proj", "b_bias"))


def _program(**graphs: GraphModule) -> DecodeProgram:
    return DecodeProgram("two", {}, WEIGHTS, graphs)


def _value(module: GraphModule, weights: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    args = [x if key == "input:x" else weights[key.removeprefix("weight:")] for key in input_ports(module)]
    (value,) = Interpreter(module).run(*args)
    assert isinstance(value, torch.Tensor)
    return value


@pytest.mark.parametrize("uses", [BOTH, BOTH[::-1], BIASED])
def test_the_order_in_the_weight_is_that_of_the_declarations(uses: tuple[tuple[str, str | None], ...]) -> None:
    module = two_layers(WEIGHTS, uses)
    result = fuse(_program(verify=module))
    assert [note.message for note in result.notes] == ["a_proj, b_proj became ab_proj"]
    assert result.program.weights["ab_proj"].sources == ("model.a_proj", "model.b_proj")
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, dtype=torch.float64, generator=generator) for name, shape in SHAPES.items()}
    fused = {"ab_proj": torch.cat([weights["a_proj"], weights["b_proj"]])}
    fused["ab_proj_bias"] = torch.cat([weights["a_bias"], weights["b_bias"]])
    x = torch.randn(2, 3, 6, dtype=torch.float64, generator=generator)
    before, after = _value(module, weights, x), _value(result.program.graphs["verify"], {**weights, **fused}, x)
    torch.testing.assert_close(before, after, rtol=1e-14, atol=1e-14)
    swapped = {**fused, "ab_proj": fused["ab_proj"].flip(0)}
    assert not torch.allclose(before, _value(result.program.graphs["verify"], {**weights, **swapped}, x))


NEAR_MISSES = {
    "alone elsewhere": (
        {"verify": two_layers(WEIGHTS, BOTH), "draft": two_layers(WEIGHTS, (("a_proj", None),))},
        "graph draft uses `a_proj` with other weights or alone",
    ),
    "read elsewhere": ({"verify": two_layers(WEIGHTS, BOTH, "b_proj")}, "`b_proj` is also read by"),
    "one bias": ({"verify": two_layers(WEIGHTS, (("a_proj", "a_bias"), ("b_proj", None)))}, "some have a bias"),
    "twice": ({"verify": two_layers(WEIGHTS, (("a_proj", None), ("a_proj", None)))}, "applied twice"),
    "other biases elsewhere": (
        {"verify": two_layers(WEIGHTS, BOTH), "draft": two_layers(WEIGHTS, BIASED)},
        "with other weights or alone",
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_cannot_be_fused_stays_apart_with_the_reason(name: str) -> None:
    graphs, reason = NEAR_MISSES[name]
    result = fuse(_program(**graphs))
    assert not result.changed
    assert not any(note.fired for note in result.notes)
    assert any("stay apart" in note.message and reason in note.message for note in result.notes)


@pytest.mark.parametrize(
    "change", [{"dtype": torch.float32}, {"model": "draft"}, {"layers": 2}], ids=["dtype", "model", "layers"]
)
def test_weights_of_different_kinds_stay_apart(change: dict[str, object]) -> None:
    weights = {**WEIGHTS, "b_proj": replace(WEIGHTS["b_proj"], **change)}  # type: ignore[arg-type]
    program = replace(_program(verify=two_layers(WEIGHTS, BOTH)), weights=weights)
    (note,) = FuseProjections().run(program, CONTEXT).notes
    assert "differ in dtype, input size, number of layers or model" in note.message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"first_layer": 1}, "different layers of the period"),
        ({"layer_step": 2}, "different layers of the period"),
        ({"experts": 2}, "holds its experts one behind the other"),
    ],
)
def test_only_weights_of_the_same_layers_become_one(change: dict[str, int], reason: str) -> None:
    weights = {**WEIGHTS, "b_proj": replace(WEIGHTS["b_proj"], **change)}  # type: ignore[arg-type]
    program = replace(_program(verify=two_layers(WEIGHTS, BOTH)), weights=weights)
    (note,) = FuseProjections().run(program, CONTEXT).notes
    assert reason in note.message


def test_a_name_that_is_taken_stays() -> None:
    weights = {**WEIGHTS, "ab_proj": _weight("ab_proj", 6, 6)}
    program = replace(_program(verify=two_layers(WEIGHTS, BOTH)), weights=weights)
    (note,) = FuseProjections().run(program, CONTEXT).notes
    assert "has a weight `ab_proj` already" in note.message


def test_different_inputs_are_not_one_group() -> None:
    small = TREES[0]
    module = clone(naive_program(small).graphs["verify"])
    linear = next(node for node in calls(module, aten.linear.default) if len(node.args[0].users) == 3)
    body = linear.graph.owning_module
    assert body is not None
    editor = Editor(body, "edit")
    with editor.before(linear):
        other = editor.call(aten.clone.default, linear.args[0])
    linear.args = (other, *linear.args[1:])
    result = fuse(naive_program(small).with_graphs(verify=finish(module)))
    reasons = [note.message for note in result.notes if not note.fired]
    assert any("k_proj, v_proj stay apart: graph prefill uses `k_proj` with other weights" in text for text in reasons)
    assert "q_proj" in result.program.weights


def test_invariants_of_a_loop_are_fused_as_well() -> None:
    b = GraphBuilder(("target",))
    x = b.placeholder("x", fake((BATCH, 3, 6), torch.float64), Port("input", "x"))
    names = ("a_proj", "b_proj")
    nodes = {name: b.placeholder(name, fake(SHAPES[name], torch.float64), Port("weight", name)) for name in names}
    body = BodyBuilder("token", carried={}, sliced={"x": x}, invariant=nodes, keys=b.keys)
    parts = [body.call(aten.linear.default, body["x"], body[name]) for name in nodes]
    (out,) = body.close(b, 3, [body.call(aten.cat.default, parts, -1)])
    module = b.output([out], [Port("result", "y")])
    result = fuse(_program(verify=module))
    assert result.changed
    weights = {name: torch.randn(WEIGHTS[name].shape, dtype=torch.float64) for name in nodes}
    fused = {"ab_proj": torch.cat([weights["a_proj"], weights["b_proj"]])}
    value = torch.randn(2, 3, 6, dtype=torch.float64)
    after = _value(result.program.graphs["verify"], fused, value)
    torch.testing.assert_close(_value(module, weights, value), after, rtol=1e-14, atol=1e-14)
