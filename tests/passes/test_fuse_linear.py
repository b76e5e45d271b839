"""fuse-linear: the same values before and after, in every step graph; near misses stay apart, with the reason."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.check.machines import Interpreted
from specc.check.weights import logical_weights, program_weights
from specc.driver import lower_spec, run_passes
from specc.ir import ops
from specc.ir.build import GraphBuilder, fake
from specc.ir.dims import BATCH
from specc.ir.edit import modules
from specc.ir.port import Port
from specc.manager import PassContext, PassResult, Pipeline
from specc.passes import pipeline_of
from specc.passes.fuse_linear import FuseLinear
from specc.passes.fuse_projections import FuseProjections
from specc.program import DecodeProgram, Slot, Weight
from specc.spec import loads
from tests.passes.recurrent_steps import Lockstep, any_steps, layer_major_program
from tests.passes.tree_programs import (
    CHAINS,
    TREES,
    assert_same,
    batches,
    fused_weights,
    run,
    staged,
    state_of,
    verified,
)

aten = torch.ops.aten
CONTEXT = PassContext(target="triton")


def calls(module: GraphModule, target: object) -> list[Node]:
    """Calls of an op in a module and its loop bodies."""
    return [node for item in modules(module) for node in item.graph.nodes if node.target is target]


def fuse(program: DecodeProgram, **options: bool) -> PassResult:
    """The pass with the verifier on its result."""
    Pipeline((FuseLinear(**options),)).run(program, CONTEXT)
    return FuseLinear(**options).run(program, CONTEXT)


def messages(result: PassResult, fired: bool) -> set[str]:
    return {note.message for note in result.notes if note.fired is fired}


@given(st.data())
@settings(max_examples=8)
def test_verify_is_the_same_bit_by_bit(data: st.DataObject) -> None:
    small = data.draw(st.sampled_from((TREES[0], TREES[2], TREES[3], CHAINS[4])))
    before = staged(small)["fuse-projections"].program
    after = fuse(before).program
    batch, weights = data.draw(batches(small)), fused_weights(before, small)
    assert_same(verified(before, batch, small, weights), verified(after, batch, small, weights, strict=True), ulps=0)


def test_prefill_is_the_same_bit_by_bit() -> None:
    small = TREES[3]
    before = staged(small)["fuse-projections"].program
    weights, state = fused_weights(before, small), state_of(before, [4, 0])
    inputs = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]]), "lengths": torch.tensor([3, 2])}
    left, right = (run(program, "prefill", state, weights, inputs) for program in (before, fuse(before).program))
    assert_same(left, right, ulps=0)


@pytest.mark.parametrize("target", ["delta", "hybrid"])
@given(data=st.data())
@settings(max_examples=2)
def test_recurrent_steps_are_the_same_bit_by_bit(target: str, data: st.DataObject) -> None:
    before = FuseProjections().run(layer_major_program(target, "tree"), CONTEXT).program
    any_steps(Lockstep([before, fuse(before).program], target, 2), data, 2, tree=True, steps=2)


def test_each_layer_takes_in_all_that_stands_around_it() -> None:
    result = fuse(staged(TREES[3])["fuse-projections"].program)  # pangu: projections with biases
    assert messages(result, False) == set()
    assert messages(result, True) == {
        "`qkv` takes in its norm",
        "`o` takes in the residual",
        "`gate_up` takes in its norm, silu(gate) * up",
        "`down` takes in the residual",
        "`logits` takes in its norm",
        "`last_logits` takes in its norm",
    }
    for step in ("verify", "prefill"):
        module = result.program.graphs[step]
        for gone in (aten.linear.default, aten.rms_norm.default, aten.silu.default, aten.mul.Tensor):
            assert calls(module, gone) == []
        fused = [node.args for node in calls(module, ops.fused_linear)]
        assert len(fused) == 5
        assert sum(args[2] is not None for args in fused) == 2, "qkv and o have biases"
        assert sum(args[5] == "silu_mul" for args in fused) == 1
        assert sum(args[6] is not None for args in fused) == 2


BOTH = ("reference", "triton")
DRAFTED = {
    "draft model": "draft: {method: draft_model, family: llama, config: *small, tree: static, "
    "choices: [[0], [1], [0, 0]]}",
    "eagle head": "draft: {method: eagle3, tree: dynamic, top_k: 2, num_steps: 2, num_speculative_tokens: 4, "
    "config: {draft_vocab_size: 11}, aux_hidden_state_layer_ids: [0, 1], aux_hidden_state_of: output}",
}
SPEC = """
specc: 1
name: small
target:
  family: llama
  config: &small {num_hidden_layers: 2, hidden_size: 16, num_attention_heads: 2, num_key_value_heads: 1,
    intermediate_size: 24, vocab_size: 23, max_position_embeddings: 64}
%s
commit: {kv: path_index}
runtime: {max_batch_size: 2, max_sequence_length: 32, dtype: float64}
"""


@pytest.mark.parametrize("name", DRAFTED)
def test_drafters_are_the_same_bit_by_bit(name: str) -> None:
    """Behind all passes of the default pipeline, as the triton target has it."""
    loaded = loads(SPEC % DRAFTED[name])
    naive = lower_spec(loaded)
    programs = [run_passes(loaded, naive, target=target).program for target in BOTH]
    assert calls(programs[0].graphs["draft"], ops.fused_linear) == []
    assert calls(programs[1].graphs["draft"], aten.linear.default) == []
    logical = logical_weights(loaded.spec, 0)
    seen = []
    for program in programs:
        machine = Interpreted(name, program, program_weights(program.weights, naive, logical))
        ids = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
        state, bag = machine.step("prefill", machine.start(2), {"input_ids": ids, "lengths": torch.tensor([4, 3])})
        for step in ("draft", "verify", "accept", "commit", "draft"):
            state, results = machine.step(step, state, bag)
            bag = bag | results
        seen.append({**bag, **state})
    live = {key for key, value in seen[0].items() if bool(torch.isfinite(value).all())}
    assert {"tokens", "logits"} <= live
    left, right = ({key: values[key] for key in live} for values in seen)
    assert_same(left, right, ulps=0)


def test_only_the_triton_target_has_the_pass_by_default() -> None:
    spec = loads(SPEC % DRAFTED["draft model"]).spec
    names = {
        target: [item.name for item in pipeline_of(spec, target=target).passes] for target in ("reference", "triton")
    }
    assert "fuse-linear" not in names["reference"]
    assert names["triton"].index("fuse-linear") > names["triton"].index("plan-buffers")


def test_a_second_run_changes_nothing_and_plain_layers_can_stay() -> None:
    program = fuse(staged(TREES[0])["fuse-projections"].program).program
    again = FuseLinear().run(program, CONTEXT)
    assert not again.changed
    assert again.program is program
    lonely = of_graph(lambda b, x, w: b.call(aten.tanh.default, b.call(aten.linear.default, x, w["half"])))
    assert not fuse(lonely, plain=False).changed
    assert len(calls(fuse(lonely).program.graphs["verify"], ops.fused_linear)) == 1


# Near misses on one small graph each.

WEIGHTS = {"norm": (6,), "half": (8, 6), "square": (6, 6), "row": (1, 6)}
Make = Callable[[GraphBuilder, Node, dict[str, Node]], Node]


def of_graph(make: Make) -> DecodeProgram:
    """A program with one graph: x [B,3,6] -> what `make` returns."""
    b = GraphBuilder(("target",))
    x = b.placeholder("x", fake((BATCH, 3, 6), torch.float64), Port("slot", "x"))
    w = {
        name: b.placeholder(f"w_{name}", fake(shape, torch.float64), Port("weight", name))
        for name, shape in WEIGHTS.items()
    }
    graph = b.output([make(b, x, w)], [Port("result", "y")])
    weights = {name: Weight(name, shape, torch.float64, (f"model.{name}",)) for name, shape in WEIGHTS.items()}
    return DecodeProgram(
        "small", {"x": Slot("x", (BATCH, 3, 6), torch.float64, "committed", "")}, weights, {"verify": graph}
    )


def outcome(program: DecodeProgram) -> torch.Tensor:
    """The graph run as torch would run it."""
    made = torch.Generator().manual_seed(0)
    shapes = [(2, 3, 6), *WEIGHTS.values()]
    (y,) = program.graphs["verify"](*(torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes))
    return y


def normed(b: GraphBuilder, x: Node, w: dict[str, Node]) -> Node:
    return b.call(aten.rms_norm.default, x, [6], w["norm"], 1e-6, name="n")


def halves(b: GraphBuilder, y: Node) -> tuple[Node, Node]:
    parts = b.call(aten.split_with_sizes.default, y, [4, 4], -1)
    return tuple(b.call(operator.getitem, parts, place, name=name) for place, name in enumerate(("gate", "up")))  # type: ignore[return-value]


def norm_with_two_readers(b: GraphBuilder, x: Node, w: dict[str, Node]) -> Node:
    n = normed(b, x, w)
    return b.call(aten.mul.Tensor, b.call(aten.linear.default, n, w["square"], name="y"), n)


def norm_without_weight(b: GraphBuilder, x: Node, w: dict[str, Node]) -> Node:
    n = b.call(aten.rms_norm.default, x, [6], None, 1e-6, name="n")
    return b.call(aten.tanh.default, b.call(aten.linear.default, n, w["square"], name="y"))


def written_between(b: GraphBuilder, x: Node, w: dict[str, Node]) -> Node:
    n = normed(b, x, w)
    b.call(aten.mul_.Tensor, x, 2.0, name="twice")
    return b.call(aten.tanh.default, b.call(aten.linear.default, n, w["square"], name="y"))


def written_before_the_sum(b: GraphBuilder, x: Node, w: dict[str, Node]) -> Node:
    y = b.call(aten.linear.default, x, w["square"], name="y")
    b.call(aten.mul_.Tensor, x, 2.0, name="twice")
    return b.call(aten.add.Tensor, x, y, name="z")


def gate_of_the_other_half(b: GraphBuilder, x: Node, w: dict[str, Node]) -> Node:
    gate, up = halves(b, b.call(aten.linear.default, x, w["half"], name="y"))
    silu = b.call(aten.silu.default, gate, name="s")
    return b.call(aten.add.Tensor, b.call(aten.mul.Tensor, silu, silu, name="z"), up)


def up_read_twice(b: GraphBuilder, x: Node, w: dict[str, Node]) -> Node:
    gate, up = halves(b, b.call(aten.linear.default, x, w["half"], name="y"))
    z = b.call(aten.mul.Tensor, b.call(aten.silu.default, gate), up, name="z")
    return b.call(aten.sub.Tensor, z, up)


def scaled_sum(b: GraphBuilder, x: Node, w: dict[str, Node]) -> Node:
    y = b.call(aten.linear.default, x, w["square"], name="y")
    return b.call(aten.add.Tensor, x, y, alpha=2, name="z")


def broadcast_sum(b: GraphBuilder, x: Node, w: dict[str, Node]) -> Node:
    y = b.call(aten.linear.default, x, w["square"], name="y")
    return b.call(aten.add.Tensor, b.call(aten.linear.default, x, w["row"], name="r"), y, name="z")


def doubled(b: GraphBuilder, x: Node, w: dict[str, Node]) -> Node:
    y = b.call(aten.linear.default, x, w["square"], name="y")
    return b.call(aten.add.Tensor, y, y, name="z")


REASONS: dict[Make, str] = {
    norm_with_two_readers: "`y`: 2 nodes read the norm `n`",
    norm_without_weight: "`y`: `n` has no weight, no eps or more than one dim",
    written_between: "`y`: `twice` writes between `n` and `y`",
    written_before_the_sum: "`y`: `twice` writes between `y` and `z`",
    gate_of_the_other_half: "`y`: `z` is not silu(`gate`) * `up`",
    up_read_twice: "`y`: 2 nodes read `up`",
    scaled_sum: "`y`: `z` is not a plain sum of two tensors",
    broadcast_sum: "`y`: `r` has another shape or dtype than `y`",
    doubled: "`y`: `z` is not a plain sum of two tensors",
}


@pytest.mark.parametrize("make", REASONS, ids=lambda make: make.__name__)
def test_near_misses_stay_apart_with_the_reason(make: Make) -> None:
    before = of_graph(make)
    result = FuseLinear().run(before, CONTEXT)
    assert REASONS[make] in messages(result, False)
    (wanted,) = {node.name for node in calls(before.graphs["verify"], aten.linear.default)} - {"r"}
    assert f"`{wanted}` takes in" not in " ".join(messages(result, True))
    assert torch.equal(outcome(before), outcome(result.program))


@pytest.mark.parametrize("swapped", [False, True])
def test_operands_of_sum_and_product_come_in_any_order(swapped: bool) -> None:
    def make(b: GraphBuilder, x: Node, w: dict[str, Node]) -> Node:
        gate, up = halves(b, b.call(aten.linear.default, normed(b, x, w), w["half"], name="y"))
        pair = [b.call(aten.silu.default, gate), up]
        z = b.call(aten.mul.Tensor, *(reversed(pair) if swapped else pair))
        other = b.call(aten.narrow.default, x, -1, 0, 4)
        return b.call(aten.add.Tensor, *((z, other) if swapped else (other, z)))

    before = of_graph(make)
    result = fuse(before)
    assert messages(result, True) == {"`y` takes in its norm, silu(gate) * up, the residual"}
    assert torch.equal(outcome(before), outcome(result.program))
