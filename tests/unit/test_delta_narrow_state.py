"""A bfloat16 state: the rule computes in float32 and rounds the state where it is stored, nowhere else."""

from __future__ import annotations

import pytest
import torch

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
