"""rewrite-negative-indices on programs: same bits, every index in range, and only index operands and layouts move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.diagnostics import DiagnosticError
from specc.ir.clone import clone
from specc.ir.edit import finish, modules
from specc.ir.interpreter import Event, IndexRangeError, Poison, init_state, run_step
from specc.ir.port import ValueRange
from specc.ir.printer import fingerprint
from specc.lower.assemble import lower
from specc.manager import PassContext, Pipeline
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table
from specc.passes.rewrite_negative_indices import RewriteNegativeIndices, index_safe
from specc.program import INDEX_SAFE, DecodeProgram
from specc.spec import from_mapping
from specc.spec.load import load

aten = torch.ops.aten
SPECS = Path(__file__).resolve().parents[2] / "specs"
VOCABULARY = 29
# nodes (with the root), steps, layers. Layers equal to nodes + 1, and paths as long as tables, must not confuse it.
SIZES = [(3, 1, 1), (3, 2, 4), (5, 4, 2), (9, 3, 2)]
Tensors = dict[str, Any]


def _lower(nodes: int, steps: int, layers: int, **sections: Any) -> DecodeProgram:
    config = {
        "num_hidden_layers": layers,
        "hidden_size": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "intermediate_size": 24,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 128,
    }
    draft = {"method": "prompt_lookup", "tree": "dynamic", "top_k": 3, "num_steps": steps}
    mapping: dict[str, Any] = {
        "specc": 1,
        "name": "small",
        "target": {"family": "llama", "config": config},
        "draft": draft | {"num_speculative_tokens": nodes - 1},
        "runtime": {"max_batch_size": 3, "max_sequence_length": 40, "dtype": "float64"},
    }
    spec = from_mapping(mapping | sections).spec
    program = lower(spec)
    weights = random_weights(weight_table(spec.target.geometry), spec.target.geometry, 0, torch.float64)
    return replace(program, attributes={**program.attributes, "test_weights": weights})


@cache
def programs(nodes: int, steps: int, layers: int) -> tuple[DecodeProgram, DecodeProgram, Tensors]:
    """Before, after, weights."""
    made = _lower(nodes, steps, layers)
    weights = made.attributes["test_weights"]
    before = replace(made, attributes={}, graphs={name: made.graphs[name] for name in ("prefill", "verify")})
    return before, RewriteNegativeIndices().run(before, PassContext()).program, dict(weights)


@st.composite
def trees(draw: st.DrawFn, nodes: int, steps: int, batch: int = 2) -> Tensors:
    """tokens, parent, valid [B,N]: depth at most `steps`, padding last."""
    rows: dict[str, list[list[Any]]] = {"tokens": [], "parent": [], "valid": []}
    for _ in range(batch):
        used = draw(st.integers(1, nodes))
        parent, depth = [-1], [0]
        for node in range(1, used):
            allowed = [other for other in range(node) if depth[other] < steps]
            above = draw(st.sampled_from(allowed))
            parent.append(above)
            depth.append(depth[above] + 1)
        rows["tokens"].append(draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=nodes, max_size=nodes)))
        rows["parent"].append(parent + [0] * (nodes - used))
        rows["valid"].append([True] * used + [False] * (nodes - used))
    return {name: torch.tensor(value) for name, value in rows.items()}


def filled_state(program: DecodeProgram, batch: int = 2, seed: int = 0) -> Tensors:
    """A state with random cache rows and ragged lengths."""
    state = init_state(program, batch)
    generator = torch.Generator().manual_seed(seed)
    for name in ("k_cache", "v_cache"):
        state[name] = torch.randn(state[name].shape, generator=generator, dtype=state[name].dtype)
    state["length"] = torch.tensor([3, 0, 7, 1][:batch])
    return state


def verify(program: DecodeProgram, weights: Tensors, tree: Tensors, **options: Any) -> Tensors:
    slots, results = run_step(program, "verify", filled_state(program), weights, tree, **options)
    return slots | results


def assert_same_bits(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


BRANCHED = {
    "tokens": torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 0]]),
    "parent": torch.tensor([[-1, 0, 1, 0, 2], [-1, 0, 0, 2, 0]]),
    "valid": torch.tensor([[True, True, True, True, True], [True, True, True, True, False]]),
}


@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=12)
@given(data=st.data())
def test_verify_keeps_every_bit_and_no_index_is_out_of_range(size: tuple[int, int, int], data: st.DataObject) -> None:
    before, after, weights = programs(*size)
    tree = data.draw(trees(size[0], size[1]))
    expected = verify(before, weights, tree)
    assert_same_bits(verify(after, weights, tree, strict=True), expected)
    assert_same_bits(verify(after, weights, tree, strict=True, poison=True), expected)
    with pytest.raises(IndexRangeError):
        verify(before, weights, tree, strict=True)


def test_the_dummy_row_is_poisoned_and_the_mask_is_what_hides_it() -> None:
    before, after, weights = programs(5, 4, 2)
    nodes = after.graphs["verify"].graph.nodes
    marked = {node.name: node.meta["poison"] for node in nodes if "poison" in node.meta}
    assert marked == dict.fromkeys(("k_table", "v_table"), Poison(dim=2, start=0, stop=1))
    unmasked = _edited(after, lambda item: _rewire(item, "own_valid", aten.ge.Scalar, ("own_path", -1)))
    expected = verify(before, weights, BRANCHED)
    poisoned = verify(unmasked, weights, BRANCHED, poison=True)
    assert not torch.equal(poisoned["logits"], expected["logits"])


def _watched(program: DecodeProgram, weights: Tensors, name: str) -> list[torch.Tensor]:
    """The values of one node, in the order of the token loop."""
    seen: list[torch.Tensor] = []

    def watch(event: Event) -> None:
        if event.node.name == name and event.node.op != "placeholder":
            seen.append(event.value)

    verify(program, weights, BRANCHED, hooks=[watch])
    return seen


def test_depths_and_positions_count_from_the_unshifted_tree() -> None:
    _, after, weights = programs(5, 4, 2)
    depths = torch.tensor([[0, 1, 2, 1, 3], [0, 1, 1, 2, 0]])
    assert torch.equal(torch.cat(_watched(after, weights, "depth"), 1), depths)
    lengths = torch.tensor([[3], [0]])
    assert torch.equal(torch.cat(_watched(after, weights, "positions"), 1), depths + lengths)
    paths = torch.cat(_watched(after, weights, "own_path"), 1)
    assert paths[0, 4].tolist() == [0, 1, 2, 4, -1], "path entries are node numbers, padded with -1"


def test_shifted_numbers_feed_index_operands_only() -> None:
    _, after, _ = programs(5, 4, 2)
    shifted = [
        node
        for module in modules(after.graphs["verify"])
        for node in module.graph.nodes
        if node.name in ("parent_row", "own_row", "node_row")
    ]
    assert sorted(node.name for node in shifted) == ["node_row", "node_row", "own_row", "parent_row"]
    for node in shifted:
        assert {user.target for user in node.users} <= {aten.index.Tensor, aten.select_scatter.default}
        assert len(node.users) == 2, "computed once, used for both tables"


def test_prefill_reads_the_last_row_of_an_empty_prompt_as_before() -> None:
    before, after, weights = programs(5, 4, 2)
    inputs = {"input_ids": torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0]]), "lengths": torch.tensor([4, 2, 0])}
    state = filled_state(before, 3)
    expected = run_step(before, "prefill", state, weights, inputs)
    got = run_step(after, "prefill", state, weights, inputs, strict=True)
    for left, right in zip(got, expected, strict=True):
        assert_same_bits(left, right)
    with pytest.raises(IndexRangeError):
        run_step(before, "prefill", state, weights, inputs, strict=True)


def _edited(program: DecodeProgram, edit: Callable[[GraphModule], object]) -> DecodeProgram:
    """A program whose verify graph was changed by hand."""
    graph = clone(program.graphs["verify"])
    done = [edit(item) for item in modules(graph)]
    assert any(done), "the mutation found nothing to change"
    return program.with_graphs(verify=finish(graph))


def _find(module: GraphModule, name: str) -> Node | None:
    return next((node for node in module.graph.nodes if node.name == name and node.op == "call_function"), None)


def _rewire(module: GraphModule, name: str, target: Any, args: tuple[Any, ...]) -> bool:
    """Make the node call something else; names among the arguments are nodes."""
    node = _find(module, name)
    if node is None:
        return False
    node.target = target
    node.args = tuple(_find(module, item) if isinstance(item, str) else item for item in args)
    return True


def _bypass(module: GraphModule, name: str) -> bool:
    """All users read the operand instead: the +1 is missing."""
    node = _find(module, name)
    if node is None:
        return False
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    return True


def _add_one(module: GraphModule, name: str, users: Callable[[Node], bool] = lambda user: True) -> bool:
    """Chosen users read the node plus 1."""
    node = _find(module, name)
    if node is None:
        return False
    with module.graph.inserting_after(node):
        more = module.graph.call_function(aten.add.Tensor, (node, 1))
    node.replace_all_uses_with(more, delete_user_cb=lambda user: user is not more and users(user))
    return True


MUTATIONS: dict[str, Callable[[GraphModule], bool]] = {
    "the parent shift is skipped": lambda item: _bypass(item, "parent_row"),
    "the path shift is skipped": lambda item: _bypass(item, "own_row"),
    "rows are written unshifted": lambda item: _bypass(item, "node_row"),
    "positions derive from shifted parents": lambda item: _add_one(
        item, "depth", lambda user: user.name == "positions"
    ),
    "depths derive from shifted parents": lambda item: _add_one(item, "parent_depth"),
    "path values are shifted": lambda item: _add_one(item, "own_path", lambda user: user.name == "squeeze_dim_1"),
    "the first node is dropped from the results": lambda item: (
        _rewire(item, "k_table_rows", aten.narrow.default, ("getitem", 2, 0, 5))
        if _find(item, "k_table_rows")
        else False
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_shift_is_found_by_running_before_and_after(name: str) -> None:
    before, after, weights = programs(5, 4, 2)
    mutant = _edited(after, MUTATIONS[name])
    expected = verify(before, weights, BRANCHED)
    try:
        got = verify(mutant, weights, BRANCHED, strict=True)
    except IndexRangeError:
        return
    assert any(not torch.equal(got[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ["the parent shift is skipped", "the path shift is skipped"])
def test_a_missing_shift_breaks_the_proof(name: str) -> None:
    _, after, _ = programs(5, 4, 2)
    assert index_safe(after) == []
    reasons = index_safe(_edited(after, MUTATIONS[name]))
    assert reasons
    assert all(reason.startswith("verify: ") and "may be [-1, " in reason for reason in reasons)


def test_the_property_fails_before_with_node_interval_and_origin() -> None:
    before, _, _ = programs(5, 4, 2)
    reasons = "\n".join(index_safe(before))
    assert "`parent_depth`: index `parent_or_committed` of index may be [-1, 3] (-1: committed)" in reasons
    assert "`parent` in [-1, 3] (-1: committed), declared input" in reasons
    assert "prefill: `last_hidden`: index `last_row` of index may be [-1, T - 1]" in reasons


def test_notes_say_what_was_done_and_why_not() -> None:
    before, _, _ = programs(5, 4, 2)
    notes = RewriteNegativeIndices().run(before, PassContext()).notes
    fired = [note.message for note in notes if note.fired]
    assert sum("dummy root" in message for message in fired) == 2
    assert sum("padding (-1) reads row 0" in message for message in fired) == 2
    assert any("wraps around in eager torch" in message for message in fired)
    assert any("[0, B - 1] is inside [0, B - 1]" in note.message for note in notes if not note.fired)
    assert all(note.keys for note in notes if note.graph == "verify")


def test_a_second_run_changes_nothing_and_the_input_is_untouched() -> None:
    before, after, _ = programs(3, 2, 4)
    mark = fingerprint(before)
    again = RewriteNegativeIndices().run(after, PassContext())
    assert not again.changed
    assert again.program is after
    RewriteNegativeIndices().run(before, PassContext())
    assert fingerprint(before) == mark


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_program_is_proved(path: Path) -> None:
    result = Pipeline((RewriteNegativeIndices(),)).run(lower(load(path).spec))
    assert INDEX_SAFE in result.program.properties
    assert index_safe(result.program) == []


def test_an_undeclared_input_is_refused_with_its_name_and_the_remedy() -> None:
    before, _, _ = programs(5, 4, 2)
    unknown = replace(before, ranges={key: value for key, value in before.ranges.items() if key != "input:tokens"})
    with pytest.raises(DiagnosticError) as caught:
        RewriteNegativeIndices().run(unknown, PassContext())
    (finding,) = caught.value.diagnostics
    assert finding.code == "SPC322"
    assert "`token`" in finding.message
    assert "declare the range" in finding.help
    assert any("an undeclared input" in note for note in finding.notes)


def test_a_parent_past_the_table_is_refused() -> None:
    before, _, _ = programs(5, 4, 2)
    wrong = replace(before, ranges={**before.ranges, "input:parent": ValueRange(-1, 6, "committed")})
    with pytest.raises(DiagnosticError) as caught:
        RewriteNegativeIndices().run(wrong, PassContext())
    assert {finding.code for finding in caught.value.diagnostics} == {"SPC321"}
    assert any("[-1, 6]" in finding.message for finding in caught.value.diagnostics)


def test_findings_of_all_graphs_come_at_once_with_their_places() -> None:
    before, _, _ = programs(5, 4, 2)
    unknown = replace(before, ranges={"input:lengths": before.ranges["input:lengths"]})
    with pytest.raises(DiagnosticError) as caught:
        RewriteNegativeIndices().run(unknown, PassContext())
    messages = " ".join(finding.message for finding in caught.value.diagnostics)
    assert "embedding" in messages
    assert "append_rows" in messages
