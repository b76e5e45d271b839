"""The state tile as a tuple of parts: one order of sums in all kernels that use it, whatever its rows, blocks and rows
ahead; errors against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops.delta_launch import Rows, launch_walk, outputs_of, walk_tile
from specc.backends.triton.ops.delta_tables import SINGLE, WALK, WalkConfig
from tests.backends.triton.apart import printed
from tests.backends.triton.trees import Operands, check, exact, operands

Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def walked(case: Operands, config: WalkConfig) -> Results:
    """(o in float32, u, state') of a chain in one call."""
    rows = Rows(*case.rows[1:])
    o, u = outputs_of(case.state, rows)
    o, after = o.float(), torch.empty_like(case.state)
    launch_walk(case.state, rows, o, u, after=after, config=config)
    return o, u, after


def by_single_tokens(case: Operands, config: WalkConfig) -> Results:
    """`walked`, one call per token."""
    state, outputs, factors = case.state.clone(), [], []
    for at in range(case.k.shape[1]):
        rows = Rows(*(x[:, at : at + 1] for x in case.rows[1:]))
        o, u = outputs_of(state, rows)
        outputs.append(o.float())
        launch_walk(state, rows, outputs[-1], u, after=state, config=config)
        factors.append(u)
    return torch.cat(outputs, 1), torch.cat(factors, 1), state


@settings(max_examples=4, deadline=None)
@given(
    st.integers(1, 5),
    st.sampled_from([(32, 16), (24, 20), (64, 8)]),
    st.sampled_from([16, 32]),
    st.sampled_from([8, 16]),
    st.booleans(),
)
def test_a_chain_has_the_bits_of_single_tokens(
    nodes: int, sizes: tuple[int, int], e: int, block: int, deep: bool
) -> None:
    case = operands([list(range(nodes))], [nodes], heads=(1, 2), sizes=sizes)
    found = walked(case, WalkConfig(bv=block, e=e, warps=1, deep=deep))
    plain = by_single_tokens(case, WalkConfig(bv=16, e=e, warps=1))
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    check(case, found[0], found[1], exact(case))


def test_a_chain_of_more_nodes_than_are_prepared_at_once() -> None:
    """18 nodes: two blocks of 16, whose numbers lie in the same place one after the other."""
    case = operands([list(range(18))], [18], heads=(1, 1), sizes=(16, 8))
    found = walked(case, WalkConfig(bv=8, e=16, warps=1, deep=True))
    plain = by_single_tokens(case, WalkConfig(bv=8, e=16, warps=1))
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    check(case, found[0], found[1], exact(case))


def test_a_thread_has_four_numbers_of_a_part() -> None:
    """Fewer or more would be another order of sums on a GPU; the interpreter has no threads."""
    every = [*(config for table in WALK.values() for _, config in table), *SINGLE.values()]
    for keys, values in ((16, 8), (24, 40), (64, 96), *WALK):
        for config in every:
            rows, parts, across, at_once = walk_tile(config, keys, values)
            assert parts * across >= keys
            assert at_once * across == 128 * config.warps
            assert rows >= at_once
    for sizes, table in WALK.items():
        assert {config.e for _, config in table} == {SINGLE[sizes].e}


@pytest.mark.slow
@pytest.mark.parametrize("keys", [128, 256])
def test_steps_of_a_chain_move_nothing_between_threads(keys: int) -> None:
    """Compiled for sm_90: no change of layout, and the layout that the order of sums is that of; for a single token no
    barrier either."""
    found = printed("compiled_walk", keys)
    assert found
    for name, seen in found.items():
        assert seen["parts"] > 0, name
        assert (seen["conversions"], seen["barriers"], seen["others"]) == (0, 0, 0), name
