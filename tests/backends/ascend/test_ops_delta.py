"""The gated delta rule of Ascend modules equals the op: trees, padding, pending factors, repeated keys."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.backends.ascend.ops import delta
from specc.backends.ascend.ops.delta_math import unit_upper_inverse
from specc.ir.ops.delta_math import unit_lower_inverse
from tests.backends.ascend.op_support import agree, assert_close, assert_convertible, strictly, traced_ops
from tests.unit.delta_cases import Case, Pending, cases, pending_cases, random_rows, tree_of

F32, F64 = torch.float32, torch.float64
DTYPES = st.sampled_from([F32, F64])
BOUND = {F32: 3e-5, F64: 1e-11}


@given(cases(max_nodes=16), DTYPES, st.booleans())
def test_verify_and_states_agree(case: Case, dtype: torch.dtype, chain: bool) -> None:
    case = case.to(dtype)
    tree = (None, None) if chain else (case.parent_row, case.mask)
    agree("delta_rule_verify", (case.state, *case.rows, *tree, "tree"), BOUND[dtype])
    agree("delta_rule_verify_states", (case.state, *case.rows, *tree, "tree"), BOUND[dtype])


@given(cases(chain=True, max_nodes=12), DTYPES, st.integers(1, 13))
def test_chains_and_chunks_agree(case: Case, dtype: torch.dtype, chunk: int) -> None:
    case = case.to(dtype)
    agree("delta_rule", (case.state, *case.rows), BOUND[dtype])
    agree("delta_rule_chunk", (case.state, *case.rows, chunk), BOUND[dtype])


@given(pending_cases(), DTYPES, st.integers(0, 4), st.sampled_from(["steps", "rank_n"]), st.booleans())
def test_pending_factors_agree(
    made: tuple[Case, Pending], dtype: torch.dtype, window: int, form: str, chain: bool
) -> None:
    case, pending = made[0].to(dtype), made[1]
    factors = (pending.k.to(dtype), pending.u.to(dtype), pending.g.to(dtype), pending.path, pending.count)
    tree = (None, None) if chain else (case.parent_row, case.mask)
    arguments = (case.state, *factors, window, form, *case.rows, *tree, "tree")
    after = agree("delta_rule_verify_pending", arguments, BOUND[dtype])[0]
    for b in (pending.count < max(window, 1)).nonzero().flatten().tolist():
        assert torch.equal(after[b], case.state[b]), "a state that is not due stays bit for bit"


@given(pending_cases(), DTYPES, st.sampled_from(["steps", "rank_n"]))
def test_commits_agree(made: tuple[Case, Pending], dtype: torch.dtype, form: str) -> None:
    case, pending = made[0].to(dtype), made[1]
    rows = pending.k.shape[1]
    path = torch.arange(rows).expand(case.state.shape[0], -1) if pending.path is None else pending.path
    factors = (pending.k.to(dtype), pending.u.to(dtype), pending.g.to(dtype), path, pending.count, form)
    after = agree("delta_rule_commit", (case.state, *factors), BOUND[dtype])
    for b in (pending.count == 0).nonzero().flatten().tolist():
        assert torch.equal(after[b], case.state[b])


def repeated(nodes: int, beta: float, dtype: torch.dtype) -> Case:
    """One key for all nodes of a chain and a rate near 2: where products of powers lose everything."""
    generator = torch.Generator().manual_seed(nodes)
    q, k, v, g, rate = random_rows(generator, (1, 2), (2, nodes, 16, 8))
    k = k[:, :1].expand(-1, nodes, -1, -1).clone()
    state = torch.randn(2, 2, 8, 16, dtype=F64, generator=generator)
    chain = tree_of([list(range(nodes))] * 2, [nodes] * 2)
    return Case(state, q, k, v, g * 1e-3, torch.full_like(rate, beta), *chain).to(dtype)


@pytest.mark.parametrize("nodes", [1, 2, 3, 13, 16])
@pytest.mark.parametrize("beta", [1.0, 1.98, 2.0])
def test_repeated_keys_keep_their_digits(nodes: int, beta: float) -> None:
    case, exact = repeated(nodes, beta, F32), repeated(nodes, beta, F64)
    _, u = strictly(delta.delta_rule_verify, case.state, *case.rows, case.parent_row, case.mask, "tree")
    _, wanted = torch.ops.specc.delta_rule_verify(exact.state, *exact.rows, exact.parent_row, exact.mask, "serial")
    size = float((exact.beta.unsqueeze(-1) * exact.v).norm())
    assert float((u.double() - wanted).norm()) <= (2e-5 if nodes > 3 else 5e-7) * max(size, 1.0)


@given(st.integers(1, 33), st.integers(0, 1 << 20))
def test_the_inverse_is_that_of_the_op(size: int, seed: int) -> None:
    a = torch.randn(2, size, size, dtype=F64, generator=torch.Generator().manual_seed(seed))
    wanted = unit_lower_inverse(a.tril(-1)).transpose(1, 2)
    assert_close(unit_upper_inverse(a.transpose(1, 2)), wanted, 1e-9)


def test_siblings_with_steep_decays_do_not_overflow() -> None:
    """The mask comes before exp."""
    generator = torch.Generator().manual_seed(0)
    rows = random_rows(generator, (1, 2), (1, 6, 8, 4))
    state = torch.randn(1, 2, 4, 8, dtype=F64, generator=generator)
    g = torch.where(torch.arange(6) % 2 == 0, -120.0, -0.001).view(1, 6, 1).expand(1, 6, 2)
    case = Case(state, *rows[:3], g, rows[4], *tree_of([[0, 1, 1, 1, 1, 1]], [6])).to(F32)
    agree("delta_rule_verify", (case.state, *case.rows, case.parent_row, case.mask, "tree"), 3e-5)


def test_a_path_behind_its_count_may_hold_anything() -> None:
    case = repeated(3, 0.5, F32)
    u = torch.ones(2, 3, 2, 8)
    path = torch.tensor([[0, 99, -1], [2, -7, 3]])
    kept = torch.tensor([[0, 0, 0], [2, 0, 0]])
    made = strictly(delta.delta_rule_commit, case.state, case.k, u, case.g, path, torch.tensor([1, 1]), "rank_n")
    wanted = torch.ops.specc.delta_rule_commit(case.state, case.k, u, case.g, kept, torch.tensor([1, 1]), "rank_n")
    assert_close(made, wanted, 3e-5)


@pytest.mark.parametrize("batch", [1, 2])
def test_ge_has_every_op_of_the_rule(batch: int) -> None:
    case = repeated(13, 1.0, F32).take(slice(0, batch))
    half = tuple(x.to(torch.bfloat16) for x in case.rows[:3])
    path, count = torch.zeros(batch, 4, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)
    u = torch.zeros(batch, 13, 2, 8)
    tree = (case.parent_row, case.mask, "tree")
    for rows in (case.rows, (*half, case.g, case.beta)):
        assert_convertible(delta.delta_rule, case.state, *rows)
        assert_convertible(delta.delta_rule_chunk, case.state, *rows, 5)
        assert_convertible(delta.delta_rule_verify, case.state, *rows, *tree)
        assert_convertible(delta.delta_rule_verify_states, case.state, *rows, *tree)
        factors = (rows[1], u, case.g, path, count)
        assert_convertible(delta.delta_rule_commit, case.state, *factors, "rank_n")
        assert_convertible(delta.delta_rule_verify_pending, case.state, *factors, 0, "rank_n", *rows, *tree)


def test_a_verify_layer_needs_few_ops() -> None:
    """What depends on the tree alone is the same in all layers; the rest is at most 80 with pending factors."""
    case = repeated(13, 1.0, F32)
    count, u = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 13, 2, 8)
    tree = (case.parent_row, case.mask, "tree")

    def layers(number: int) -> int:
        def step(state: torch.Tensor, *rest: torch.Tensor) -> list[torch.Tensor]:
            rows, factors, (parent_row, mask, pending) = rest[:5], rest[5:8], rest[8:]
            made = [
                delta.delta_rule_verify_pending(
                    state, *factors, None, pending, 8, "rank_n", *rows, parent_row, mask, "tree"
                )
                for _ in range(number)
            ]
            return [x for results in made for x in results]

        return len(traced_ops(step, case.state, *case.rows, case.k, u, case.g, *tree[:2], count, merged=True))

    assert layers(2) - layers(1) <= 80
