"""A bfloat16 state: the rule computes in float32 and rounds the state where it is stored, nowhere else."""

from __future__ import annotations

import pytest
import torch

from specc.backends.reference.kernels import delta, delta_pending, delta_verify
from specc.ir import ops

HEADS, KEY, VALUE = 2, 8, 6


def rows(batch: int, tokens: int, seed: int) -> tuple[torch.Tensor, ...]:
    """q, k, v, g, beta of one key head and two value heads."""
    made = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(batch, tokens, 1, KEY, generator=made) for _ in range(2))
    v = torch.randn(batch, tokens, HEADS, VALUE, generator=made)
    g = -torch.rand(batch, tokens, HEADS, generator=made)
    beta = torch.rand(batch, tokens, HEADS, generator=made)
    return q, k, v, g, beta


def narrow_state(batch: int) -> torch.Tensor:
    """A random bfloat16 state."""
    return torch.randn(batch, HEADS, VALUE, KEY, generator=torch.Generator().manual_seed(9)).bfloat16()


@pytest.mark.parametrize("chunk", [0, 3])
def test_a_chain_is_that_of_the_same_float32_state_rounded_once(chunk: int) -> None:
    state, given = narrow_state(2), rows(2, 5, 0)
    rule = (lambda s: ops.delta_rule_chunk(s, *given, chunk)) if chunk else (lambda s: ops.delta_rule(s, *given))
    (o, u, after), (wide_o, wide_u, wide_after) = rule(state), rule(state.float())
    assert torch.equal(o, wide_o)
    assert torch.equal(u, wide_u)
    assert u.dtype == torch.float32
    assert torch.equal(after, wide_after.bfloat16())
    assert not torch.equal(after.float(), wide_after)


@pytest.mark.parametrize("schedule", ["replay", "serial", "hybrid", "tree"])
def test_nodes_of_a_chain_start_from_the_unrounded_state_of_the_node_before(schedule: str) -> None:
    """All schedules but replay, which keeps its tile in memory between tokens and rounds it each time."""
    state, given = narrow_state(2), rows(2, 4, 1)
    o, _, states = ops.delta_rule_verify_states(state, *given, None, None, schedule)
    wide_o, _, wide = ops.delta_rule_verify_states(state.float(), *given, None, None, schedule)
    assert states.dtype == torch.bfloat16
    if schedule == "replay":
        assert torch.allclose(o, wide_o, atol=0.1)
        assert not torch.equal(o[:, 1:], wide_o[:, 1:])
    else:
        assert torch.equal(o, wide_o)
        assert torch.equal(states, wide.bfloat16())


@pytest.mark.parametrize("form", ["steps", "rank_n"])
def test_a_commit_from_factors_rounds_its_result(form: str) -> None:
    state, (_, k, _, g, _) = narrow_state(2), rows(2, 4, 2)
    u = torch.randn(2, 4, HEADS, VALUE, generator=torch.Generator().manual_seed(3))
    path, count = torch.arange(4).expand(2, -1), torch.tensor([3, 0])
    found = ops.delta_rule_commit(state, k, u, g, path, count, form)
    wide = ops.delta_rule_commit(state.float(), k, u, g, path, count, form)
    assert torch.equal(found, wide.bfloat16())
    assert torch.equal(found[1], state[1])


def near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Within one rounding of a bfloat16 state: sums in another order may tip it."""
    return torch.allclose(found.float(), wanted.float(), rtol=2**-7, atol=2e-2)


def test_kernels_of_the_reference_round_where_the_ops_do() -> None:
    state, given = narrow_state(2), rows(2, 4, 5)
    for found, wanted in (
        (delta.delta_rule(state, *given), ops.delta_rule(state, *given)),
        (delta.delta_rule_chunk(state, *given, 3), ops.delta_rule_chunk(state, *given, 3)),
        (delta_verify.states_chain(state, *given), ops.delta_rule_verify_states(state, *given, None, None, "serial")),
        (
            delta_verify.states_tree(state, *given, None),
            ops.delta_rule_verify_states(state, *given, None, None, "tree"),
        ),
    ):
        o, u, after = found
        assert torch.allclose(o, wanted[0], atol=1e-5)
        assert torch.allclose(u, wanted[1], atol=1e-5)
        assert after.dtype == torch.bfloat16
        assert near(after, wanted[2])


@pytest.mark.parametrize("schedule", ["serial", "tree"])
@pytest.mark.parametrize("window", [1, 4])
def test_pending_factors_of_a_narrow_state_are_folded_in_float32(schedule: str, window: int) -> None:
    state, given, (_, k, v, g, _) = narrow_state(2), rows(2, 3, 6), rows(2, 2, 7)
    pending = (k, v, g, None, torch.tensor([2, 1]), window, "rank_n")
    after, o, u = ops.delta_rule_verify_pending(state, *pending, *given, None, None, schedule)
    mine, wide = state.clone(), state.float()
    kernel = delta_pending.pending_tree_ if schedule == "tree" else delta_pending.pending_chain_
    found = kernel(mine, *pending, *given, *([None] if schedule == "tree" else []))
    wide_after, wide_o, _ = ops.delta_rule_verify_pending(wide, *pending, *given, None, None, schedule)
    assert after.dtype == mine.dtype == torch.bfloat16
    assert near(mine, after)
    assert near(after, wide_after)
    assert torch.allclose(found[0], o, atol=2e-2)
    assert torch.allclose(found[1], u, atol=2e-2)
    assert torch.allclose(o, wide_o, atol=5e-2)
