"""The functions that generated modules carry for recurrent layers equal the ops, and keep the promised bits."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.backends.printing.helpers import HelperSources
from specc.backends.printing.layout import format_source
from specc.backends.printing.module import _imports
from specc.backends.reference.kernels import KERNELS, POINTWISE, variants
from specc.backends.reference.kernels.variants import VERIFY, variant
from specc.ir import ops
from specc.ir.op import REGISTRY
from tests.unit.delta_cases import BY_STEPS, SCHEDULES, Case, Pending, cases, pending_cases, random_rows, tree_of

F32, F64 = torch.float32, torch.float64
DTYPES = st.sampled_from([F32, F64])
DECLARED = {declared.name: declared for declared in REGISTRY.values()}


def call(name: str, *arguments: Any) -> Any:
    """The kernel of op `name`, called as a generated module calls it."""
    names = [argument.name for argument in DECLARED[name].overload._schema.arguments]
    given = dict(zip(names, arguments, strict=False))
    chosen = variant(name, given)
    if chosen is None:
        return KERNELS[name](**given)
    return chosen.function(*(given[operand] for operand in chosen.operands))


def agree(made: Any, wanted: Any, exact: bool) -> None:
    """Tensors or tuples of them: the same bits, or close for their dtype."""
    pairs = zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (made, wanted)), strict=True)
    for left, right in pairs:
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        if exact:
            assert torch.equal(left, right)
        else:
            bound = 1e-12 if left.dtype == F64 else 3e-5
            size = max(1.0, float(right.abs().max()))
            torch.testing.assert_close(left, right, rtol=bound, atol=bound * size)


@given(cases(chain=True), DTYPES)
def test_chains_have_the_ops_bits(case: Case, dtype: torch.dtype) -> None:
    case = case.to(dtype)
    wanted = ops.delta_rule(case.state, *case.rows)
    agree(call("delta_rule", case.state, *case.rows), wanted, exact=True)
    state = case.state.clone()
    agree(call("delta_rule_", state, *case.rows), wanted[:2], exact=True)
    assert torch.equal(state, wanted[2])


@given(cases(chain=True), DTYPES, st.integers(1, 10))
def test_chunks_agree(case: Case, dtype: torch.dtype, chunk: int) -> None:
    case = case.to(dtype)
    wanted = ops.delta_rule_chunk(case.state, *case.rows, chunk)
    kept = case.state.clone()
    agree(call("delta_rule_chunk", case.state, *case.rows, chunk), wanted, exact=False)
    assert torch.equal(case.state, kept)
    agree((*call("delta_rule_chunk_", kept, *case.rows, chunk), kept), wanted, exact=False)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(cases(), DTYPES, st.booleans())
def test_verify_agrees_in_every_schedule(schedule: str, case: Case, dtype: torch.dtype, chain: bool) -> None:
    case = case.to(dtype)
    tree = (None, None) if chain else (case.parent_row, case.mask)
    wanted = ops.delta_rule_verify_states(case.state, *case.rows, *tree, schedule)
    before = case.state.clone()
    exact = schedule != "tree"
    agree(call("delta_rule_verify", case.state, *case.rows, *tree, schedule), wanted[:2], exact)
    agree(call("delta_rule_verify_states", case.state, *case.rows, *tree, schedule), wanted, exact)
    assert torch.equal(case.state, before), "the committed state is not changed"


def steep_siblings() -> Case:
    """Node 0 and five children that by turns forget nothing and everything: e^{G_i - G_j} between them overflows."""
    generator = torch.Generator().manual_seed(0)
    rows = random_rows(generator, (1, 2), (1, 6, 8, 4))
    state = torch.randn(1, 2, 4, 8, dtype=F64, generator=generator)
    g = torch.where(torch.arange(6) % 2 == 0, -120.0, -0.001).view(1, 6, 1).expand(1, 6, 2)
    return Case(state, *rows[:3], g, rows[4], *tree_of([[0, 1, 1, 1, 1, 1]], [6])).to(F32)


def test_masked_ratios_may_overflow() -> None:
    """The mask comes before exp, in the tree schedule and in chunks of a prompt."""
    case = steep_siblings()
    tree = (case.parent_row, case.mask)
    factors = (case.k[:, :2], case.v[:, :2], case.g[:, :2], None, torch.tensor([2]), 9, "steps")
    wanted = ops.delta_rule_verify(case.state, *case.rows, *tree, "serial")
    agree(call("delta_rule_verify", case.state, *case.rows, *tree, "tree"), wanted, exact=False)
    wanted = ops.delta_rule_verify_pending(case.state, *factors, *case.rows, *tree, "serial")
    agree(call("delta_rule_verify_pending", case.state, *factors, *case.rows, *tree, "tree"), wanted, exact=False)
    wanted = ops.delta_rule(case.state, *case.rows)
    agree(call("delta_rule_chunk", case.state, *case.rows, 6), wanted, exact=False)


@pytest.mark.parametrize("schedule", BY_STEPS)
@given(cases(), DTYPES)
def test_schedules_by_steps_have_the_plain_kernels_bits(schedule: str, case: Case, dtype: torch.dtype) -> None:
    """With the module's own kernels: plain decoding of a node's path, alone in the batch."""
    case = case.to(dtype)
    made = call("delta_rule_verify_states", case.state, *case.rows, case.parent_row, case.mask, schedule)
    for b in range(case.state.shape[0]):
        for node in range(case.nodes):
            state = case.state[b : b + 1].clone()
            for i in case.mask[b, node].nonzero().flatten().tolist():
                o, u = KERNELS["delta_rule_"](state, *(x[b : b + 1, i : i + 1] for x in case.rows))
            agree((made[0][b, node], made[1][b, node], made[2][b, node]), (o[0, 0], u[0, 0], state[0]), exact=True)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(pending_cases(), DTYPES, st.integers(0, 4), st.sampled_from(["steps", "rank_n"]), st.booleans())
def test_pending_factors_agree_in_every_schedule(
    schedule: str, made: tuple[Case, Pending], dtype: torch.dtype, window: int, form: str, chain: bool
) -> None:
    case, pending = made[0].to(dtype), made[1]
    factors = (pending.k.to(dtype), pending.u.to(dtype), pending.g.to(dtype), pending.path, pending.count)
    tree = (None, None) if chain else (case.parent_row, case.mask)
    arguments = (*factors, window, form, *case.rows, *tree, schedule)
    wanted = ops.delta_rule_verify_pending(case.state, *arguments)
    exact = schedule != "tree" and form == "steps"
    state = case.state.clone()
    agree(call("delta_rule_verify_pending", state, *arguments), wanted, exact)
    assert torch.equal(state, case.state)
    agree((state, *call("delta_rule_verify_pending_", state, *arguments)), (state, *wanted[1:]), exact)
    agree(state, wanted[0], exact or form == "steps")
    for b in (pending.count < max(window, 1)).nonzero().flatten().tolist():
        assert torch.equal(state[b], case.state[b])


@given(pending_cases(), DTYPES, st.sampled_from(["steps", "rank_n"]))
def test_commits_agree(made: tuple[Case, Pending], dtype: torch.dtype, form: str) -> None:
    case, pending = made[0].to(dtype), made[1]
    path = pending.path
    if path is None:
        path = torch.arange(pending.k.shape[1]).expand(case.state.shape[0], -1)
    factors = (pending.k.to(dtype), pending.u.to(dtype), pending.g.to(dtype), path, pending.count, form)
    wanted = ops.delta_rule_commit(case.state, *factors)
    exact = form == "steps"
    before = case.state.clone()
    agree(call("delta_rule_commit", case.state, *factors), wanted, exact)
    assert torch.equal(case.state, before)
    call("delta_rule_commit_", before, *factors)
    agree(before, wanted, exact)


def test_in_place_forms_write_a_slice_of_a_slot() -> None:
    """A layer's slice of [L,B,HV,V,K]: only that layer changes, and the slot itself does."""
    generator = torch.Generator().manual_seed(0)
    slot = torch.randn(3, 2, 2, 4, 4, generator=generator)
    before = slot.clone()
    k, u, g = (torch.randn(2, 3, 2, *tail, generator=generator) for tail in ((4,), (4,), ()))
    path, count = torch.tensor([[0, 2], [0, 0]]), torch.tensor([2, 0])
    for form in (ops.delta_rule_commit_, KERNELS["delta_rule_commit_"]):
        changed = slot.clone()
        form(changed[1], k, u, g, path, count, "steps")
        assert torch.equal(changed[[0, 2]], before[[0, 2]])
        assert torch.equal(changed[1], ops.delta_rule_commit(before[1], k, u, g, path, count, "steps"))


@st.composite
def conv_cases(draw: st.DrawFn) -> tuple[torch.Tensor, ...]:
    """window, x, weight, bias, parent_row, live."""
    batch, nodes, channels, taps = (draw(st.integers(1, most)) for most in (3, 7, 5, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    window, x = torch.randn(batch, taps - 1 + nodes, channels, generator=generator).split((taps - 1, nodes), dim=1)
    weight, bias = torch.randn(channels, 1, taps, generator=generator), torch.randn(channels, generator=generator)
    parent_row = torch.tensor([[draw(st.integers(0, i)) for i in range(nodes)] for _ in range(batch)])
    live = torch.arange(nodes) < torch.tensor([[draw(st.integers(0, nodes))] for _ in range(batch)])
    return window.to(F64), x.to(F64), weight.to(F64), bias.to(F64), parent_row, live


@given(conv_cases(), st.sampled_from([F32, F64, torch.bfloat16]), st.booleans())
def test_convolutions_have_the_ops_bits(case: tuple[torch.Tensor, ...], dtype: torch.dtype, biased: bool) -> None:
    window, x, weight, bias = (part.to(dtype) for part in case[:4])
    parent_row, live = case[4:]
    given_bias = bias if biased else None
    for shown in (None, live):
        wanted = ops.short_conv(window, x, weight, given_bias, shown)
        agree(call("short_conv", window, x, weight, given_bias, shown), wanted, exact=True)
    wanted = ops.tree_conv(window, x, weight, given_bias, parent_row)
    agree(call("tree_conv", window, x, weight, given_bias, parent_row), wanted, exact=True)
    path = torch.argsort(parent_row, dim=1, stable=True)
    wanted = ops.conv_commit(window, x, path, live.sum(1))
    agree(call("conv_commit", window, x, path, live.sum(1)), wanted, exact=True)


@given(st.integers(0, 1 << 20), st.integers(1, 90), st.sampled_from([F32, F64, torch.bfloat16]))
def test_an_element_has_the_same_bits_wherever_it_stands(seed: int, size: int, dtype: torch.dtype) -> None:
    """torch's own sigmoid, SiLU and softplus do not keep this: their vectorised part and their tail differ."""
    x = (torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 8).to(dtype)
    for target, function in POINTWISE.items():
        made = function(x)
        for place in range(size):
            assert torch.equal(function(x[place : place + 1]), made[place : place + 1])
        bound = {F32: 3e-7, F64: 1e-15}.get(dtype, 1e-2)
        torch.testing.assert_close(made, target(x), rtol=bound, atol=bound)
    extreme = torch.tensor([-1e4, -100.0, 19.9, 20.1, 100.0, 1e4])
    for target, function in POINTWISE.items():
        torch.testing.assert_close(function(extreme), target(extreme), rtol=1e-6, atol=1e-40)


@given(st.integers(0, 1 << 20), st.integers(1, 3), st.integers(1, 5), st.integers(1, 6), st.booleans(), DTYPES)
def test_experts_agree(seed: int, batch: int, tokens: int, experts: int, renormalise: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, tokens, 6), (experts, 6), (experts * 4, 6), (experts * 6, 2))
    operands = [torch.randn(shape, generator=generator, dtype=F64).to(dtype) for shape in shapes]
    arguments = (*operands, min(2, experts), renormalise)
    agree(call("moe", *arguments), ops.moe(*arguments), exact=False)


@given(cases(max_nodes=6), st.sampled_from(SCHEDULES))
def test_a_sequence_does_not_see_its_neighbours(case: Case, schedule: str) -> None:
    case = case.to(F32)
    tree = (case.parent_row, case.mask, schedule)
    whole = call("delta_rule_verify", case.state, *case.rows, *tree)
    for b in range(case.state.shape[0]):
        part = case.take(slice(b, b + 1))
        alone = call("delta_rule_verify", part.state, *part.rows, part.parent_row, part.mask, schedule)
        agree(alone, [x[b : b + 1] for x in whole], exact=schedule != "tree")


@pytest.mark.parametrize("name", sorted(VERIFY))
def test_variants_take_operands_of_their_op(name: str) -> None:
    """In the op's order and as many as the function takes; a chain takes no tree, a schedule by steps no mask."""
    names = [argument.name for argument in DECLARED[name].overload._schema.arguments]
    for schedule in SCHEDULES:
        for tree in (None, 0):
            chosen = variant(name, {"schedule": schedule, "parent_row": tree, "mask": tree})
            assert chosen is not None
            assert list(chosen.operands) == [item for item in names if item in chosen.operands]
            assert chosen.function.__name__ in variants.NAMES
            inspect.signature(chosen.function).bind(*chosen.operands)
            assert ("mask" in chosen.operands) == (schedule == "tree")
            assert ("parent_row" in chosen.operands) == (schedule != "tree" and tree is not None)
    assert variant("delta_rule", {}) is None


@pytest.mark.parametrize("name", [name for name in KERNELS if "delta" in name or "conv" in name or name == "moe"])
def test_kernels_take_the_ops_operands(name: str) -> None:
    function: Callable[..., Any] = KERNELS[name]
    names = [argument.name for argument in DECLARED[name].overload._schema.arguments]
    assert list(inspect.signature(function).parameters) == names


def module_text(functions: list[Callable[..., Any]]) -> str:
    """A module that carries these functions, with their imports, as a generated one does."""
    sources = HelperSources()
    for function in functions:
        sources.add(function)
    # Every module has records.
    record = "class Layout(NamedTuple):\n    size: int"
    body = "\n\n\n".join([record, *sources.texts])
    return format_source("\n".join([*_imports(sources, body), "", body, ""]))


OURS = [name for name in KERNELS if "delta" in name or "conv" in name or name == "moe"]
FUNCTIONS = (
    [KERNELS[name] for name in OURS]
    + [*POINTWISE.values()]
    + [function for kind in VERIFY.values() for function in kind.values()]
)


def test_each_function_alone_makes_a_clean_module(tmp_path: Path) -> None:
    """Nothing but torch and the standard library, nothing unused, nothing of the traffic counters."""
    for number, function in enumerate(FUNCTIONS):
        text = module_text([function])
        assert "specc" not in text
        assert "load_state" not in text
        (tmp_path / f"module_{number}.py").write_text(text)
    for command in (["check"], ["format", "--check"]):
        whole = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", str(tmp_path)]
        done = subprocess.run(whole, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_a_schedule_brings_no_code_of_another() -> None:
    words = {"hybrid": "heavy_chains", "tree": "solve_tree", "replay": "leaf", "serial": "fetched"}
    for kind in VERIFY.values():
        for schedule, function in kind.items():
            text = module_text([function])
            for other, word in words.items():
                assert (word in text) == (other == schedule), (function.__name__, word)


@pytest.mark.slow
def test_mypy_strict_accepts_all_functions(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(module_text(FUNCTIONS))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=cache", "--config-file=", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
