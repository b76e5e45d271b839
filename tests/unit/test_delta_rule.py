"""The delta rule along chains: token by token, in chunks, its commit from factors, and the triangular inverse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.ir import ops
from specc.ir.ops.delta_math import unit_lower_inverse
from specc.testing.delta_oracles import delta_path
from tests.unit.delta_cases import Case, Pending, array, cases, close, oracle, pending_cases, poisoned, random_rows

F32 = torch.float32


@given(cases(chain=True))
def test_a_chain_is_the_recurrence(case: Case) -> None:
    o, u, after = ops.delta_rule(case.state, *case.rows)
    wanted = oracle(case)
    close(o, wanted[0])
    close(u, wanted[1])
    close(after, wanted[2][:, -1])


@given(cases(chain=True), st.sampled_from([torch.float32, torch.float64]))
def test_tokens_one_by_one_give_the_bits_of_all_at_once(case: Case, dtype: torch.dtype) -> None:
    case = case.to(dtype)
    o, u, after = ops.delta_rule(case.state, *case.rows)
    state = case.state
    for t in range(case.nodes):
        one = ops.delta_rule(state, *(x[:, t : t + 1] for x in case.rows))
        assert torch.equal(one[0], o[:, t : t + 1])
        assert torch.equal(one[1], u[:, t : t + 1])
        state = one[2]
    assert torch.equal(state, after)


@given(cases(chain=True), st.integers(1, 10))
def test_chunks_of_any_size_give_the_recurrence(case: Case, chunk: int) -> None:
    """Chunks that divide the tokens, a ragged last one, one larger than all of them."""
    for made, wanted in zip(
        ops.delta_rule_chunk(case.state, *case.rows, chunk), ops.delta_rule(case.state, *case.rows), strict=True
    ):
        close(made, wanted)


def test_chunks_of_steep_decays_stay_finite() -> None:
    """Above the diagonal e^{G_i - G_j} overflows in float32: the mask comes before exp."""
    rows = random_rows(torch.Generator().manual_seed(0), (1, 1), (1, 8, 4, 4))
    rows = (*rows[:3], torch.full((1, 8, 1), -60.0, dtype=torch.float64), rows[4])
    state = torch.ones(1, 1, 4, 4)
    made = ops.delta_rule_chunk(state, *(x.to(F32) for x in rows), 8)
    for left, right in zip(made, ops.delta_rule(state.double(), *rows), strict=True):
        torch.testing.assert_close(left, right.to(F32), rtol=1e-5, atol=1e-5)


def neutral(case: Case, live: list[int]) -> Case:
    """The case with g = beta = 0 at and beyond token live[b]."""
    shown = (torch.arange(case.nodes) < torch.tensor(live).unsqueeze(1)).unsqueeze(-1)
    rows = [case.state, case.q, case.k, case.v, case.g * shown, case.beta * shown]
    return Case(*rows, case.parent_row, case.mask)


@given(cases(chain=True), st.data())
def test_tokens_without_gates_are_neutral(case: Case, data: st.DataObject) -> None:
    """Ragged prompts: dead tokens have g = beta = 0. Step by step their state is that of the live ones, bit for bit."""
    case = case.to(F32)
    live = [data.draw(st.integers(0, case.nodes)) for _ in range(case.state.shape[0])]
    ragged, chunk = neutral(case, live), data.draw(st.integers(1, 4))
    _, u, after = ops.delta_rule(ragged.state, *ragged.rows)
    _, u_chunk, after_chunk = ops.delta_rule_chunk(ragged.state, *ragged.rows, chunk)
    for b, count in enumerate(live):
        assert not u[b, count:].any()
        assert not u_chunk[b, count:].any()
        part = [x[b : b + 1, :count] for x in case.rows]
        wanted = ops.delta_rule(case.state[b : b + 1], *part)[2] if count else case.state[b : b + 1]
        assert torch.equal(after[b : b + 1], wanted)
        if count == 0:
            assert torch.equal(after_chunk[b], case.state[b])
        torch.testing.assert_close(after_chunk[b : b + 1], wanted, rtol=2e-5, atol=2e-5)


@given(cases(chain=True))
def test_a_sequence_does_not_see_its_neighbours(case: Case) -> None:
    case = case.to(F32)
    whole = ops.delta_rule(case.state, *case.rows)
    for b in range(case.state.shape[0]):
        part = case.take(slice(b, b + 1))
        for made, wanted in zip(ops.delta_rule(part.state, *part.rows), whole, strict=True):
            assert torch.equal(made, wanted[b : b + 1])


@given(pending_cases(), st.sampled_from(["steps", "rank_n"]))
def test_a_commit_from_factors_is_the_recurrence(made: tuple[Case, Pending], form: str) -> None:
    """What rows beyond count or off the path hold (NaN, infinities) does not matter; count 0 changes nothing."""
    case, pending = made
    path = pending.path
    if path is None:
        path = torch.arange(pending.k.shape[1]).expand(case.state.shape[0], -1)
    after = ops.delta_rule_commit(case.state, pending.k, pending.u, pending.g, path, pending.count, form)
    for b, tokens in enumerate(pending.tokens):
        if not tokens:
            assert torch.equal(after[b], case.state[b])
        else:
            close(after[b], torch.from_numpy(delta_path(array(case.state[b]), tokens)[2]))
    in_place = case.state.clone()
    ops.delta_rule_commit_(in_place, pending.k, pending.u, pending.g, path, pending.count, form)
    assert torch.equal(in_place, after)


@given(pending_cases(F32))
def test_a_commit_by_steps_has_the_bits_of_plain_decoding(made: tuple[Case, Pending]) -> None:
    case, pending = made
    path = pending.path
    if path is None:
        path = torch.arange(pending.k.shape[1]).expand(case.state.shape[0], -1)
    after = ops.delta_rule_commit(case.state, pending.k, pending.u, pending.g, path, pending.count, "steps")
    for b, count in enumerate(pending.count.tolist()):
        state = case.state[b : b + 1]
        for j in range(count):
            state = ops.delta_rule(state, *(x[b : b + 1, j : j + 1] for x in pending.rows))[2]
        assert torch.equal(after[b], state[0])


def test_count_zero_keeps_even_the_sign_of_zero() -> None:
    """Bit for bit, seen as integers."""
    state = torch.tensor([-0.0, 1.5]).reshape(1, 1, 1, 2)
    k, u, g = torch.ones(1, 2, 1, 2), torch.ones(1, 2, 1, 1), torch.zeros(1, 2, 1)
    for form in ("steps", "rank_n"):
        after = ops.delta_rule_commit(state, k, u, g, torch.tensor([[0, 1]]), torch.tensor([0]), form)
        assert torch.equal(after.view(torch.int32), state.view(torch.int32))


def gram(size: int, beta: float, alike: bool, seed: int) -> torch.Tensor:
    """A of `size` tokens with keys of 64 numbers, all the same or at random, and no decay."""
    keys = torch.randn(size, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    keys = keys[:1].expand(size, -1) if alike else keys
    keys = keys / keys.norm(dim=-1, keepdim=True)
    return (beta * keys @ keys.T).tril(-1)


def inverse_error(made: torch.Tensor, a: torch.Tensor) -> float:
    """|X - (I + A)^-1| / |(I + A)^-1|, entries' maximum, the reference solved in float64."""
    exact = torch.linalg.solve_triangular(
        torch.eye(len(a), dtype=torch.float64) + a.double(),
        torch.eye(len(a), dtype=torch.float64),
        upper=False,
        unitriangular=True,
    )
    return float((made.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 33, 64])
def test_the_inverse_by_blocks_is_exact_to_rounding(size: int, alike: bool) -> None:
    """3e-8 for beta up to 1 and 7e-6 at beta 1.98, with identical keys too (design 04)."""
    for beta, bound in ((1.0, 3e-8), (0.7, 1.2e-7), (1.98, 7e-6)):
        a = gram(size, beta, alike, seed=size).to(F32)
        assert inverse_error(unit_lower_inverse(a), a) <= bound * (1 if alike else 10), beta
    exact = gram(size, 1.98, alike, seed=size)
    assert inverse_error(unit_lower_inverse(exact), exact) <= 1e-12


def product_form(a: torch.Tensor) -> torch.Tensor:
    """(I + A)^-1 as prod (I + (-A)^(2^i)): equal on paper."""
    identity = torch.eye(len(a), dtype=a.dtype)
    inverse, power = identity - a, -a
    for _ in range(len(a).bit_length()):
        power = power @ power
        inverse = inverse @ (identity + power)
    return inverse


def test_why_the_product_of_powers_is_forbidden() -> None:
    """Repeated tokens: its powers grow as binomial coefficients and cancel, so that nothing is left at 64 nodes."""
    for size, at_least in ((16, 1e-6), (64, 1e2)):
        a = gram(size, 0.99, alike=True, seed=0).to(F32)
        assert inverse_error(product_form(a), a) > at_least
        assert inverse_error(unit_lower_inverse(a), a) < 1e-6
    a = gram(4, 0.5, alike=False, seed=0)
    assert inverse_error(product_form(a), a) < 1e-12, "on paper they are equal"


def test_poison_reaches_all_rows_that_do_not_count() -> None:
    made = poisoned(torch.zeros(1, 2, 3), torch.tensor([[True, False]]))
    assert made[0, 0].isfinite().all()
    assert not made[0, 1].isfinite().any()
