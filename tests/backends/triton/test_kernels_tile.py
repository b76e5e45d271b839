"""The state tile with one number per thread and tensor: one order of sums in all kernels that use it, however many rows
a thread holds; errors against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops.delta_launch import Rows, launch_walk, outputs_of, walk_tile
from specc.backends.triton.ops.delta_tables import FORKED, SINGLE, WALK, WalkConfig
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
    st.sampled_from([(32, 16), (24, 20), (64, 8), (40, 32)]),
    st.sampled_from([16, 32]),
    st.sampled_from([8, 16, 32]),
)
def test_a_chain_has_the_bits_of_single_tokens(nodes: int, sizes: tuple[int, int], e: int, block: int) -> None:
    case = operands([list(range(nodes))], [nodes], heads=(1, 2), sizes=sizes)
    found = walked(case, WalkConfig(bv=block, e=e, warps=1))
    plain = by_single_tokens(case, WalkConfig(bv=16, e=e, warps=1))
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    check(case, found[0], found[1], exact(case))


@pytest.mark.parametrize("held", [1, 2, 4, 8])
def test_rows_that_a_thread_holds_leave_the_bits_alone(held: int) -> None:
    """Sums of several rows are shared out between lanes; more nodes than one program of the rows' launch makes."""
    case = operands([list(range(9))], [9], heads=(1, 2), sizes=(32, 32))
    found = walked(case, WalkConfig(bv=4 * held, e=32, warps=1))
    plain = by_single_tokens(case, WalkConfig(bv=4, e=32, warps=1))
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    check(case, found[0], found[1], exact(case))


def test_a_thread_has_four_numbers_of_a_part() -> None:
    """Fewer or more would be another order of sums on a GPU; the interpreter has no threads."""
    every = {size: [*(c for _, c in WALK[size]), *(c for _, c in FORKED[size]), SINGLE[size]] for size in WALK}
    for keys, values in ((16, 8), (24, 40), (64, 96), *WALK):
        for config in (config for configs in every.values() for config in configs):
            at_once, held, parts, across = walk_tile(config, keys, values)
            assert parts * across >= keys
            assert at_once * across in [128 << n for n in range(config.warps.bit_length())]
            assert at_once * across == 128 * config.warps or at_once >= values
            assert held in (1, 2, 4)
            assert held <= across // 4
    assert walk_tile(WalkConfig(bv=64, e=32, warps=1), 16, 64) == (8, 4, 1, 16)  # no more rows than lanes
    assert walk_tile(WalkConfig(bv=64, e=32, warps=4), 8, 8) == (8, 1, 1, 16)  # nor more warps than rows for them
    for configs in every.values():
        assert len({config.e for config in configs}) == 1


SHORT_CHAINS = ("5 in place", "5 behind factors", "verified", "states")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("keys", [8, 16, 32, 64, 128, 256])
def test_numbers_stay_where_they_are(keys: int, dtype: str) -> None:
    """What the launcher can choose, lowered for sm_90: numbers go from lane to lane by gathers, right for every layout,
    and never by assembly, which counts on one; gathers stay in a warp, and nothing is laid out anew. Short chains
    have what their steps need in shared memory, nothing else has, and barriers guard it on every path."""
    found = printed("compiled_walk", keys, dtype)
    assert len(found) >= 12
    for name, seen in found.items():
        assert seen.pop("gathers") > 0, name
        near, kind = seen.pop("near"), name.split(" WalkConfig")[0].removesuffix(" None")
        assert (near > 0) == (kind in SHORT_CHAINS), name
        assert seen == {"lanes": 0, "conversions": 0, "apart": 0, "unguarded": 0}, name
