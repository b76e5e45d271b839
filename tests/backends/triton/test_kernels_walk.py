"""The schedules that go token by token, and commits, in the interpreter: values against float64, and equal bits."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops.delta import (
    delta_rule,
    delta_rule_,
    delta_rule_chunk,
    delta_rule_chunk_,
    delta_rule_commit,
    delta_rule_commit_,
)
from specc.backends.triton.ops.delta_launch import Gate, heavy_light, launch_walk, outputs_of, rows_of
from specc.backends.triton.ops.delta_tables import TREE, TreeConfig, WalkConfig, commit_config, tree_config, walk_config
from specc.backends.triton.ops.delta_variants import PREFIXES, TREE_OPERANDS, variant
from specc.backends.triton.ops.delta_verify import table_of
from specc.ir import ops
from tests.backends.triton.trees import BOUND, Operands, called, check, exact, operands, relative, trees

BY_STEPS = ("serial", "hybrid", "replay")
FORKED = [[0, 1, 1, 2, 0], [0, 1, 2, 3, 4]]


def path_of(parent_row: list[int], node: int) -> list[int]:
    return [*(path_of(parent_row, parent_row[node] - 1) if parent_row[node] else []), node]


def by_plain_decoding(case: Operands, b: int, node: int) -> tuple[torch.Tensor, ...]:
    """(o, u, state') of a node: its path, one token per call."""
    state = case.state[b : b + 1]
    for at in path_of(case.parent_row[b].tolist(), node):
        o, u, state = delta_rule(state, *(x[b : b + 1, at : at + 1] for x in case.rows[1:]))
    return o[0, 0], u[0, 0], state[0]


@settings(max_examples=5)
@given(trees(max_nodes=4), st.sampled_from(BY_STEPS))
def test_schedules_by_steps_have_the_bits_of_plain_decoding(case: Operands, schedule: str) -> None:
    o, u, states = called("delta_rule_verify_states", case, schedule)
    check(case, o, u, exact(case))
    again = called("delta_rule_verify", case, schedule)
    assert torch.equal(again[0], o)
    assert torch.equal(again[1], u)
    b = case.state.shape[0] - 1
    node = int(case.valid[b].sum()) - 1
    for mine, plain in zip((o[b, node], u[b, node], states[b, node]), by_plain_decoding(case, b, node), strict=True):
        assert torch.equal(mine, plain)


@pytest.mark.parametrize("schedule", BY_STEPS)
def test_all_nodes_of_a_fork_have_the_bits_of_plain_decoding(schedule: str) -> None:
    case = operands(FORKED, [5, 4], heads=(1, 1), sizes=(16, 8))
    o, u = called("delta_rule_verify", case, schedule)
    for b, real in enumerate((5, 4)):
        for node in range(real):
            plain = by_plain_decoding(case, b, node)
            assert torch.equal(o[b, node], plain[0])
            assert torch.equal(u[b, node], plain[1])


NESTED = [0, 1, 2, 2, 1, 5, 5, 0]
"""Branches within branches: one tile waits in registers, others in the table, and the context's children come last."""


@pytest.mark.parametrize("schedule", ["serial", "hybrid"])
def test_branches_within_branches_have_the_bits_of_plain_decoding(schedule: str) -> None:
    case = operands([NESTED], [8], heads=(1, 1), sizes=(16, 8))
    o, u = called("delta_rule_verify", case, schedule)
    for node in range(8):
        plain = by_plain_decoding(case, 0, node)
        assert torch.equal(o[0, node], plain[0])
        assert torch.equal(u[0, node], plain[1])


def depth_first(parent_row: list[int], above: int = 0) -> list[int]:
    """Nodes below a row, of siblings the one with the largest subtree (the first of equals) last."""
    below = [[node, *depth_first(parent_row, node + 1)] for node, row in enumerate(parent_row) if row == above]
    heavy = max(below, key=len, default=[])
    return [node for chain in (*(chain for chain in below if chain is not heavy), heavy) for node in chain]


@given(st.integers(1, 20).flatmap(lambda n: st.tuples(*(st.integers(0, i) for i in range(n)))), st.integers(0, 20))
def test_order_walks_the_heavy_child_last(parents: tuple[int, ...], padding: int) -> None:
    valid = torch.arange(len(parents)) < max(1, len(parents) - padding)
    parent_row = torch.where(valid, torch.tensor(parents), 0).unsqueeze(0)
    order = heavy_light(parent_row, ops.ancestor_mask(parent_row, valid.unsqueeze(0)))
    assert order[0].tolist() == depth_first(parent_row[0].tolist())


def test_chain_in_one_call_has_the_bits_of_single_tokens() -> None:
    case = operands([[0, 1, 2, 3]], [4], heads=(1, 2))
    o, u, state = delta_rule(*case.rows)
    plain = by_plain_decoding(case, 0, 3)
    assert all(torch.equal(a, b) for a, b in zip((o[0, 3], u[0, 3], state[0]), plain, strict=True))
    check(case, o, u, exact(case))
    chain: dict[str, Any] = {"parent_row": None, "mask": None}
    assert torch.equal(called("delta_rule_verify", case, "serial", **chain)[0][0, 3], plain[0])
    _, u, states = called("delta_rule_verify_states", case, "serial", **chain)
    assert torch.equal(u[0, 3], plain[1])
    assert torch.equal(states[0, 3], plain[2])


def test_states_of_the_tree_schedule() -> None:
    case = operands(FORKED, [5, 5])
    expected = ops.delta_rule_verify_states(*case.wide, *case.tree, "serial")
    _, u, states = called("delta_rule_verify_states", case, "tree")
    assert relative(states, expected[2], expected[2]) <= BOUND
    assert relative(u, expected[1], expected[1]) <= 1e-5


def test_gates_of_the_walk_are_those_of_plain_operands() -> None:
    case = operands([[0, 1, 1]], [3], heads=(1, 2))
    a, b = torch.randn(1, 3, 2), torch.randn(1, 3, 2)
    gate = Gate(torch.tensor([0.1, -2.0]), torch.tensor([0.3, -0.4]), torch.full_like(a, float("nan")), 2)
    rows = rows_of(case.q, case.k, case.v, a, b)
    o, u = outputs_of(case.state, rows)
    table = table_of(case.state, case.parent_row)
    launch_walk(case.state, rows, o, u, parent_row=case.parent_row, table=table, gate=gate)
    g = -gate.a_log.double().exp() * torch.nn.functional.softplus(a.double() + gate.dt_bias.double())
    # exp turns an absolute error of its float32 argument into a relative one of the gate: |x| ulps beside a few others.
    bound = (a.double().abs() + gate.dt_bias.double().abs() + 8) * 2**-24 * g.abs()
    assert ((gate.out.double() - g).abs() <= bound).all()
    want = case.with_(g=g.float(), beta=(2 * torch.sigmoid(b.double())).float())
    check(want, o, u, exact(want))


@pytest.mark.parametrize("sizes", [(8, 16), (24, 40)])
def test_sizes_that_are_no_powers_of_two(sizes: tuple[int, int]) -> None:
    """Rows of columns beyond K and of values beyond V are not touched: the states lie side by side."""
    case = operands(FORKED, [5, 5], heads=(1, 2), sizes=sizes)
    o, u, states = called("delta_rule_verify_states", case, "hybrid")
    check(case, o, u, exact(case))
    wide = ops.delta_rule_verify_states(*case.wide, *case.tree, "serial")[2]
    assert relative(states, wide, wide) <= BOUND


def test_prompts_by_chunks_and_in_place() -> None:
    case = operands([[0, 1, 2, 3, 4]], [5], heads=(1, 2))
    wide = ops.delta_rule_chunk(*case.wide, 2)
    o, u, after = delta_rule_chunk(*case.rows, 2)
    check(case, o, u, wide[:2])
    assert relative(after, wide[2], wide[2]) <= BOUND
    for rule, more in ((delta_rule_, ()), (delta_rule_chunk_, (2,))):
        state = case.state.clone()
        assert torch.equal(rule(state, *case.rows[1:], *more)[1], u)  # type: ignore[operator]
        assert torch.equal(state, after)


@pytest.mark.parametrize("form", ["steps", "rank_n"])
def test_commit_of_all_layers_in_one_launch(form: str) -> None:
    """Counts of 0 and of the whole path; rows that are not on the path hold NaN."""
    layers, batch, nodes = 2, 3, 4
    state = torch.randn(layers, batch, 2, 16, 32)
    k = torch.randn(layers, batch, nodes, 1, 32).to(torch.bfloat16)
    u, g = torch.randn(layers, batch, nodes, 2, 16), -torch.rand(layers, batch, nodes, 2)
    path, count = torch.tensor([[0, 2, 3], [1, 1, 1], [3, 0, 0]]), torch.tensor([3, 0, 1])
    k[:, 0, 1], u[:, 0, 1], g[:, 0, 1] = float("nan"), float("nan"), float("nan")
    wide = [x.double() for x in (state, k, u, g)]
    expected = torch.stack([ops.delta_rule_commit(*(x[n] for x in wide), path, count, form) for n in range(layers)])
    after = delta_rule_commit(state, k, u, g, path, count, form)
    assert relative(after, expected, expected) <= 2e-7
    assert torch.equal(after[:, 1], state[:, 1])
    delta_rule_commit_(state, k, u, g, path, count, form)
    assert torch.equal(state, after)


def pending_of(case: Operands, rows: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Factors (raw k, u, g) of `rows` tokens of plain decoding in front of a case, and the states behind each."""
    batch = case.state.shape[0]
    before = operands([list(range(rows))] * batch, [rows] * batch, (case.k.shape[2], case.v.shape[2]),
                      (case.k.shape[3], case.v.shape[3]), seed=77)  # fmt: skip
    state, states, factors = case.state, [case.state], []
    for at in range(rows):
        _, u, state = delta_rule(state, *(x[:, at : at + 1] for x in before.rows[1:]))
        states.append(state)
        factors.append(u)
    return (before.k, torch.cat(factors, 1), before.g), tuple(states)


def waiting(
    factors: tuple[torch.Tensor, ...], path: torch.Tensor | None, count: torch.Tensor, window: int, schedule: str
) -> dict[str, Any]:
    """Operands of a verify with factors pending."""
    named = dict(zip(("pending_k", "pending_u", "pending_g"), factors, strict=True))
    form = "rank_n" if schedule == "tree" else "steps"
    return {**named, "path": path, "count": count, "window": window, "form": form}


# Whether a window of one or three is due is asked before any schedule: both for trees, one of them for those by steps.
@pytest.mark.parametrize(
    ("schedule", "window"), [("tree", 1), ("tree", 3), ("serial", 3), ("hybrid", 1), ("replay", 3)]
)
def test_pending_factors(schedule: str, window: int) -> None:
    """Sequences with none, some and a window full of pending factors in one batch; by steps the bits are plain's."""
    case = operands([FORKED[0]] * 3, [5, 5, 5], heads=(1, 2), sizes=(16, 16))
    factors, states = pending_of(case, 3)
    count, path = torch.tensor([0, 2, 3]), torch.tensor([[2, 2, 2], [0, 1, 2], [0, 1, 2]])
    more = waiting(factors, path, count, window, schedule)
    after, o, u = called("delta_rule_verify_pending", case, schedule, **more)
    at = torch.stack([states[c][b] for b, c in enumerate(count.tolist())])
    expected = exact(case.with_(state=at))
    check(case, o, u, expected, 1e-5 if schedule == "tree" else BOUND)
    due = count >= window
    assert torch.equal(after[~due], case.state[~due])
    assert relative(after[due], at[due].double(), at[due].double()) <= 2e-7
    if schedule != "tree":
        plain = called("delta_rule_verify", case.with_(state=at), schedule)
        assert torch.equal(after[due], at[due])
        assert torch.equal(o, plain[0])
        assert torch.equal(u, plain[1])
    state = case.state.clone()
    again = called("delta_rule_verify_pending_", case.with_(state=state), schedule, **more)
    assert torch.equal(state, after)
    assert torch.equal(again[1], u)


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("size", [16, 24, 32])
def test_sequences_that_are_due_and_others(size: int, bulk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole tiles and tiles that stick out, of several chunks."""
    config = TreeConfig(bv=16, bk=16, warps=4, stages=2, prepare_bk=16, pieces=3, bulk=bulk)
    monkeypatch.setattr("specc.backends.triton.ops.delta_launch.tree_config", lambda *_: config)
    case = operands([FORKED[0]] * 3, [5, 5, 5], heads=(1, 2), sizes=(size, size))
    factors, states = pending_of(case, 3)
    count, path = torch.tensor([0, 2, 3]), torch.tensor([[2, 2, 2], [0, 1, 2], [0, 1, 2]])
    after, o, u = called("delta_rule_verify_pending", case, "tree", **waiting(factors, path, count, 2, "tree"))
    at = torch.stack([states[c][b] for b, c in enumerate(count.tolist())])
    check(case, o, u, exact(case.with_(state=at)), BOUND)
    assert torch.equal(after[0], case.state[0])
    assert relative(after[1:], at[1:].double(), at[1:].double()) <= 2e-7


@pytest.mark.parametrize("schedule", ["tree", "serial"])
def test_pending_factors_of_a_chain(schedule: str) -> None:
    case = operands([[0, 1, 2]], [3], sizes=(16, 16))
    factors, states = pending_of(case, 2)
    more = waiting(factors, None, torch.tensor([2]), 1, schedule) | {"parent_row": None, "mask": None}
    after, o, u = called("delta_rule_verify_pending", case, schedule, **more)
    check(case, o, u, exact(case.with_(state=states[2])), 1e-5)
    assert relative(after, states[2].double(), states[2].double()) <= 2e-7


@pytest.mark.parametrize("schedule", ["tree", "serial"])
def test_pending_rows_that_do_not_count_have_no_effect(schedule: str) -> None:
    case = operands([FORKED[0]], [5], sizes=(16, 16))
    (k, u, g), states = pending_of(case, 3)
    k[:, 2:], u[:, 2:], g[:, 2:] = float("nan"), float("inf"), float("nan")
    more = waiting((k, u, g), None, torch.tensor([2]), 1, schedule)
    after, o, factors = called("delta_rule_verify_pending", case, schedule, **more)
    check(case, o, factors, exact(case.with_(state=states[2])), 1e-5)
    assert relative(after, states[2].double(), states[2].double()) <= 2e-7


@settings(max_examples=6)
@given(trees(max_nodes=4), st.data())
def test_trees_with_pending_factors(case: Operands, data: st.DataObject) -> None:
    """Any tree, counts from 0 to all rows, any window; sizes as `trees` draws them."""
    rows, batch = 3, case.state.shape[0]
    factors, states = pending_of(case, rows)
    count = torch.tensor([data.draw(st.integers(0, rows)) for _ in range(batch)])
    window, schedule = data.draw(st.integers(0, 4)), data.draw(st.sampled_from(["tree", "hybrid"]))
    after, o, u = called("delta_rule_verify_pending", case, schedule, **waiting(factors, None, count, window, schedule))
    at = torch.stack([states[c][b] for b, c in enumerate(count.tolist())])
    check(case, o, u, exact(case.with_(state=at)), 1e-5)
    due = (count >= max(window, 1)).view(-1, 1, 1, 1)
    expected = torch.where(due, at, case.state).double()
    assert relative(after, expected, expected) <= 2e-7


def test_wide_batches_have_the_bits_of_narrow_ones() -> None:
    """A configuration for many sequences has other tiles but the same sums."""
    case = operands([[0, 1, 2]] * 2, [3, 3], heads=(1, 1), sizes=(64, 32))
    rows = rows_of(*case.rows[1:])
    results = []
    for block in (8, 16, 32):
        o, u = outputs_of(case.state, rows)
        launch_walk(case.state, rows, o, u, config=WalkConfig(bv=block, e=32, warps=1))
        results.append((o, u))
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_functions_take_what_their_variant_says() -> None:
    for op, prefix in PREFIXES.items():
        for kind in TREE_OPERANDS:
            chain = {"parent_row": None, "mask": None} if kind == "chain" else {"parent_row": 0, "mask": 0}
            found = variant(op, {"schedule": "serial" if kind == "chain" else kind, **chain})
            assert found is not None
            assert found.function.__name__ == prefix.format(kind)
            names = list(inspect.signature(found.function).parameters)
            assert names == list(found.operands) or (names == ["state", "rest"] and op == "delta_rule_verify_pending")
    assert variant("delta_rule", {}) is None


def test_tables_have_an_answer_for_every_geometry() -> None:
    assert walk_config(256, 256, 8).e == walk_config(256, 256, 10**6).e
    assert tree_config(64, 96, 128, 10**6) in [config for _, config in TREE[(128, 128, 64)]]
    assert commit_config(8, 16) == commit_config(128, 128)
