"""The tree schedule's kernels in the interpreter against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from specc.backends.triton.launch.configs import TreeConfig
from specc.backends.triton.launch.core import run_all
from specc.backends.triton.launch.delta import delta_rule_verify, tree_launches
from specc.backends.triton.launch.rows import Gate, Rows
from tests.backends.triton.trees import BOUND, Operands, check, exact, operands, packed, relative, trees

# Three pieces of the state: two leave 2^-17 of an element, which tiny heads do not average out.
FUSED = TreeConfig(fused=True, bv=16, bk=16, warps=4, stages=2, pieces=3)
PHASES = TreeConfig(fused=False, bv=16, bk=16, warps=4, stages=2, pieces=3)
TWO_PIECES = 1e-5
"""The bound for two pieces and few, small heads."""


def run(
    case: Operands,
    config: TreeConfig,
    mask: torch.Tensor | None,
    valid: torch.Tensor | None = None,
    gate: Gate | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, u) of the tree schedule; outputs are poisoned first."""
    rows = Rows(*case.rows, valid=valid, gate=gate)
    o, u = (x.fill_(float("nan")) for x in rows.outputs())
    run_all(tree_launches(rows, mask, o, u, config=config))
    return o, u


@settings(max_examples=12)
@given(trees())
def test_trees(case: Operands) -> None:
    expected = exact(case)
    check(case, *run(case, PHASES, case.mask), expected)
    check(case, *run(case, FUSED, packed(case.mask), case.valid), expected)


@settings(max_examples=4)
@given(trees())
def test_signature_of_the_op(case: Operands) -> None:
    check(case, *delta_rule_verify(*case.rows, *case.tree, "tree"), exact(case), TWO_PIECES)


@pytest.mark.parametrize("config", [FUSED, PHASES], ids=["fused", "phases"])
@pytest.mark.parametrize("nodes", [1, 16, 20])
def test_chain_without_a_mask(config: TreeConfig, nodes: int) -> None:
    case = operands([list(range(nodes))], [nodes], sizes=(32, 32))
    check(case, *run(case, config, None), exact(case))


@pytest.mark.parametrize("config", [FUSED, PHASES], ids=["fused", "phases"])
def test_identical_keys_with_beta_near_two(config: TreeConfig) -> None:
    """Where the product form of the inverse fails. u grows beyond beta v here, so the error is one of u."""
    case = operands([list(range(16))], [16])
    case = case.with_(k=case.k[:, :1].expand_as(case.k), beta=torch.full_like(case.beta, 1.98), g=0 * case.g)
    o, u = run(case, config, case.mask)
    expected = exact(case)
    assert relative(u, expected[1], expected[1]) <= BOUND
    assert relative(o, expected[0], expected[0]) <= BOUND


def test_long_decays_and_siblings_that_would_overflow() -> None:
    """Path sums of g of -50 and of -2000: the difference of two siblings is positive and large."""
    case = operands([[0, 1, 2, 1, 4, 0]], [6])
    g = -torch.tensor([20.0, 15, 15, 0.01, 0.02, 2000]).view(1, 6, 1)
    check(case.with_(g=g), *run(case.with_(g=g), PHASES, case.mask), exact(case.with_(g=g)))


def test_padding_is_skipped_whatever_it_holds() -> None:
    case = operands([[0, 1, 0, 0, 0]], [3])
    expected = exact(case)
    nothing = ~case.valid[..., None]
    poison = float("nan")
    bad = case.with_(
        v=case.v.masked_fill(nothing[..., None], poison),
        k=case.k.masked_fill(nothing[..., None], poison),
        q=case.q.masked_fill(nothing[..., None], poison),
        g=case.g.masked_fill(nothing, poison),
        beta=case.beta.masked_fill(nothing, poison),
    )
    for config in (FUSED, PHASES):
        o, u = run(bad, config, case.mask, case.valid)
        keep = case.valid
        assert torch.equal(o[~keep], torch.zeros_like(o[~keep]))
        assert torch.equal(u[~keep], torch.zeros_like(u[~keep]))
        check(case, o.nan_to_num(1e9), u.nan_to_num(1e9), expected)


def test_rows_that_are_slices_of_wider_tensors() -> None:
    case = operands([[0, 1, 1, 0]], [4], heads=(2, 2))
    wide = torch.randn(1, 4, 3, 2, 32).to(torch.bfloat16)
    wide[:, :, 0], wide[:, :, 2] = case.q, case.k
    sliced = case.with_(q=wide[:, :, 0], k=wide[:, :, 2])
    assert not sliced.q.is_contiguous()
    check(case, *run(sliced, FUSED, case.mask), exact(case))


def test_float32_rows() -> None:
    case = operands([[0, 1, 1, 2]], [4], dtype=torch.float32)
    check(case, *run(case, PHASES, case.mask), exact(case))


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("config", [FUSED, PHASES], ids=["fused", "phases"])
def test_gates_are_computed_in_the_kernel(config: TreeConfig, scale: int) -> None:
    case = operands([[0, 1, 1, 0]], [4], heads=(1, 2))
    a, b = torch.randn(1, 4, 2) * 8, torch.randn(1, 4, 2)
    a[0, 0] = torch.tensor([30.0, -9.0])
    gate = Gate(torch.tensor([0.1, -2.0]), torch.tensor([0.3, -0.4]), torch.full_like(a, float("nan")), scale)
    g = -gate.a_log.double().exp() * torch.nn.functional.softplus(a.double() + gate.dt_bias.double())
    want = case.with_(g=g.float(), beta=(scale * torch.sigmoid(b.double())).float())
    o, u = run(case.with_(g=a, beta=b), config, case.mask, gate=gate)
    torch.testing.assert_close(gate.g_out.double(), g, rtol=1e-6, atol=0)
    check(want, o, u, exact(want))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [32, 40, 64])
def test_large_trees(nodes: int) -> None:
    generator = torch.Generator().manual_seed(nodes)
    parents = [[int(torch.randint(0, i + 1, (1,), generator=generator)) for i in range(nodes)] for _ in range(2)]
    case = operands(parents, [nodes, nodes - 5], sizes=(32, 16))
    expected = exact(case)
    for config in (FUSED, PHASES):
        check(case, *run(case, config, case.mask), expected)
        check(case, *run(case, config, packed(case.mask)), expected)
