"""Ranking and packing of candidates: ties, NaN, budgets around the number of candidates."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.ir import ops
from specc.ir.dims import BATCH
from specc.lower.config import DraftConfig
from specc.lower.context import LowerContext
from specc.lower.drafts.dynamic import Candidates, choose
from specc.lower.step import StepBuilder
from specc.lower.transformer import ModelInfo
from specc.models.geometry import transformer_geometry
from specc.program import Slot
from specc.testing import check_ancestor_closed, dynamic_tree
from specc.testing.draft_oracles import best_indices, expand_candidates, prune, rerank
from tests.unit.decoding_fixtures import SIZES
from tests.unit.test_testing_drafts import seeded_drafter

HOSTILE = [0.0, -0.0, 1e-9, -1e-9, -0.5, -0.5, -2.0, -math.inf, math.nan]
Scores = st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=12)


@given(Scores, st.data())
def test_stable_topk_is_the_reference_order(scores: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    values, indices = ops.stable_topk(torch.tensor([scores, scores[::-1]]), k)
    assert indices.tolist() == [best_indices(scores, k), best_indices(scores[::-1], k)]
    assert not values.isnan().any()


@given(Scores)
def test_score_rank_is_the_inverse_of_the_reference_order(scores: list[float]) -> None:
    rank = ops.score_rank(torch.tensor([scores]))[0].tolist()
    assert [rank.index(place) for place in range(len(scores))] == best_indices(scores, len(scores))


def chosen_tree(draft: DraftConfig, candidates: list, root: int) -> dict[str, torch.Tensor]:  # type: ignore[type-arg]
    """The `choose` graph on these candidates."""
    slots = {"root_token": Slot("root_token", (BATCH,), torch.int64, "committed", "")}
    geometry = transformer_geometry("llama", SIZES)
    target = ModelInfo(geometry, "", torch.float64, {})
    nodes = draft.num_speculative_tokens + 1
    ctx = LowerContext(slots, {}, target, None, nodes, nodes, False, 64, 60, torch.float64)
    b = StepBuilder(slots, {})
    shape = (BATCH, len(candidates))
    names = {"token": torch.int64, "parent": torch.int64, "log_prob": torch.float32, "score": torch.float32}
    made = choose(b, ctx, draft, Candidates(*(b.input(name, shape, kind) for name, kind in names.items())))
    values = {
        "token": [c.token for c in candidates],
        "parent": [c.parent for c in candidates],
        "log_prob": [0.5 * i for i in range(len(candidates))],
        "score": [c.score for c in candidates],
    }
    assert made.parent is not None
    assert made.log_probs is not None
    results = {"tokens": made.tokens, "parent": made.parent, "valid": made.valid, "log_probs": made.log_probs}
    for name, node in results.items():
        b.result(name, node)
    module = b.finish()
    inputs = {name: torch.tensor([values[name]], dtype=kind) for name, kind in names.items()}
    given_ports = [node.meta["port"] for node in module.graph.nodes if node.op == "placeholder"]
    args = [inputs[p.name] if p.kind == "input" else torch.tensor([root]) for p in given_ports]
    return dict(zip(results, module(*args), strict=True))


@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 14),
    st.sampled_from([None, 0.0, 1.0, 2.5]),
    st.sampled_from([None, -1.0, -3.0]),
)
def test_the_chosen_tree_is_the_reference_tree_and_closed(
    seed: int, num_steps: int, top_k: int, budget: int, margin: float | None, least: float | None
) -> None:
    drafter = seeded_drafter(seed, 4, HOSTILE)
    candidates = expand_candidates(drafter, num_steps, top_k)
    draft = DraftConfig("draft_model", "dynamic", budget, num_steps, top_k, margin=margin, min_log_prob=least)
    found = chosen_tree(draft, candidates, 9)
    expected = dynamic_tree(drafter, 9, num_steps, top_k, budget, margin, least)
    assert found["tokens"][0].tolist() == list(expected.tree.tokens)
    assert found["parent"][0].tolist() == list(expected.tree.parent)
    assert found["valid"][0].tolist() == list(expected.tree.valid)
    kept = prune(candidates, rerank(candidates, budget), margin, least)
    check_ancestor_closed([c.parent for c in candidates], kept)
    # A node keeps its own candidate's log-probability, padding and the root have none.
    padding = budget - len(kept)
    assert found["log_probs"][0].tolist() == [0.0, *[0.5 * i for i in kept], *[0.0] * padding]


@pytest.mark.parametrize("budget", [11, 12, 13])
def test_a_budget_around_the_number_of_candidates(budget: int) -> None:
    candidates = expand_candidates(seeded_drafter(1, 3), 2, 3)
    assert len(candidates) == 12
    found = chosen_tree(DraftConfig("draft_model", "dynamic", budget, 2, 3), candidates, 0)
    assert int(found["valid"].sum()) == min(budget, 12) + 1


def test_drawn_drafts_refuse_shapes_that_depend_on_the_draws() -> None:
    with pytest.raises(ValueError, match="drawn drafts"):
        DraftConfig("draft_model", "dynamic", 4, 2, 2, draws=True)
    with pytest.raises(ValueError, match="drawn drafts"):
        DraftConfig("draft_model", "static", 1, 1, 1, choices=((0,),), draws=True, margin=1.0)


def test_the_new_ops_keep_their_declared_schemas_and_shapes() -> None:
    keys, pairs = torch.arange(3), torch.arange(6).view(3, 2)
    calls = (
        (ops.counter_uniform, (keys, keys, 2)),
        (ops.counter_uniform_rows, (keys, pairs, pairs, 5)),
        (ops.sampling_probs, (torch.randn(2, 3, 7), 0.7, 3, 0.8, torch.float64)),
        (ops.sample_index, (torch.rand(3, 5), torch.rand(3, dtype=torch.float64))),
        (ops.int_table, (keys, [1, 2, 3, 4], [2, 2])),
        (ops.stable_topk, (torch.randn(2, 3, 6), 2)),
        (ops.score_rank, (torch.randn(2, 6),)),
        (
            ops.pack_tree,
            (torch.tensor([[True, False, True]]), keys[None], keys[None] - 1, torch.randn(1, 3), keys[:1], 3),
        ),
    )
    for target, args in calls:
        torch.library.opcheck(target, args, test_utils=("test_schema", "test_faketensor"))


def test_packed_nodes_name_the_candidate_they_come_from() -> None:
    chosen = torch.tensor([[True, False, True]])
    token, parent = torch.tensor([[5, 6, 7]]), torch.tensor([[-1, -1, 0]])
    packed = ops.pack_tree(chosen, token, parent, torch.zeros(1, 3), torch.tensor([9]), 5)
    assert packed[0].tolist() == [[9, 5, 7, 0, 0]]
    assert packed[4].tolist() == [[0, 1, 3, 0, 0]]
