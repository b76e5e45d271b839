"""The recurrent operator on a pool of states: equal to its definition, near the exact rule, in place in a GE graph."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.backends.ascend import cpu
from specc.backends.ascend.harness import counts
from specc.backends.ascend.harness.lower import lower
from specc.backends.ascend.ops import chain
from specc.ir import ops

cpu.register()
KEY, VALUE = 16, 8
UNIT = torch.finfo(torch.bfloat16).eps / 2
Case = tuple[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor, int]


def case_of(batch: int, nodes: int, heads: tuple[int, int], rows: list[int], carried: bool, seed: int) -> Case:
    """A pool, rows of a chain, the committed row of every sequence, and the operator's tokens."""
    made = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=made)

    size = nodes + 1 if carried else max(rows, default=0) + nodes
    pool = normal(batch, size, heads[1], VALUE, KEY).bfloat16()
    q, k = (normal(batch, nodes, heads[0], KEY).bfloat16() for _ in range(2))
    v = normal(batch, nodes, heads[1], VALUE).bfloat16()
    g, beta = -normal(batch, nodes, heads[1]).abs(), normal(batch, nodes, heads[1]).sigmoid()
    return pool, (q, k, v, g, beta), torch.tensor(rows) % size, nodes + int(carried)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    batch, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    rows = [draw(st.integers(0, nodes)) for _ in range(batch)]
    heads = draw(st.sampled_from(((1, 1), (1, 2), (2, 2), (2, 4))))
    return case_of(batch, nodes, heads, rows, draw(st.booleans()), draw(st.integers(0, 999)))


def exact(pool: torch.Tensor, rows: tuple[torch.Tensor, ...], row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and the state behind the last token, in float64 without any rounding."""
    state = pool[torch.arange(len(row)), row].double()
    o, _, after = ops.delta_rule(state, *(x.double() for x in rows))
    return o, after


@given(cases())
@settings(max_examples=40)
def test_the_operator_is_its_definition_and_near_the_exact_rule(case: Case) -> None:
    pool, rows, row, tokens = case
    slots = ops.npu_chain_slots(row, pool.shape[1], tokens)
    assert torch.equal(chain.npu_chain_slots(row, pool.shape[1], tokens), slots)
    o, after = ops.npu_recurrent_chain(pool, *rows, slots)
    found = chain.npu_recurrent_chain(pool.flatten(0, 1), *rows, slots)
    assert torch.allclose(found[0].float(), o.float(), rtol=2 * UNIT, atol=1e-6)
    assert torch.allclose(found[1].float(), after.flatten(0, 1).float(), rtol=2 * UNIT, atol=1e-6)
    # q, k, rates and the result are rounded: 4 roundings, and those of k count twice, in u and in the state.
    wide_o, wide_after = exact(pool, rows, row)
    nodes = rows[0].shape[1]
    places = slots.reshape(len(row), -1)[:, -1].long()
    assert (o - wide_o).abs().max() <= 6 * UNIT * nodes * max(1.0, float(wide_o.abs().max()))
    last = after.flatten(0, 1)[places]
    assert (last - wide_after).abs().max() <= 6 * UNIT * nodes * float(wide_after.abs().max().clamp(min=1.0))


@given(cases())
@settings(max_examples=25)
def test_rows_that_no_token_has_stay_as_they_are(case: Case) -> None:
    """Among them the committed row, where a token carries it on."""
    pool, rows, row, tokens = case
    slots = ops.npu_chain_slots(row, pool.shape[1], tokens)
    written = slots.reshape(len(row), -1)[:, tokens - rows[0].shape[1] :].flatten()
    after = chain.npu_recurrent_chain(pool.flatten(0, 1), *rows, slots)[1]
    kept = torch.ones(len(after), dtype=torch.bool)
    kept[written.long()] = False
    assert torch.equal(after[kept], pool.flatten(0, 1)[kept])
    assert kept.sum() == len(after) - written.numel()


@pytest.mark.parametrize("rows", [[0, 0], [3, 1]])
def test_a_pool_is_read_at_its_row_and_filled_in_all(rows: list[int]) -> None:
    pool, _, row, _ = case_of(2, 3, (1, 2), rows, True, 0)
    state = chain.npu_pool_read(pool.flatten(0, 1), row)
    assert torch.equal(state, ops.npu_pool_read(pool, row))
    assert torch.equal(state[1], pool[1, rows[1]])
    filled = chain.npu_pool_fill(pool.flatten(0, 1), state)
    assert torch.equal(filled, ops.npu_pool_fill(pool, state).flatten(0, 1))
    assert torch.equal(chain.npu_pool_read(filled, torch.tensor([2, 0])), state)


def test_a_graph_updates_its_pool_in_place_at_any_row(torch_npu_wheel: Path) -> None:
    pool, rows, row, tokens = case_of(2, 3, (1, 2), [0, 0], True, 1)

    def step(pool: torch.Tensor, row: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        o, after = chain.npu_recurrent_chain(pool, *rows, chain.npu_chain_slots(row, tokens, tokens))  # type: ignore[arg-type]
        pool.copy_(after)
        return o

    flat = pool.flatten(0, 1).clone()
    lowered = lower(step, (flat, row, *rows))
    found = Counter(op.type for op in lowered.graph.op)
    assert found["RecurrentGatedDeltaRule"] == 1
    assert found["Assign"] == 0
    assert counts.copies(lowered.graph) == []
    for place in ([0, 3], [2, 1]):
        row, mine, device = torch.tensor(place), pool.flatten(0, 1).clone(), pool.flatten(0, 1).clone()
        assert torch.equal(lowered.run(device, row, *rows), step(mine, row, *rows))
        assert torch.equal(device, mine)
        assert not torch.equal(device, pool.flatten(0, 1))
    assert lowered.recompiles == 0


@pytest.mark.parametrize(
    ("problem", "call"),
    [
        (ValueError, lambda: ops.npu_chain_slots(torch.tensor([0]), 2, 3)),
        (IndexError, lambda: ops.npu_chain_slots(torch.tensor([2]), 2, 1)),
        (IndexError, lambda: ops.npu_pool_read(torch.zeros(1, 2, 1, 2, 2), torch.tensor([2]))),
        (ValueError, lambda: _given(state=torch.float32)),
        (ValueError, lambda: _given(values=torch.float16)),
        (ValueError, lambda: _given(tokens=3)),
    ],
)
def test_what_the_operator_does_not_take_is_refused(problem: type[Exception], call: object) -> None:
    with pytest.raises(problem):
        call()  # type: ignore[operator]


def _given(state: torch.dtype = torch.bfloat16, values: torch.dtype = torch.bfloat16, tokens: int = 1) -> None:
    pool, (q, k, v, g, beta), row, _ = case_of(1, 1, (1, 1), [0], False, 0)
    slots = ops.npu_chain_slots(row, 4, tokens)
    ops.npu_recurrent_chain(pool.to(state), q, k, v.to(values), g, beta, slots)
