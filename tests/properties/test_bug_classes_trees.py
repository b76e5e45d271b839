"""Known bug classes of draft trees (public reports): shapes, budgets, orphans. On generated modules, end to end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
import torch

from specc.diagnostics import SpecError
from specc.spec import loads
from specc.testing import check_distinct_siblings, check_parent, check_superset, greedy_accept
from specc.testing.draft_tree import DraftTree, make_tree
from specc.testing.oracles import path_to
from specc.testing.tensors import trees_of
from tests.properties.bug_class_bench import (
    DEFERRED,
    DRAFTER,
    PROMPTS,
    VOCABULARY,
    Batch,
    Bench,
    Check,
    Edit,
    append,
    bench,
    check_accepted,
    check_caches,
    spec_text,
    swap,
    unchanged,
)


@pytest.fixture
def edit() -> Edit:
    """No fault; `test_planted_fault_is_seen` calls the tests with one."""
    return unchanged


def choices(paths: str) -> str:
    """A static tree by the draft model."""
    return f"{{{DRAFTER}, tree: static, choices: {paths}}}"


def prompts_of(seed: int, count: int) -> list[list[int]]:
    """Prompts of 1 to 6 random tokens."""
    rng = Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 6))] for _ in range(count)]


def test_superset_tree_accepts_no_less(edit: Edit) -> None:
    """TensorRT-LLM#10343: choices [[0],[1],[0,0]] accepted less than [[0],[0,0]], greedy (I26)."""
    small, large = bench(choices("[[0], [0, 0]]")), bench(choices("[[0], [1], [0, 0]]"), edit=edit)
    assert small.spec.is_chain
    assert not large.spec.is_chain
    more = deep = 0
    for seed in range(6):
        prompts = prompts_of(seed, 4)
        chain, tree = Batch.start(small, prompts), Batch.start(large, prompts)
        own, drafted = chain.draft(), tree.draft()
        assert torch.equal(own.tokens[:, [1, 2]], drafted.tokens[:, [1, 3]])
        less, most = chain.step().accept_length, tree.step().accept_length
        assert bool((most >= less).all())
        more += int((most > less).sum())
        deep += int((less == 2).sum())
        tree.check_plain(prompts)
    assert more > 0
    assert deep > 0


def test_planted_superset_accepts_no_less(edit: Edit) -> None:
    """TensorRT-LLM#10343, any tree: taking leaves away never lengthens what is accepted (I26)."""
    made, rng, longer = bench("tree", edit=edit), Random(3), 0
    for seed in range(5):
        prompts = prompts_of(seed + 20, 4)
        full = Batch.start(made, prompts)
        trees = [full.planted(row, rng, early_error=0.0, short=0.0) for row in range(4)]
        smaller = [thinned(tree, rng) for tree in trees]
        part = Batch.start(made, prompts)
        for less, most in zip(part.step(smaller).accept_length, full.step(trees).accept_length, strict=True):
            check_superset(int(less), int(most))
            longer += int(most > less)
    assert longer > 3


def thinned(tree: DraftTree, rng: Random) -> DraftTree:
    """A random part of the tree that has every node's parent, numbered anew."""
    number = {0: 0}
    for node in range(1, tree.num_valid):
        if tree.parent[node] in number and rng.random() < 0.7:
            number[node] = len(number)
    parent = [-1] + [number[tree.parent[node]] for node in list(number)[1:]]
    return make_tree([tree.tokens[node] for node in number], parent, tree.num_nodes)


def test_depth_one_tree(edit: Edit) -> None:
    """TensorRT-LLM#10323: [[0],[1],[2],[3]], all nodes children of the root."""
    made, accepted_nodes = bench(choices("[[0], [1], [2], [3]]"), edit=edit), set()
    assert made.spec.max_path == 2
    for seed in range(4):
        prompts = prompts_of(seed, 4)
        batch = Batch.start(made, prompts)
        for _ in range(3):
            draft = batch.draft()
            assert draft.parent.tolist() == [[-1, 0, 0, 0, 0]] * 4
            verified = batch.verify(draft)
            accepted = batch.step()
            check_accepted(draft, verified, accepted, made.spec, range(4))
            accepted_nodes |= set(accepted.path[:, 1].tolist())
        batch.check_plain(prompts)
        check_caches(batch)
    assert len(accepted_nodes - {0}) >= 2


def test_chain_written_as_a_tree(edit: Edit) -> None:
    """TensorRT-LLM#10325: [[0],[0,0],[0,0,0]] is the chain of three tokens, in drafts, acceptance and text."""
    tree, chain = bench(choices("[[0], [0, 0], [0, 0, 0]]"), "", edit), bench("chain", "")
    same_decoding(tree, chain)


def test_top_k_one_equals_chain(edit: Edit) -> None:
    """TensorRT-LLM PR 15842: a dynamic tree with top_k 1 differed from a chain."""
    dynamic = f"{{{DRAFTER}, tree: dynamic, num_speculative_tokens: 3, num_steps: 3, top_k: 1}}"
    same_decoding(bench(dynamic, "", edit), bench("chain", ""))


def same_decoding(one: Bench, other: Bench) -> None:
    """Both plain chains, without tree tensors, and equal in every step."""
    assert one.spec.is_chain
    pair = [Batch.start(each) for each in (one, other)]
    accepted_some = 0
    for _ in range(5):
        drafts = [batch.draft() for batch in pair]
        assert drafts[0].parent is None
        assert torch.equal(drafts[0].tokens, drafts[1].tokens)
        assert torch.equal(drafts[0].valid, drafts[1].valid)
        accepted = [batch.step() for batch in pair]
        for mine, theirs in zip(*accepted, strict=True):
            assert torch.equal(mine, theirs)
        accepted_some += int((accepted[0].accept_length >= 2).sum())
    assert accepted_some > 2
    assert pair[0].texts == pair[1].texts
    pair[0].check_plain(PROMPTS)


def test_chain_shape_through_the_tree_path(edit: Edit) -> None:
    """TensorRT-LLM#10325, at run time: chain-shaped parents given to a tree module do what the chain does (I12)."""
    tree, chain = bench("tree", "", edit), bench("chain", "")
    pair = [Batch.start(each) for each in (tree, chain)]
    for number in range(4):
        logits = []
        for batch in pair:
            wanted = [batch.right(row, 3) if (row + number) % 3 else batch.wrong(row) for row in range(4)]
            logits.append(batch.verify(batch.as_draft(wanted)).logits[:, :4])
            batch.step(wanted)
        assert torch.allclose(logits[0], logits[1], rtol=1e-10, atol=1e-10)
        assert pair[0].texts == pair[1].texts
        assert pair[0].length == pair[1].length
    pair[0].check_plain(PROMPTS)


def check_drafted_laws(made: Bench, batch: Batch, draft: Any, rows: range) -> None:
    """Every node's log-prob is the drafter's at that place: an orphan moved elsewhere would differ."""
    trees = trees_of(draft.tokens, draft.parent, draft.valid)
    for row in rows:
        for node in range(1, trees[row].num_nodes):
            if trees[row].valid[node]:
                path = path_to(trees[row], node)
                text = batch.texts[row][:-1] + [trees[row].tokens[i] for i in path[:-1]]
                law = made.drafter.logits(text).log_softmax(-1)
                got = float(draft.log_probs[row, node])
                assert abs(got - float(law[trees[row].tokens[node]])) < 1e-5 * (1 + abs(got))


@pytest.mark.parametrize("sharpness", [0.0, 300.0], ids=["all equal", "certain"])
def test_ties_leave_no_orphan(sharpness: float, edit: Edit) -> None:
    """sglang#7477: a child whose probability rounds to 1 ties with its parent; a plain top-k kept it as an orphan.

    Here all scores tie (a flat law), or those of certain children with their parents' (a sharp one).
    """
    made = bench("tree", edit=edit).reweighted(draft_lm_head=lambda w: w * sharpness)
    batch = Batch.start(made)
    for _ in range(3):
        draft = batch.draft()
        for tree in trees_of(draft.tokens, draft.parent, draft.valid):
            check_parent(tree)
            check_distinct_siblings(tree)
        check_drafted_laws(made, batch, draft, range(4))
        batch.step()
    batch.check_plain(PROMPTS)


def not_a_number(where: slice | int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Sets rows of a weight to NaN."""

    def change(weight: torch.Tensor) -> torch.Tensor:
        made = weight.clone()
        made[where] = float("nan")
        return made

    return change


def test_nan_logits_draft_a_legal_tree(edit: Edit) -> None:
    """sglang#7477: NaN draft scores broke the tree; here drafts are then useless, trees legal and the text plain."""
    made = bench("tree", edit=edit).reweighted(draft_lm_head=not_a_number(slice(None)))
    batch = Batch.start(made)
    for _ in range(3):
        draft = batch.draft()
        assert bool((draft.tokens < VOCABULARY).all())
        for tree in trees_of(draft.tokens, draft.parent, draft.valid):
            check_parent(tree)
            check_distinct_siblings(tree)
        batch.step()
    batch.check_plain(PROMPTS)


def test_nan_below_one_token_comes_last(edit: Edit) -> None:
    """sglang#7477, NaN below one token: what is finite comes first, NaN counts as -inf, no node is an orphan."""
    made = bench("tree", edit=edit)
    batch = Batch.start(made)
    best = batch.draft().tokens[:, 1].tolist()
    row = next(row for row in range(4) if best[row] not in batch.texts[row])
    poisoned = made.reweighted(draft_embed_tokens=not_a_number(best[row]))
    batch = Batch.start(poisoned)
    draft = batch.draft()
    tree = trees_of(draft.tokens, draft.parent, draft.valid)[row]
    check_parent(tree)
    check_distinct_siblings(tree)
    assert best[row] in tree.tokens[1:4]
    assert not bool(draft.log_probs.isnan().any())
    assert bool(draft.log_probs[row, 1:4].isfinite().all())
    assert tree.parent[1:4] == (0, 0, 0)
    batch.step()
    batch.check_plain(PROMPTS)


@pytest.mark.parametrize("budget", [11, 12])
def test_budget_at_the_candidates(budget: int, edit: Edit) -> None:
    """sglang#3513: num_draft_tokens at or beyond the number of candidates. top_k 3, two levels: 3 + 9 candidates."""
    draft = f"{{{DRAFTER}, tree: dynamic, num_speculative_tokens: {budget}, num_steps: 2, top_k: 3}}"
    made = bench(draft, edit=edit)
    batch = Batch.start(made)
    for _ in range(4):
        drafted = batch.draft()
        assert bool(drafted.valid.all())
        for tree in trees_of(drafted.tokens, drafted.parent, drafted.valid):
            check_parent(tree)
            check_distinct_siblings(tree)
        check_drafted_laws(made, batch, drafted, range(2))
        batch.step()
    batch.check_plain(PROMPTS)
    check_caches(batch)


def test_budget_beyond_the_candidates_is_refused() -> None:
    """sglang#3513: one node more than there are candidates is an error of the spec, not a crash at run time."""
    draft = f"{{{DRAFTER}, tree: dynamic, num_speculative_tokens: 13, num_steps: 2, top_k: 3}}"
    with pytest.raises(SpecError) as refused:
        loads(spec_text(draft, DEFERRED))
    assert [entry.code for entry in refused.value.diagnostics] == ["SPC110"]


def test_fewer_matches_than_budget(edit: Edit) -> None:
    """sglang#3513, prompt lookup: fewer continuations than the budget leave padding nodes, never stale ones (I14)."""
    made = bench("lookup tree", edit=edit)
    prompts = [[4, 5, 6, 4], [1, 2, 1, 3, 1], [9], [3, 3, 3, 3]]
    batch = Batch.start(made, prompts)
    padded = 0
    for _ in range(6):
        draft = batch.draft()
        for tree in trees_of(draft.tokens, draft.parent, draft.valid):
            check_parent(tree)
            padded += tree.has_padding
        batch.step()
    assert padded > 2
    batch.check_plain(prompts)


FLIPPED_TIES = """
def score_rank(scores):
    keys = ordered_scores(scores)
    mine, other = keys.unsqueeze(-1), keys.unsqueeze(-2)
    number = torch.arange(keys.shape[-1])
    later = number.unsqueeze(0) > number.unsqueeze(1)
    return ((other > mine) | ((other == mine) & later)).sum(dim=-1)
"""
SAME_CHILD_TWICE = """
def stable_topk(scores, k):
    value, index = ordered_scores(scores).max(-1, keepdim=True)
    return value.expand(*scores.shape[:-1], k).clone(), index.expand(*scores.shape[:-1], k).clone()
"""
NAN_COMPARES = """
def ordered_scores(scores):
    return scores
"""


def test_greedy_walk_is_the_oracle(edit: Edit) -> None:
    """TensorRT-LLM#10343: acceptance of planted trees is the walk from the root, whatever the nodes' order."""
    made, rng = bench("tree", edit=edit), Random(8)
    batch = Batch.start(made)
    for _ in range(5):
        trees = [batch.planted(row, rng) for row in range(4)]
        wanted = [greedy_accept(tree, plain_argmax(batch, row, tree), 3) for row, tree in enumerate(trees)]
        accepted = batch.step(trees)
        assert accepted.path.tolist() == [list(one.path) for one in wanted]
        assert accepted.bonus.tolist() == [one.bonus for one in wanted]


def plain_argmax(batch: Batch, row: int, tree: DraftTree) -> list[int]:
    """The plain continuation of every node's own text."""
    logits = batch.bench.plain.node_logits([batch.texts[row][:-1]], [tree])
    return list(logits[0].argmax(-1).tolist())


FIRST_CHILD_ONLY = swap("is_child = current == parent_node", "is_child = (current == parent_node) & (current == token)")
FAULTS: dict[str, tuple[Check, Edit]] = {
    "superset": (test_superset_tree_accepts_no_less, FIRST_CHILD_ONLY),
    "planted superset": (test_planted_superset_accepts_no_less, FIRST_CHILD_ONLY),
    "depth 1": (test_depth_one_tree, FIRST_CHILD_ONLY),
    "chain as tree": (test_chain_written_as_a_tree, swap("token_2 == wanted", "token_2 == target_argmax[:, 0]")),
    "positions": (test_chain_shape_through_the_tree_path, swap("depth = path_length - 1", "depth = path_length")),
    "ties of certain children": (partial(test_ties_leave_no_orphan, 300.0), append(FLIPPED_TIES)),
    "all tie": (partial(test_ties_leave_no_orphan, 0.0), append(SAME_CHILD_TWICE)),
    "nan": (test_nan_below_one_token_comes_last, append(NAN_COMPARES)),
    "walk": (test_greedy_walk_is_the_oracle, swap("== parent_node", "== parent_node.clamp(max=1)")),
    "lookup padding": (
        test_fewer_matches_than_budget,
        swap("drafted_valid = draft.valid.narrow", "drafted_valid = torch.ones_like(draft.valid).narrow"),
    ),
    "budget": (
        partial(test_budget_at_the_candidates, 11),
        append(FLIPPED_TIES.replace("other > mine", "other < mine")),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_seen(fault: str) -> None:
    """The test of a class fails on a module with that fault."""
    check, edit = FAULTS[fault]
    with pytest.raises(AssertionError):
        check(edit=edit)
