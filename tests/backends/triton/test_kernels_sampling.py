"""Random numbers, laws, draws and the rejection walk against the ops' reference implementations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops import drawing, sampling
from specc.ir import ops

WARP = 32
WORD = st.integers(-(2**63), 2**63 - 1)
SEEDS = st.integers(0, 10**6)


@settings(max_examples=25, deadline=None)
@given(rng=WORD, position=WORD, draw=st.integers(0, 2**31 - 1), size=st.integers(1, 300))
def test_random_numbers_are_the_same_bits(rng: int, position: int, draw: int, size: int) -> None:
    state, at = torch.tensor([rng, 5]), torch.tensor([position, -1])
    assert torch.equal(sampling.counter_uniform(state, at, draw), ops.counter_uniform(state, at, draw))
    at, purpose = torch.stack((at, at + 1), 1), torch.tensor([[draw, 0], [1, draw]])
    expected = ops.counter_uniform_rows(state, at, purpose, size)
    assert torch.equal(sampling.counter_uniform_rows(state, at, purpose, size), expected)


@settings(max_examples=30, deadline=None)
@given(
    seed=SEEDS,
    size=st.sampled_from([1, 7, 300, 9000]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.integers(0, 20),
    top_p=st.sampled_from([1.0, 0.8]),
)
def test_a_law(seed: int, size: int, dtype: torch.dtype, temperature: float, top_k: int, top_p: float) -> None:
    made = torch.Generator().manual_seed(seed)
    logits = (torch.randn(1, 2, size, generator=made) * 3).to(dtype)
    logits[0, 1] = (logits[0, 1] * 2).round()  # ties, at the k-th too
    law = sampling.sampling_probs(logits, temperature, top_k, top_p, torch.float32)
    expected = ops.sampling_probs(logits, temperature, top_k, top_p, torch.float32)
    if top_p == 1.0:
        assert torch.equal(law > 0, expected > 0)
    # The sum before a token decides whether top_p keeps it; rounding may move one token over the border.
    apart = (law - expected).abs() > 1e-6 * expected + 1e-7
    assert int(apart.sum()) == 0 or top_p < 1.0
    torch.testing.assert_close(law.sum(-1), torch.ones(1, 2), rtol=1e-5, atol=0)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_law_of_something_that_is_no_number(value: float) -> None:
    logits = torch.randn(1, 2, 40)
    logits[0, 0, 3] = value
    law = sampling.sampling_probs(logits, 0.7, 5, 1.0, torch.float32)
    expected = ops.sampling_probs(logits, 0.7, 5, 1.0, torch.float32)
    assert torch.equal(law[0, 0].isnan(), expected[0, 0].isnan())
    torch.testing.assert_close(law[0, 1], expected[0, 1])


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, size=st.sampled_from([1, 5, 4000, 9000]), uniform=st.floats(0, 1, exclude_max=True))
def test_a_draw(seed: int, size: int, uniform: float) -> None:
    weights = torch.rand(3, size, generator=torch.Generator().manual_seed(seed))
    weights[1] = weights[1].where(weights[1] > 0.7, torch.zeros(()))
    weights[2] = 0.0
    at = torch.full((3,), uniform, dtype=torch.float64)
    made, expected = sampling.sample_index(weights, at), ops.sample_index(weights, at)
    running = weights.double().cumsum(-1)
    for row in range(3):
        # Sums in another order may move a number that lies on a border by one token.
        border = abs(float(running[row, min(made[row], expected[row])] - at[row] * running[row, -1]))
        assert made[row] == expected[row] or border < 1e-12 * size
    assert float(weights[1, made[1]]) > 0 or float(weights[1].sum()) == 0


def test_a_draw_at_the_end_has_a_weight() -> None:
    """Rounding may leave no place at which the running sum exceeds the largest of all numbers below 1."""
    weights = torch.rand(64, 40, generator=torch.Generator().manual_seed(0)) / 12
    weights[:, 30:] = 0.0
    made = sampling.sample_index(weights, torch.full((64,), 1 - 2**-53, dtype=torch.float64))
    assert bool((weights.gather(1, made[:, None]) > 0).all())


def walk_case(seed: int, chain: bool, true_q: bool, batch: int = 2, nodes: int = 6, size: int = 19) -> list[Any]:
    """Laws of a few tokens with much of the mass on drafted ones, so that nodes are accepted and rejected."""
    made = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, nodes, size, generator=made) * 2
    parent = torch.tensor(
        [[-1, *(int(torch.randint(0, i, (1,), generator=made)) for i in range(1, nodes))] for _ in range(batch)]
    )
    q_law = (torch.randn(batch, nodes, size, generator=made) * 2).softmax(-1) if true_q else None
    tokens = torch.stack([torch.randperm(size, generator=made)[:nodes] for _ in range(batch)])
    valid = torch.rand(batch, nodes, generator=made) < 0.9
    rng, length = (torch.randint(0, 10**6, (batch,), generator=made) for _ in range(2))
    return [logits, q_law, tokens, None if chain else parent, valid, rng, length, nodes]


@settings(max_examples=12, deadline=None)
@given(
    seed=SEEDS,
    chain=st.booleans(),
    true_q=st.booleans(),
    top_k=st.sampled_from([0, 3]),
    given_law=st.booleans(),
    size=st.just(19),
)
@example(seed=0, chain=False, true_q=True, top_k=3, given_law=False, size=5000)
@example(seed=1, chain=True, true_q=False, top_k=0, given_law=True, size=5000)
def test_a_walk(seed: int, chain: bool, true_q: bool, top_k: int, given_law: bool, size: int) -> None:
    case = walk_case(seed, chain, true_q, nodes=6 if size < 100 else 3, size=size)
    options = (0.0, 0) if given_law else (0.8, top_k)
    if given_law:
        case[0] = case[0].softmax(-1)
    made, expected = sampling.reject_tree(*case, *options), ops.reject_tree(*case, *options)
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))


def test_a_walk_that_keeps_too_many_tokens_for_one_program() -> None:
    """With so large a top_k a node is judged by a group of programs, whatever its drafts' law."""
    drawn = 0
    for seed in range(4):
        made = torch.Generator().manual_seed(seed)
        logits = torch.randn(8, 5, 700, generator=made) * 2
        tokens = torch.cat([torch.zeros(8, 1, dtype=torch.int64), logits[:, 0].topk(4).indices], 1)
        rng, length = (torch.randint(0, 10**6, (8,), generator=made) for _ in range(2))
        tree = (tokens, torch.tensor([[-1, 0, 0, 0, 0]] * 8), torch.ones(8, 5, dtype=torch.bool))
        case: Any = (logits, None, *tree, rng, length, 3, 0.5, 300)
        found, expected = sampling.reject_tree(*case), ops.reject_tree(*case)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        drawn += int((found[2] == 0).sum())
    assert 4 < drawn < 28


@pytest.mark.parametrize("repeated", [False, True])
def test_children_that_are_rejected_one_after_the_other(repeated: bool) -> None:
    """Up to five of one node, likely ones by the drafter's law and seldom by the target's; what is left of both laws
    after each of them decides the next. (Repeated: equal siblings, which are none by contract.)"""
    most, drawn = 0, 0
    for seed in range(6):
        made = torch.Generator().manual_seed(seed)
        law, q_law = (torch.softmax(torch.randn(8, 6, 19, generator=made) * 2, -1) for _ in range(2))
        tokens = torch.cat([torch.zeros(8, 1, dtype=torch.int64), q_law[:, 0].topk(5).indices], 1)
        if repeated:
            tokens[:, 3] = tokens[:, 1]
        rng, length = (torch.randint(0, 10**6, (8,), generator=made) for _ in range(2))
        tree = (tokens, torch.tensor([[-1, 0, 0, 0, 0, 0]] * 8), torch.ones(8, 6, dtype=torch.bool))
        case: Any = (law, q_law, *tree, rng, length, 3, 0.0, 0)
        found, expected = sampling.reject_tree(*case), ops.reject_tree(*case)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        most, drawn = max(most, int(found[2].max())), drawn + int((found[2] == 0).sum())
    assert most >= 4  # accepted after so many rejections
    assert drawn > 4


@settings(max_examples=12, deadline=None)
@given(
    seed=SEEDS,
    top_k=st.sampled_from([0, 3, 40, 70]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    kinds=st.sampled_from([None, 1, 3, 500]),
    size=st.sampled_from([150, 4500]),
)
@example(seed=2, top_k=40, dtype=torch.bfloat16, kinds=1, size=4500)
@example(seed=3, top_k=40, dtype=torch.float32, kinds=3, size=4500)
@example(seed=4, top_k=40, dtype=torch.bfloat16, kinds=500, size=4500)
@example(seed=5, top_k=3, dtype=torch.float32, kinds=None, size=4500)
def test_a_walk_without_a_drafter_s_law(
    seed: int, top_k: int, dtype: torch.dtype, kinds: int | None, size: int
) -> None:
    """Rows of several programs; numbers of which many tie (`kinds` different ones), more than a program leaves."""
    case = walk_case(seed, False, False, nodes=5, size=size)
    made = torch.Generator().manual_seed(seed)
    likely = torch.zeros_like(case[0]).scatter(2, case[2].unsqueeze(1).expand(-1, 5, -1), 6.0)
    if kinds is not None:
        case[0] = torch.randint(kinds, case[0].shape, generator=made) / 64.0
    case[0] = (case[0] + likely * (seed % 2)).to(dtype)
    found, expected = sampling.reject_tree(*case, 0.8, top_k), ops.reject_tree(*case, 0.8, top_k)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_token_that_was_drafted_twice_counts_once() -> None:
    """Siblings are distinct by contract; equal ones behave as in the reference all the same."""
    logits = torch.randn(1, 4, 2100, generator=torch.Generator().manual_seed(1))
    logits[0, 0, [7, 9]] = 9.0
    parent, valid = torch.tensor([[-1, 0, 0, 0]]), torch.ones(1, 4, dtype=torch.bool)
    for seed in range(12):
        case = (torch.tensor([[0, 7, 7, 9]]), parent, valid, torch.tensor([seed]), torch.tensor([3]), 4)
        found, expected = (where.reject_tree(logits, None, *case, 1.0, 0) for where in (sampling, ops))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_walk_over_laws_that_are_no_numbers(value: float, top_k: int) -> None:
    """Nothing is accepted there, and the next token is the first; -inf is an impossible token."""
    logits = torch.randn(2, 3, 2100, generator=torch.Generator().manual_seed(2))
    logits[0, 0, 2050] = logits[1, 0, 5] = value
    tokens, parent = torch.tensor([[0, 5, 9], [0, 5, 9]]), torch.tensor([[-1, 0, 0]] * 2)
    case = (tokens, parent, torch.ones(2, 3, dtype=torch.bool), torch.tensor([5, 6]), torch.tensor([3, 4]), 3)
    for q in (None, torch.full((2, 3, 2100), 1 / 2100)):
        found, expected = (where.reject_tree(logits, q, *case, 1.0, top_k) for where in (sampling, ops))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("soft", [True, False])
def test_drafted_tokens_that_hold_all_of_the_mass(soft: bool) -> None:
    """Nothing is left to draw: the next token is the largest of the node's own law, drafted or not."""
    law = torch.full((1, 3, 2100), float("-inf") if soft else 0.0)
    law[0, :, 2060], law[0, :, 30] = (1.0, 0.0) if soft else (0.75, 0.25)
    tokens, parent = torch.tensor([[0, 30, 2060]]), torch.tensor([[-1, 0, 0]])
    taken = 0
    for seed in range(8):
        case = (tokens, parent, torch.ones(1, 3, dtype=torch.bool), torch.tensor([seed]), torch.tensor([3]), 3)
        for q in (None, torch.eye(2100)[[2060, 0, 0]].unsqueeze(0)):
            options = (0.7, 0) if soft else (0.0, 0)
            found, expected = (where.reject_tree(law, q, *case, *options) for where in (sampling, ops))
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            taken += int(found[1])
    assert taken > 0
    law = law * 0.0 if not soft else law
    found, expected = (where.reject_tree(law, None, *case, *options) for where in (sampling, ops))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_law_without_mass_left() -> None:
    """Both children rejected and nothing else possible: the next token is the argmax of the node's own law."""
    law = torch.zeros(1, 3, 4)
    law[0, :, 1] = 1.0
    q_law = law.clone()
    q_law[0, 0] = torch.tensor([0.0, 2.0, 0.0, 0.0])
    tokens, parent = torch.tensor([[0, 2, 3]]), torch.tensor([[-1, 0, 0]])
    valid = torch.ones(1, 3, dtype=torch.bool)
    arguments = (law, q_law, tokens, parent, valid, torch.tensor([5]), torch.tensor([0]), 3, 0.0, 0)
    made, expected = sampling.reject_tree(*arguments), ops.reject_tree(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
    assert made[3].tolist() == [1]


class Recorded:
    """Stands for a kernel, and keeps what it is launched with."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *_, **options: self.launches.append(options)


@pytest.mark.parametrize("size", [3000, 6000, 12000, 16000, 32000, 49152, 100_000, 128_256, 151_936])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_other_programs_leave_is_held_once_or_by_every_warp(
    size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else some threads would wait for a word that others have seen, or go on without it."""
    seen = Recorded()
    for place, name in (
        (sampling, "law_rows"), (sampling, "sample_rows"), (sampling, "reject_nodes"), (drawing, "draw_rows"),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, seen)
    monkeypatch.setattr(sampling, "interpreted", lambda: False)
    logits, nodes, one = torch.empty(1, 4, size, dtype=dtype), torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1)
    for top_k in (0, 50):
        sampling.sampling_probs(logits, 0.8, top_k, 1.0, torch.float32)
        sampling.reject_tree(logits, logits, nodes, nodes, nodes > 0, one, one, 4, 0.8, top_k)
    sampling.sample_index(logits[:, 0], one)
    for rows, count in ((1, 1), (1, 3), (3, 2), (4, 1), (4, 8)):
        drawing.draw_children(logits[:, :rows], one, nodes[:, :rows], nodes[:, :rows], count, 0.8)
        drawing.draw_children(logits.expand(4, 4, size), one.expand(4), nodes.expand(4, 4), nodes, count, 0.8)
    for options in seen.launches:
        threads, held = WARP * options["num_warps"], {options[name] for name in ("PARTS", "ALL") if name in options}
        if options["PARTS"] > 1:
            assert all(number <= WARP for number in held) or all(number >= threads for number in held)
        if options.get("TOP_K"):
            assert 16 * options["PARTS"] <= WARP or 16 * options["PARTS"] >= threads
    assert len(seen.launches) == 15
