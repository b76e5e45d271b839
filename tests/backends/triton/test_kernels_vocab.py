"""Argmax and the k best over a vocabulary against the ops' reference implementations, in Triton's interpreter."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops import vocab
from specc.ir import ops

# NumPy warns of what is meant here: infinities and NaN among the logits.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0)


@st.composite
def scores(draw: st.DrawFn, *dtypes: torch.dtype, special: bool = True) -> torch.Tensor:
    """[...,V] with many ties, some of them across the border of two programs, and what is no ordinary number."""
    shape = draw(st.sampled_from([(1, 1), (2, 3), (1, 2, 40), (2, 2100), (1, 4200)]))
    made = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    x = (torch.randn(shape, generator=made) * draw(st.sampled_from([0.3, 4.0]))).round() / 2
    if special:
        for value in draw(st.lists(st.sampled_from(SPECIAL), max_size=3)):
            x[..., draw(st.integers(0, shape[-1] - 1))] = value
    return x.to(draw(st.sampled_from(dtypes)))


@settings(max_examples=40, deadline=None)
@given(x=scores(torch.float32, torch.bfloat16, torch.float16))
def test_the_argmax_is_torchs(x: torch.Tensor) -> None:
    assert torch.equal(vocab.vocabulary_argmax(x), ops.vocabulary_argmax(x))


@settings(max_examples=40, deadline=None)
@given(x=scores(torch.float32, torch.bfloat16, torch.float64), k=st.integers(1, 6))
def test_the_best_scores_and_their_order(x: torch.Tensor, k: int) -> None:
    k = min(k, x.shape[-1])
    made, expected = vocab.stable_topk(x, k), ops.stable_topk(x, k)
    assert torch.equal(made[1], expected[1])
    assert torch.equal(made[0], expected[0])
    assert made[0].dtype == x.dtype


@settings(max_examples=40, deadline=None)
@given(x=scores(torch.float32, torch.bfloat16), k=st.integers(1, 6))
def test_the_best_log_probabilities(x: torch.Tensor, k: int) -> None:
    k = min(k, x.shape[-1])
    made, expected = vocab.topk_log_probs(x, k), ops.topk_log_probs(x, k)
    assert torch.equal(made[1], expected[1])
    torch.testing.assert_close(made[0], expected[0], rtol=1e-5, atol=2e-6)
    assert bool((made[0] <= 0).all())


def test_a_row_does_not_depend_on_the_others() -> None:
    """Bits too: the sums run over the same parts in the same order, however many rows there are."""
    x = torch.randn(5, 4200, generator=torch.Generator().manual_seed(1))
    together = [vocab.topk_log_probs(x, 3), vocab.stable_topk(x, 3)]
    for row in range(5):
        alone = [vocab.topk_log_probs(x[row : row + 1], 3), vocab.stable_topk(x[row : row + 1], 3)]
        for one, all_rows in zip(alone, together, strict=True):
            assert all(torch.equal(a[0], b[row]) for a, b in zip(one, all_rows, strict=True))


def test_rows_that_do_not_lie_together() -> None:
    x = torch.randn(2, 2, 90, generator=torch.Generator().manual_seed(2))
    for view in (x[:, 1, :80], x.transpose(0, 1), x[..., ::30].transpose(1, 2)):
        assert torch.equal(vocab.vocabulary_argmax(view), view.argmax(-1))
        assert torch.equal(vocab.stable_topk(view, 2)[1], ops.stable_topk(view, 2)[1])


def test_a_replay_finds_its_counters_at_zero() -> None:
    x = torch.randn(2, 9000, generator=torch.Generator().manual_seed(3))
    for _ in range(3):
        assert torch.equal(vocab.vocabulary_argmax(x), x.argmax(-1))
        assert torch.equal(vocab.topk_log_probs(x, 2)[1], ops.topk_log_probs(x, 2)[1])
