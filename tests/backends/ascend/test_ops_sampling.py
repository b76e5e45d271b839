"""Laws, draws and routed experts of Ascend modules equal their ops; tables of draws hold the ops' own numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.backends.ascend.ops import moe, random, sampling
from specc.ir import ops
from tests.backends.ascend.op_support import agree, assert_close, assert_convertible, strictly

SEEDS = st.integers(0, 1 << 20)
F32, F64 = torch.float32, torch.float64


@st.composite
def logits(draw: st.DrawFn) -> torch.Tensor:
    """[B,M,V] with many ties."""
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 12)))
    made = torch.randn(shape, generator=torch.Generator().manual_seed(draw(SEEDS)))
    return (made * 2).round() if draw(st.booleans()) else made


@given(logits(), st.sampled_from([0.5, 1.0]), st.integers(0, 6), st.sampled_from([1.0, 0.9, 0.3, 0.01]))
def test_laws_agree(x: torch.Tensor, temperature: float, top_k: int, top_p: float) -> None:
    for dtype in (F32, F64):
        made = agree("sampling_probs", (x, temperature, top_k, top_p, dtype), 1e-6)
        torch.testing.assert_close(made.sum(-1), torch.ones_like(made.sum(-1)))


WEIGHTS = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0])
UNIFORMS = st.sampled_from([0.0, 0.25, 0.5, 1.0 - 2.0**-53]) | st.floats(0.0, 1.0, exclude_max=True)


@given(st.lists(WEIGHTS, min_size=1, max_size=9), st.lists(UNIFORMS, min_size=1, max_size=4))
def test_draws_agree(weights: list[float], uniforms: list[float]) -> None:
    uniform = torch.tensor(uniforms, dtype=F64)
    agree("sample_index", (torch.tensor([weights] * len(uniforms)), uniform))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3), st.integers(0, 5000), st.integers(1, 6))
def test_tables_hold_the_draws(keys: list[int], first: int, positions: int) -> None:
    rng = torch.tensor(keys)
    base = torch.arange(len(keys)) * 7 + first
    table = random.uniform_table(rng, base, positions, 4)
    for step in range(positions):
        for draw in range(4):
            wanted = ops.counter_uniform(rng, base + step, draw)
            assert_close(strictly(random.counter_uniform, table, base + step, draw), wanted, None)
            assert_close(random.counter_uniform(rng, base + step, draw), wanted, None)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3), st.integers(0, 5000))
def test_tables_of_rows_hold_the_draws(keys: list[int], length: int) -> None:
    rng, before = torch.tensor(keys), torch.full([len(keys)], length)
    offsets, draws = [1, 2, 2, 3], [random.FIRST_DRAW + node for node in (0, 1, 2, 5)]
    table = random.uniform_rows(rng, before, offsets, draws, 6)
    for rows in ([0], [1, 2], [3]):
        position = before.unsqueeze(1) + torch.tensor([offsets[row] for row in rows])
        draw = torch.tensor([draws[row] for row in rows]).expand(len(keys), -1)
        wanted = ops.counter_uniform_rows(rng, position, draw, 6)
        assert_close(strictly(random.counter_uniform_rows, table, position, draw, 6), wanted, None)
        assert_close(random.counter_uniform_rows(rng, position, draw, 6), wanted, None)
    strictly(random.counter_uniform_rows, table, position, torch.full_like(position, -1), 6)


@given(SEEDS, st.integers(1, 5), st.booleans(), st.integers(1, 3))
def test_experts_agree(seed: int, chosen: int, norm: bool, batch: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    x, router, gate_up, down = rand(batch, 3, 8), rand(5, 8), rand(5 * 12, 8), rand(5 * 8, 6)
    agree("moe", (x, router, gate_up, down, chosen, norm), 1e-5)
    wide = (value.double() for value in (x, router, gate_up, down))
    agree("moe", (*wide, chosen, norm), 1e-10)


def test_experts_that_tie_are_taken_by_number() -> None:
    weight = moe.expert_weights(torch.ones(2, 6), 2, True)
    assert torch.equal(weight, torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0, 0.0]] * 2))


def test_ge_has_every_op() -> None:
    x, uniform = torch.rand(2, 3, 9), torch.rand(2, dtype=F64)
    assert_convertible(sampling.sampling_probs, x, 0.8, 4, 0.9, F32)
    assert_convertible(sampling.sampling_probs, x.half(), 1.0, 0, 1.0, F32)
    assert_convertible(sampling.sample_index, x[:, 0], uniform)
    table, position = torch.rand(2, 3, 4, dtype=F64), torch.zeros(2, dtype=torch.int64)
    assert_convertible(random.counter_uniform, table, position, 1)
    assert_convertible(random.counter_uniform_rows, table, position.unsqueeze(1), position.unsqueeze(1), 4)
    weights = torch.rand(5, 8), torch.rand(5 * 12, 8), torch.rand(5 * 8, 6)
    hidden = torch.rand(2, 3, 8)
    assert_convertible(moe.moe, hidden, *weights, 2, True)
    assert_convertible(moe.moe, hidden.half(), *(value.half() for value in weights), 2, False)


@pytest.mark.parametrize("name", ["counter_uniform", "counter_uniform_rows"])
def test_hashing_is_not_for_graphs(name: str) -> None:
    """Why there are tables: keys would put shifts into the graph."""
    keys = torch.tensor([1, 2])
    rest = (keys, 3) if name == "counter_uniform" else (keys.unsqueeze(1), keys.unsqueeze(1), 4)
    with pytest.raises(AssertionError, match="shift"):
        assert_convertible(getattr(random, name), keys, *rest)


def test_experts_that_are_not_chosen_have_no_effect() -> None:
    """Whatever they make of a token: infinity and NaN too."""
    x, router = torch.ones(1, 1, 4), torch.tensor([[1.0] * 4, [-1.0] * 4])
    gate_up, down = torch.ones(2 * 6, 4), torch.ones(2 * 4, 3)
    gate_up[6:], down[4:] = float("inf"), 1e30
    made = agree("moe", (x, router, gate_up, down, 1, True), 1e-5)
    assert bool(made.isfinite().all())


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.5, 2), (0.51, 3), (1e-9, 1)])
def test_the_token_at_the_threshold_goes(top_p: float, kept: int) -> None:
    """Four equal tokens: one stays while the mass before it is below top_p, those of lower index first."""
    made = agree("sampling_probs", (torch.zeros(1, 1, 4), 1.0, 0, top_p, F64), 1e-12)
    assert made.flatten().tolist() == [1.0 / kept] * kept + [0.0] * (4 - kept)
