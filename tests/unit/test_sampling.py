"""The sampler's law and the counter-based randomness."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.ir import ops
from specc.ir.ops.sampling import GOLDEN, mix
from specc.testing import ALPHA, p_value
from tests.unit.decoding_fixtures import Decoding, plain_forward, small_spec, target_weights
from tests.unit.test_accept_law import warped

COUNT = 40_000
ZERO = torch.zeros(COUNT, dtype=torch.int64)
RANGE = torch.arange(COUNT)


def uniform_p(values: torch.Tensor, bins: int = 64) -> float:
    """The p-value of uniformity over `bins`."""
    counts = torch.bincount((values * bins).long(), minlength=bins).tolist()
    return p_value(counts, [1.0 / bins] * bins)


STREAMS = {
    "rng": lambda: ops.counter_uniform(RANGE, ZERO, 0),
    "position": lambda: ops.counter_uniform(ZERO, RANGE, 0),
    "both": lambda: ops.counter_uniform(RANGE, RANGE, 5),
    "negative keys": lambda: ops.counter_uniform(-RANGE - 1, ZERO + 3, 1),
    "spread keys": lambda: ops.counter_uniform(RANGE << 40, ZERO, 0),
    "rows": lambda: ops.counter_uniform_rows(ZERO[:4], ZERO.view(4, -1)[:, :1], ZERO.view(4, -1)[:, :1], 10_000)[0, 0],
}


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_is_uniform_and_its_neighbours_are_independent(stream: str) -> None:
    values = STREAMS[stream]()
    assert values.dtype == torch.float64
    assert values.min() >= 0.0
    assert values.max() < 1.0
    assert uniform_p(values) > ALPHA
    pairs = (values[:-1:2] * 8).long() * 8 + (values[1::2] * 8).long()
    assert p_value(torch.bincount(pairs, minlength=64).tolist(), [1 / 64] * 64) > ALPHA
    assert values.unique().numel() == values.numel()


def test_draws_at_one_position_are_independent() -> None:
    first, second = ops.counter_uniform(RANGE, ZERO, 0), ops.counter_uniform(RANGE, ZERO, 1)
    pairs = (first * 8).long() * 8 + (second * 8).long()
    assert p_value(torch.bincount(pairs, minlength=64).tolist(), [1 / 64] * 64) > ALPHA


def test_every_counter_counts() -> None:
    values = [
        float(ops.counter_uniform(torch.tensor([a]), torch.tensor([b]), c)[0])
        for a in range(-3, 4)
        for b in range(7)
        for c in range(7)
    ]
    assert len(set(values)) == len(values)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), st.integers(0, 2**40), st.integers(0, 2**21))
def test_a_draw_depends_on_its_own_row_only(keys: list[int], position: int, draw: int) -> None:
    rng, at = torch.tensor(keys), torch.full((len(keys),), position)
    together = ops.counter_uniform(rng, at, draw)
    wide = ops.counter_uniform_rows(rng, at.unsqueeze(1), torch.full_like(at, draw).unsqueeze(1), 4)
    for row in range(len(keys)):
        one = slice(row, row + 1)
        assert torch.equal(together[one], ops.counter_uniform(rng[one], at[one], draw))
        alone = ops.counter_uniform_rows(rng[one], at[one].unsqueeze(1), torch.full_like(at[one], draw).unsqueeze(1), 4)
        assert torch.equal(wide[one], alone)


def test_the_hash_is_splitmix64() -> None:
    # The first outputs of splitmix64 seeded with 0 (reference implementation by Vigna).
    states = torch.tensor([1, 2, 3]) * GOLDEN
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [value % 2**64 for value in mix(states).tolist()] == expected


@given(
    st.lists(st.integers(-80, 80).map(lambda n: n / 10), min_size=2, max_size=9, unique=True),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.integers(0, 9),
    st.sampled_from([0.05, 0.5, 0.9, 1.0]),
)
def test_the_law_is_that_of_a_plain_sampler(logits: list[float], temperature: float, top_k: int, top_p: float) -> None:
    row = torch.tensor(logits, dtype=torch.float64)
    found = ops.sampling_probs(row.view(1, 1, -1), temperature, top_k, top_p, torch.float64)[0, 0]
    expected = torch.tensor(
        warped(row, temperature, top_k or len(logits), top_p if top_p < 1 else 2.0), dtype=torch.float64
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_ties_with_the_kth_token_stay_and_the_first_token_over_top_p_stays() -> None:
    tied = ops.sampling_probs(torch.tensor([[[2.0, 1.0, 1.0, 0.0]]]), 1.0, 2, 1.0, torch.float32)[0, 0]
    assert (tied > 0).tolist() == [True, True, True, False]
    probs = torch.tensor([[[0.5, 0.3, 0.2]]]).log()
    for top_p, kept in ((0.01, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3)):
        law = ops.sampling_probs(probs, 1.0, 0, top_p, torch.float64)[0, 0]
        assert int((law > 0).sum()) == kept
        assert float(law.sum()) == pytest.approx(1.0)


def test_inverse_cdf_never_returns_a_token_without_mass() -> None:
    weights = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]]).expand(5, -1)
    uniform = torch.tensor([0.0, 0.2499999, 0.25, 0.9999999, 1.0 - 2.0**-53], dtype=torch.float64)
    assert ops.sample_index(weights, uniform).tolist() == [1, 1, 3, 3, 3]
    # Rounding at the upper end (u = 1 stands for it) falls back to the likeliest token.
    assert ops.sample_index(weights[:1], torch.ones(1, dtype=torch.float64)).tolist() == [3]
    assert ops.sample_index(torch.zeros(1, 3), torch.tensor([0.5], dtype=torch.float64)).tolist() == [0]


def test_plain_sampling_draws_from_the_targets_law_and_is_the_same_at_any_batch() -> None:
    sampling = {"temperature": 2.5, "top_k": 12, "top_p": 0.9}
    spec = small_spec({"method": "none"}, sampling={**sampling, "seed": 0}, accept={"method": "rejection"})
    weights = target_weights(spec)
    batch, prompt = 1500, [3, 1, 4]
    decoding = Decoding.start(spec, weights, [prompt] * batch, rng=torch.arange(batch))
    roots = decoding.state["root_token"]
    law = warped(plain_forward(weights, spec.target.geometry, prompt)[0][-1], **sampling)
    assert p_value(torch.bincount(roots, minlength=len(law)).tolist(), law) > ALPHA
    for _ in range(3):
        decoding.step()
    for row in (0, 7, 1499):
        alone = Decoding.start(spec, weights, [prompt], rng=torch.tensor([row]))
        for _ in range(3):
            alone.step()
        assert alone.texts[0] == decoding.texts[row]


def test_a_step_of_no_drafts_samples_what_plain_decoding_samples() -> None:
    spec = small_spec({"method": "none"}, sampling={"temperature": 1.0, "seed": 0}, accept={"method": "rejection"})
    weights = target_weights(spec)
    speculative = Decoding.start(spec, weights, [[3, 1], [2, 7, 1]], rng=torch.tensor([5, 6]))
    plain = Decoding.start(spec, weights, [[3, 1], [2, 7, 1]], rng=torch.tensor([5, 6]))
    for _ in range(5):
        speculative.step()
        plain.run("decode")
        assert torch.equal(speculative.state["root_token"], plain.state["root_token"])
