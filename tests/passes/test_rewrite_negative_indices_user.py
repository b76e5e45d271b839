"""rewrite_negative_indices on users' functions, in the style of public tree-decoding code, from both tracers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.fx import GraphModule, symbolic_trace

from specc.diagnostics import Diagnostic, DiagnosticError
from specc.ir.clone import clone
from specc.ir.interpreter import IndexRangeError, Interpreter
from specc.ir.port import ValueRange
from specc.ir.ranges.indices import all_index_uses
from specc.manager import Note
from specc.passes.rewrite_negative_indices import Policy, rewrite_negative_indices, unsafe_indices
from specc.passes.rewrite_negative_indices.types import record_types
from tests.passes.tree_decoding_functions import (
    DEPTH,
    HIDDEN,
    INDEX_NAMES,
    NODES,
    PAD,
    PATH,
    PATHS,
    RAISES,
    TOKENS,
    WRAPS,
    Case,
    Inputs,
    Ranges,
    logits_table,
    mask_filter,
    padded_candidates,
    paths,
    store_rows,
)


def exported(function: Callable[..., Any], inputs: Inputs) -> GraphModule:
    """Through torch.export; placeholders are called as the inputs are."""

    class Wrapped(torch.nn.Module):
        def forward(self, **named: torch.Tensor) -> Any:
            return function(**named)

    return torch.export.export(Wrapped(), (), dict(inputs)).module()


def traced(function: Callable[..., Any], inputs: Inputs) -> GraphModule:
    return symbolic_trace(function)


TRACERS = [exported, traced]


def rewrite(
    tracer: Callable[..., GraphModule], function: Callable[..., Any], inputs: Inputs, ranges: Ranges, **options: Any
) -> tuple[GraphModule, GraphModule, tuple[Note, ...]]:
    """(the traced module, the rewritten one, notes)."""
    module = tracer(function, inputs)
    made, notes = rewrite_negative_indices(
        module, ranges, example_inputs=None if tracer is exported else list(inputs.values()), **options
    )
    return module, made, notes


def strict(module: GraphModule, inputs: Inputs) -> Any:
    clones = [value.clone() for value in inputs.values()]
    result = Interpreter(module, strict=True).run(*clones)
    return result[0] if isinstance(result, tuple) and len(result) == 1 else result


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", WRAPS)
def test_wrap_around_is_rewritten_where_eager_torch_wraps(name: str, tracer: Callable[..., GraphModule]) -> None:
    case = WRAPS[name]
    expected = case.function(*(value.clone() for value in case.inputs.values()))
    before, after, notes = rewrite(tracer, case.function, case.inputs, case.ranges)
    assert torch.equal(strict(after, case.inputs), expected)
    assert torch.equal(after(*(value.clone() for value in case.inputs.values())), expected)
    assert any(note.fired for note in notes)
    assert list(unsafe_indices(after, case.ranges)) == []
    assert list(unsafe_indices(_typed(before, case.inputs), case.ranges)) != []


def _typed(module: GraphModule, inputs: Inputs) -> GraphModule:
    made = clone(module)
    record_types(made, list(inputs.values()))
    return made


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", ["pad token behind the last", "logits by retrieve indices", "cache rows by path"])
def test_the_strict_executor_refuses_the_function_before(name: str, tracer: Callable[..., GraphModule]) -> None:
    case = WRAPS[name]
    with pytest.raises(IndexRangeError):
        strict(tracer(case.function, case.inputs), case.inputs)


@pytest.mark.parametrize("tracer", TRACERS)
@given(data=st.data())
def test_every_path_table_reads_the_same_tokens(tracer: Callable[..., GraphModule], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(-1, NODES - 1), min_size=PATHS * DEPTH, max_size=PATHS * DEPTH))
    inputs = {"tree_tokens": TOKENS, "retrieve": torch.tensor(numbers).reshape(PATHS, DEPTH)}
    after = _rewritten_candidates(tracer)
    assert torch.equal(strict(after, inputs), padded_candidates(**inputs))


_MADE: dict[str, GraphModule] = {}


def _rewritten_candidates(tracer: Callable[..., GraphModule]) -> GraphModule:
    if tracer.__name__ not in _MADE:
        case = WRAPS["pad token behind the last"]
        _MADE[tracer.__name__] = rewrite(tracer, padded_candidates, case.inputs, case.ranges)[1]
    return _MADE[tracer.__name__]


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_function_that_clamps_and_masks_itself_stays_as_it_is(tracer: Callable[..., GraphModule]) -> None:
    inputs = {"tokens": TOKENS, "retrieve": paths()}
    before, after, notes = rewrite(tracer, mask_filter, inputs, {"retrieve": PATH})
    assert not any(note.fired for note in notes)
    assert [node.name for node in after.graph.nodes] == [node.name for node in before.graph.nodes]
    assert any("[0, 6] is inside [0, 6]" in note.message for note in notes)


def _declared(name: str, value: ValueRange) -> Ranges:
    return {INDEX_NAMES.get(name, "slots"): value}


def refused(tracer: Callable[..., GraphModule], case: Case, ranges: Ranges, **options: Any) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        rewrite(tracer, case.function, case.inputs, ranges, **options)
    (finding,) = caught.value.diagnostics
    return finding


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", RAISES)
@pytest.mark.parametrize("meaning", [None, "wrap", "committed"])
def test_minus_one_is_refused_where_eager_torch_raises(
    name: str, tracer: Callable[..., GraphModule], meaning: Any
) -> None:
    """Never wrapped, whatever the caller says: eager torch raises there."""
    with pytest.raises((RuntimeError, IndexError)):
        RAISES[name].function(*(value.clone() for value in RAISES[name].inputs.values()))
    finding = refused(tracer, RAISES[name], _declared(name, ValueRange(-1, NODES - 1, meaning)))
    assert finding.code == "SPC320"
    assert "may be -1" in finding.message
    assert finding.help
    assert any("[-1, 6]" in note for note in finding.notes)
    source = INDEX_NAMES.get(name, "slots")
    assert any(f"`{source}` in [-1, 6]" in note and "declared input" in note for note in finding.notes)


@pytest.mark.parametrize("meaning", ["committed", "pad"])
def test_the_remedy_depends_on_what_minus_one_means(meaning: Any) -> None:
    finding = refused(
        exported, RAISES["gather"], {"parent": ValueRange(-1, 6, meaning)}, policy=Policy(mask_padding=False)
    )
    assert ("dummy root" in finding.help) is (meaning == "committed")


def test_the_users_own_line_is_named() -> None:
    class Scores(torch.nn.Module):
        def forward(self, scores: torch.Tensor, parent: torch.Tensor) -> torch.Tensor:
            return scores.gather(1, parent)

    module = torch.export.export(Scores(), tuple(RAISES["gather"].inputs.values())).module()
    with pytest.raises(DiagnosticError) as caught:
        rewrite_negative_indices(module, {"parent": (-1, 6)})
    (finding,) = caught.value.diagnostics
    place = next(note for note in finding.notes if note.startswith("made at "))
    assert "test_rewrite_negative_indices_user.py" in place
    assert "return scores.gather(1, parent)" in place


def masked(name: str, case: Case) -> torch.Tensor:
    """What the padded function means: padded reads are 0, padded writes are dropped."""
    if name == "gather":
        scores, parent = case.inputs["scores"], case.inputs["parent"]
        return torch.where(parent >= 0, scores.gather(1, parent.clamp(min=0)), torch.zeros(()))
    if name in ("embedding", "index_select"):
        table, index = case.inputs["table"], case.inputs[INDEX_NAMES[name]]
        return torch.where((index >= 0).unsqueeze(-1), table[index.clamp(min=0)], torch.zeros(()))
    out = case.inputs["cache"].clone()
    for slot, row in zip(case.inputs["slots"].tolist(), case.inputs["rows"], strict=True):
        if slot >= 0:
            out[slot] = row
    return out


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", [name for name in RAISES if name != "index_copy_"])
def test_padding_is_clamped_and_masked_where_the_caller_says_so(name: str, tracer: Callable[..., GraphModule]) -> None:
    case = RAISES[name]
    if name == "gather":
        case = Case(lambda scores, parent: scores.gather(1, parent), case.inputs, {})
    ranges = _declared(name, PAD)
    _, after, notes = rewrite(tracer, case.function, case.inputs, ranges)
    assert torch.equal(strict(after, case.inputs), masked(name, case))
    assert any(note.fired and "-1 means padding" in note.message for note in notes)
    assert list(unsafe_indices(after, ranges)) == []


@pytest.mark.parametrize("tracer", TRACERS)
@given(numbers=st.lists(st.integers(-1, NODES - 1), min_size=3, max_size=3, unique=True))
def test_padded_slots_never_touch_a_row(tracer: Callable[..., GraphModule], numbers: list[int]) -> None:
    case = Case(store_rows, {**RAISES["index_copy"].inputs, "slots": torch.tensor(numbers)}, {})
    key = f"store {tracer.__name__}"
    if key not in _MADE:
        _MADE[key] = rewrite(tracer, store_rows, case.inputs, {"slots": PAD})[1]
    assert torch.equal(strict(_MADE[key], case.inputs), masked("index_copy", case))


@pytest.mark.parametrize("tracer", TRACERS)
def test_padding_of_a_write_in_place_is_refused_with_the_reason(tracer: Callable[..., GraphModule]) -> None:
    finding = refused(tracer, RAISES["index_copy_"], {"slots": PAD})
    assert finding.code == "SPC320"
    assert "not in place" in finding.help


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize(("low", "high"), [(0, NODES), (-NODES - 1, 0)])
def test_an_index_past_the_table_is_refused(tracer: Callable[..., GraphModule], low: int, high: int) -> None:
    case = WRAPS["logits by retrieve indices"]
    finding = refused(tracer, case, {"retrieve": (low, high)})
    assert finding.code == "SPC321"
    assert f"[{low}, {high}]" in finding.message


def test_an_index_that_is_bounded_on_one_side_alone_is_not_an_unknown_one() -> None:
    def rows_from_zero(table: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return table[place.clamp(min=0)]

    with pytest.raises(DiagnosticError) as caught:
        rewrite(traced, rows_from_zero, {"table": logits_table()[0], "place": torch.tensor([3, -1])}, {})
    assert [finding.code for finding in caught.value.diagnostics] == ["SPC321"]


@pytest.mark.parametrize("tracer", TRACERS)
def test_an_undeclared_index_is_refused(tracer: Callable[..., GraphModule]) -> None:
    finding = refused(tracer, WRAPS["logits by retrieve indices"], {})
    assert finding.code == "SPC322"
    assert any("an undeclared input" in note for note in finding.notes)


def test_a_graph_without_shapes_is_refused_unless_examples_are_given() -> None:
    case = WRAPS["logits by retrieve indices"]
    with pytest.raises(DiagnosticError) as caught:
        rewrite_negative_indices(symbolic_trace(case.function), case.ranges)
    (finding,) = caught.value.diagnostics
    assert finding.code == "SPC322"
    assert "example_inputs" in finding.help


def test_an_embedding_module_is_an_index_too() -> None:
    class Draft(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(NODES, HIDDEN)

        def forward(self, draft: torch.Tensor) -> torch.Tensor:
            return self.table(draft)

    module = symbolic_trace(Draft())
    tokens = torch.tensor([[2, -1, 6]])
    with pytest.raises(DiagnosticError):
        rewrite_negative_indices(module, {"draft": (-1, 6)}, example_inputs=[tokens])
    made, _ = rewrite_negative_indices(module, {"draft": PAD}, example_inputs=[tokens])
    with torch.no_grad():
        result = made(tokens)
    assert torch.equal(result[0, 1], torch.zeros(HIDDEN))
    assert torch.equal(result[0, 2], module.table.weight[6])  # type: ignore[union-attr]


def test_sizes_that_are_not_fixed_are_proved_for_all_sizes() -> None:
    class Newest(torch.nn.Module):
        def forward(self, logits: torch.Tensor, retrieve: torch.Tensor) -> torch.Tensor:
            lengths = (retrieve >= 0).sum(dim=1).clamp(max=1)
            return logits[0, lengths - 1] + logits[0, -1]

    rows = torch.export.Dim("rows", min=2, max=64)
    module = torch.export.export(Newest(), (logits_table(), paths()), dynamic_shapes=({1: rows}, None)).module()
    made, notes = rewrite_negative_indices(module)
    assert sum(note.fired for note in notes) == 2
    for size in (2, 5, 9):
        wide = {"logits": torch.randn(2, size, HIDDEN), "retrieve": torch.tensor([[-1, -1, -1]] * PATHS)}
        assert torch.equal(strict(made, wide), Newest()(**wide))


def masked_rows(table: torch.Tensor, mask: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.index.Tensor(table, [mask, place])


def test_a_mask_takes_as_many_dims_as_it_has() -> None:
    """table [2, 3, 5]: the mask takes the first two, so `place` may be up to 4."""
    mask = torch.tensor([[True, False, False], [False, True, False]])
    inputs = {"table": torch.arange(30).reshape(2, 3, 5), "mask": mask, "place": torch.tensor([4, -1])}
    _, made, _ = rewrite(traced, masked_rows, inputs, {"place": (-5, 4)})
    assert strict(made, inputs).tolist() == [4, 24]


def first_valid(tokens: torch.Tensor, retrieve: torch.Tensor) -> torch.Tensor:
    """Reads row 0 of what a mask leaves over."""
    kept = tokens[retrieve[:, 0] >= 0]
    return kept[torch.zeros_like(retrieve[:1, 0])]


def test_a_size_that_depends_on_data_may_be_zero() -> None:
    inputs = {"tokens": torch.arange(PATHS), "retrieve": paths()}
    with pytest.raises(DiagnosticError) as caught:
        rewrite(traced, first_valid, inputs, {})
    (finding,) = caught.value.diagnostics
    assert finding.code == "SPC321"


def test_the_users_module_stays_as_it_is() -> None:
    case = WRAPS["logits by retrieve indices"]
    module = exported(case.function, case.inputs)
    before = module.code
    rewrite_negative_indices(module, case.ranges)
    assert module.code == before


EAGER: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "gather": lambda x, i: x.gather(0, i),
    "index_select": lambda x, i: x.index_select(0, i),
    "scatter": lambda x, i: x.scatter(0, i, x[:1]),
    "scatter_add": lambda x, i: x.scatter_add(0, i, x[:1]),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i, x[:1], "amax"),
    "index_add": lambda x, i: x.index_add(0, i, x[:1]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:1]),
    "index_fill": lambda x, i: x.index_fill(0, i, 0),
    "embedding": lambda x, i: F.embedding(i, x.unsqueeze(1)),
    "index": lambda x, i: x[i],
    "index_put": lambda x, i: x.index_put((i,), x[:1]),
    "take": lambda x, i: x.take(i),
    "put": lambda x, i: x.put(i, x[:1]),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i, 0),
    "select": lambda x, i: x.select(0, -1),
    "narrow": lambda x, i: x.narrow(0, -1, 1),
    "select_scatter": lambda x, i: x.select_scatter(x[0], 0, -1),
}


@pytest.mark.parametrize("name", EAGER)
def test_the_table_of_who_wraps_is_eager_torchs_own(name: str) -> None:
    x, i = torch.arange(4), torch.tensor([-1])
    try:
        EAGER[name](x, i)
        wraps = True
    except (RuntimeError, IndexError):
        wraps = False
    module = exported(EAGER[name], {"x": x, "i": torch.tensor([0])})
    uses = [use for use in all_index_uses(module) if use.op == name]
    assert uses, [node.target for node in module.graph.nodes]
    assert all((use.semantics == "wrap") is wraps for use in uses)
