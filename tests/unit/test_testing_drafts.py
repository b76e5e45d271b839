"""The reference drafters: EAGLE-2 trees, static trees, prompt lookup."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.testing import (
    check_ancestor_closed,
    check_distinct_siblings,
    check_padding,
    check_parent,
    choices,
    dynamic_tree,
    path_to,
    prompt_lookup_chain,
    prompt_lookup_tree,
    static_tree,
)
from specc.testing.draft_oracles import (
    Drafter,
    best_indices,
    closure,
    expand_candidates,
    float32,
    prune,
    rerank,
    suffix_matches,
)


def seeded_drafter(seed: int, vocab_size: int, values: Sequence[float] | None = None) -> Drafter:
    """A drafter whose log-probabilities depend on the path only; `values` to pick from, else random ones."""

    def log_probs(path: tuple[int, ...]) -> list[float]:
        rng = Random(hash((seed, *path)))
        if values is not None:
            return [rng.choice(values) for _ in range(vocab_size)]
        weights = [rng.random() ** 4 + 1e-3 for _ in range(vocab_size)]
        return [math.log(w / sum(weights)) for w in weights]

    return log_probs


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3))
def test_with_a_wide_beam_the_tree_holds_the_most_probable_paths(seed: int, num_steps: int, budget: int) -> None:
    vocab = 3
    drafter = seeded_drafter(seed, vocab)
    # A beam of vocab**num_steps expands everything, so the tree must be the best `budget` paths of all.
    every = [p for n in range(1, num_steps + 1) for p in itertools.product(range(vocab), repeat=n)]
    score = {p: sum(drafter(p[:k])[p[k]] for k in range(len(p))) for p in every}
    best = sorted(every, key=lambda p: -score[p])[:budget]
    got = dynamic_tree(drafter, 7, num_steps, vocab**num_steps, budget)
    paths = {tuple(got.tree.tokens[i] for i in path_to(got.tree, n)[1:]) for n in range(1, budget + 1)}
    assert paths == set(best)
    for node in range(1, budget + 1):
        path = tuple(got.tree.tokens[i] for i in path_to(got.tree, node)[1:])
        assert got.scores[node] == pytest.approx(score[path], abs=1e-5)


_HOSTILE = [0.0, -0.0, 1e-9, -1e-9, -0.5, -2.0, 3.0, -math.inf, math.nan]


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 20))
def test_ties_nan_and_infinities_never_orphan_a_node(seed: int, num_steps: int, top_k: int, budget: int) -> None:
    drafter = seeded_drafter(seed, 4, _HOSTILE)
    candidates = expand_candidates(drafter, num_steps, top_k)
    chosen = rerank(candidates, budget)
    assert closure(candidates, chosen) == set(chosen)
    check_ancestor_closed([c.parent for c in candidates], chosen)
    got = dynamic_tree(drafter, 1, num_steps, top_k, budget)
    assert got.tree.num_nodes == budget + 1
    assert got.tree.num_valid == min(budget, len(candidates)) + 1
    for check in (check_parent, check_padding, check_distinct_siblings):
        check(got.tree)


def test_a_tie_broken_the_other_way_orphans_a_node() -> None:
    # Every score ties at 0: the rule keeps the lowest indices, the opposite tie-break keeps children only.
    candidates = expand_candidates(lambda path: [0.0, 0.0], num_steps=2, top_k=2)
    scores = [c.score for c in candidates]
    wrong = sorted(range(len(scores)), key=lambda i: (-scores[i], -i))[:2]
    assert rerank(candidates, 2) == [0, 1]
    assert closure(candidates, wrong) != set(wrong)


@given(st.integers(0, 10**6), st.floats(0.0, 6.0), st.none() | st.floats(-8.0, 0.0))
def test_pruning_is_closed_and_keeps_what_is_above_both_bars(seed: int, margin: float, least: float | None) -> None:
    candidates = expand_candidates(seeded_drafter(seed, 4), 3, 3)
    chosen = rerank(candidates, 12)
    kept = prune(candidates, chosen, margin, least)
    assert closure(candidates, kept) == set(kept)
    best = max(candidates[i].score for i in chosen)
    bar = max(float32(best - margin), float32(least) if least is not None else -math.inf)
    assert kept == [i for i in chosen if candidates[i].score >= bar]
    assert prune(candidates, chosen) == chosen


def test_pruned_nodes_become_padding_at_the_end() -> None:
    sure = dynamic_tree(lambda path: [math.log(0.98), math.log(0.02)], 5, 2, 2, 6, path_log_prob_margin=1.0)
    assert sure.tree.parent == (-1, 0, 1, 0, 0, 0, 0)
    assert sure.tree.valid == (True,) * 3 + (False,) * 4
    assert sure.scores == (0.0, *(pytest.approx(n * math.log(0.98)) for n in (1, 2)), 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("budget", [5, 6, 7])
def test_budget_around_the_number_of_candidates(budget: int) -> None:
    got = dynamic_tree(seeded_drafter(1, 3), 0, num_steps=2, top_k=2, num_speculative_tokens=budget)
    assert len(got.candidates) == 6
    assert got.tree.num_valid == min(budget, 6) + 1


def test_best_indices_puts_nan_and_minus_infinity_last() -> None:
    assert best_indices([math.nan, -3.0, -math.inf, -1.0, -1.0], 5) == [3, 4, 1, 0, 2]


def test_top_k_one_is_a_greedy_chain() -> None:
    drafter = seeded_drafter(3, 5)
    got = dynamic_tree(drafter, 0, num_steps=4, top_k=1, num_speculative_tokens=4).tree
    assert got.parent == (-1, 0, 1, 2, 3)
    path: tuple[int, ...] = ()
    for token in got.tokens[1:]:
        row = list(drafter(path))
        assert token == row.index(max(row))
        path = (*path, token)


@given(choices(max_choices=8, max_depth=3, top_k=3), st.integers(0, 10**6))
def test_static_tree_puts_each_rank_path_at_its_rank(paths: list[list[int]], seed: int) -> None:
    drafter = seeded_drafter(seed, 4)
    tree = static_tree(paths, drafter, 9, len(paths) + 2)
    check_parent(tree)
    check_padding(tree)
    for node, ranks in enumerate(paths, start=1):
        nodes = path_to(tree, node)[1:]
        assert len(nodes) == len(ranks)
        text: tuple[int, ...] = ()
        for rank, step in zip(ranks, nodes, strict=True):
            row = list(drafter(text))
            assert sorted(row, reverse=True)[rank] == row[tree.tokens[step]]
            text = (*text, tree.tokens[step])


@given(st.lists(st.integers(0, 2), min_size=1, max_size=14), st.integers(1, 2), st.integers(0, 2))
def test_suffix_match_is_the_longest_and_latest(context: list[int], least: int, more: int) -> None:
    found, ends = suffix_matches(context, least, least + more)
    for n in range(least + more, least - 1, -1):
        places = [start + n for start in range(len(context) - n) if context[start : start + n] == context[-n:]]
        if places and len(context) > n:
            assert (found, ends) == (n, sorted(places, reverse=True))
            return
    assert (found, ends) == (0, [])


def test_prompt_lookup_chain_copies_what_followed_last_time() -> None:
    context = [5, 6, 7, 8, 1, 5, 6]
    tree = prompt_lookup_chain(context, 1, 3, 4)
    assert tree.tokens == (6, 7, 8, 1, 5)
    assert tree.parent == (-1, 0, 1, 2, 3)
    assert prompt_lookup_chain([1, 2, 3], 1, 3, 2).num_valid == 1
    assert prompt_lookup_chain([4], 1, 3, 2).num_valid == 1
    # The continuation ends with the context: the rest is padding.
    assert prompt_lookup_chain([3, 3], 1, 3, 4).tokens == (3, 3, 0, 0, 0)


def test_prompt_lookup_tree_merges_matches_into_a_trie() -> None:
    context = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3, 8, 1, 2]
    tree = prompt_lookup_tree(context, 1, 2, num_speculative_tokens=6, num_steps=2, top_k=2)
    # Latest first: 3 8, then 4 9, then 3 9 which shares the 3.
    assert tree.tokens == (2, 3, 8, 4, 9, 9, 0)
    assert tree.parent == (-1, 0, 1, 0, 3, 1, 0)
    assert prompt_lookup_tree(context, 1, 2, 6, num_steps=2, top_k=1).num_valid == 3
    assert prompt_lookup_tree(context, 1, 2, 3, num_steps=2, top_k=2).tokens == (2, 3, 8, 4)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 3), st.integers(1, 3))
def test_prompt_lookup_tree_holds_only_continuations_and_all_that_fit(
    context: list[int], num_steps: int, top_k: int
) -> None:
    tree = prompt_lookup_tree(context, 1, 3, 40, num_steps, top_k)
    for check in (check_parent, check_padding, check_distinct_siblings):
        check(tree)
    _, ends = suffix_matches(context, 1, 3)
    texts = {tuple(context[end : end + n]) for end in ends for n in range(1, num_steps + 1) if end + n <= len(context)}
    drafted = {tuple(tree.tokens[i] for i in path_to(tree, n)[1:]) for n in range(1, tree.num_valid)}
    assert drafted <= texts
    if top_k == 3:
        assert drafted == texts
