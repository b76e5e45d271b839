"""The tree schedule's kernels in the interpreter against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from specc.backends.triton.ops.delta_launch import Gate, Pending, launch_tree, outputs_of, rows_of
from specc.backends.triton.ops.delta_tables import TreeConfig
from specc.backends.triton.ops.delta_verify import verify_tree
from tests.backends.triton.trees import BOUND, Operands, check, exact, operands, relative, trees

# Three pieces of the state: two leave 2^-17 of an element, which tiny heads do not average out.
CONFIG = TreeConfig(bv=16, bk=16, warps=4, stages=2, prepare_bk=16, pieces=3)
WHOLE = replace(CONFIG, whole=True)
TWO_PIECES = 1e-5
"""The bound for two pieces and few, small heads."""


def run(
    case: Operands, mask: torch.Tensor | None, gate: Gate | None = None, config: TreeConfig = CONFIG
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, u) of the tree schedule; outputs are poisoned first."""
    rows = rows_of(*case.rows[1:])
    o, u = (x.fill_(float("nan")) for x in outputs_of(case.state, rows))
    launch_tree(case.state, rows, mask, o, u, gate=gate, config=config)
    return o, u


@settings(max_examples=12)
@given(trees())
def test_trees(case: Operands) -> None:
    check(case, *run(case, case.mask), exact(case))


@settings(max_examples=12)
@given(trees())
def test_trees_in_one_launch(case: Operands) -> None:
    check(case, *run(case, case.mask, config=WHOLE), exact(case))


@settings(max_examples=4)
@given(trees())
def test_configuration_of_the_table(case: Operands) -> None:
    check(case, *verify_tree(*case.rows, case.mask), exact(case), TWO_PIECES)


@pytest.mark.parametrize("config", [CONFIG, WHOLE])
@pytest.mark.parametrize("nodes", [1, 16, 20])
def test_chain_without_a_mask(nodes: int, config: TreeConfig) -> None:
    case = operands([list(range(nodes))], [nodes], sizes=(32, 32))
    check(case, *run(case, None, config=config), exact(case))


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("sizes", [(32, 32), (16, 16), (24, 16), (32, 24)])
def test_tiles_by_bulk_copies(sizes: tuple[int, int], window: int) -> None:
    """The bits of tiles that are loaded and stored; no boxes where one would reach into the next head (V = 24)."""
    case = operands([[0, 1, 1, 0], [0, 0, 2, 3]], [4, 4], heads=(1, 2), sizes=sizes)
    before = operands([[0, 1, 2]] * 2, [3, 3], heads=(1, 2), sizes=sizes, seed=1)
    found = []
    for bulk in (False, True):
        state, rows = case.state.clone(), rows_of(*case.rows[1:])
        o, u = (x.fill_(float("nan")) for x in outputs_of(state, rows))
        waiting = Pending(before.k, before.v, before.g, None, torch.tensor([2, 3]), window)
        launch_tree(state, rows, case.mask, o, u, waiting, config=replace(CONFIG, bulk=bulk))
        found.append((state, o, u))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert torch.equal(found[1][0][0], case.state[0]) == (window > 2)


def test_identical_keys_with_beta_near_two() -> None:
    """Where the product form of the inverse fails. u grows beyond beta v here, so the error is one of u."""
    case = operands([list(range(16))], [16])
    case = case.with_(k=case.k[:, :1].expand_as(case.k), beta=torch.full_like(case.beta, 1.98), g=0 * case.g)
    o, u = run(case, case.mask)
    expected = exact(case)
    assert relative(u, expected[1], expected[1]) <= BOUND
    assert relative(o, expected[0], expected[0]) <= BOUND


def test_long_decays_and_siblings_that_would_overflow() -> None:
    """Path sums of g of -50 and of -2000: the difference of two siblings is positive and large."""
    case = operands([[0, 1, 2, 1, 4, 0]], [6])
    g = -torch.tensor([20.0, 15, 15, 0.01, 0.02, 2000]).view(1, 6, 1)
    check(case.with_(g=g), *run(case.with_(g=g), case.mask), exact(case.with_(g=g)))


def test_padding_has_no_effect() -> None:
    """Nodes that are padding hang on the context and see themselves only."""
    case = operands([[0, 1, 0, 0, 0]], [3])
    nothing = ~case.valid[..., None]
    other = case.with_(
        v=case.v.masked_fill(nothing[..., None], 1e4),
        k=case.k.masked_fill(nothing[..., None], 1e4),
        g=case.g.masked_fill(nothing, -1e4),
        beta=case.beta.masked_fill(nothing, 1e4),
    )
    keep = case.valid
    for mine, changed in zip(run(case, case.mask), run(other, case.mask), strict=True):
        assert torch.equal(mine[keep], changed[keep])


def test_rows_that_are_slices_of_wider_tensors() -> None:
    case = operands([[0, 1, 1, 0]], [4], heads=(2, 2))
    wide = torch.randn(1, 4, 3, 2, 32).to(torch.bfloat16)
    wide[:, :, 0], wide[:, :, 2] = case.q, case.k
    sliced = case.with_(q=wide[:, :, 0], k=wide[:, :, 2])
    assert not sliced.q.is_contiguous()
    check(case, *run(sliced, case.mask), exact(case))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_of_other_dtypes(dtype: torch.dtype) -> None:
    case = operands([[0, 1, 1, 2]], [4], dtype=dtype)
    check(case, *run(case, case.mask), exact(case))


@pytest.mark.parametrize("config", [CONFIG, WHOLE])
@pytest.mark.parametrize("sizes", [(8, 16), (24, 40), (96, 8)])
def test_sizes_that_are_no_powers_of_two(sizes: tuple[int, int], config: TreeConfig) -> None:
    case = operands([[0, 1, 1, 2, 0]], [5], heads=(1, 2), sizes=sizes)
    check(case, *run(case, case.mask, config=config), exact(case))


@pytest.mark.parametrize("config", [CONFIG, WHOLE])
@pytest.mark.parametrize("scale", [1, 2])
def test_gates_are_computed_in_the_kernel(scale: int, config: TreeConfig) -> None:
    case = operands([[0, 1, 1, 0]], [4], heads=(1, 2))
    a, b = torch.randn(1, 4, 2) * 8, torch.randn(1, 4, 2)
    a[0, 0] = torch.tensor([30.0, -9.0])
    gate = Gate(torch.tensor([0.1, -2.0]), torch.tensor([0.3, -0.4]), torch.full_like(a, float("nan")), scale)
    g = -gate.a_log.double().exp() * torch.nn.functional.softplus(a.double() + gate.dt_bias.double())
    want = case.with_(g=g.float(), beta=(scale * torch.sigmoid(b.double())).float())
    o, u = run(case.with_(g=a, beta=b), case.mask, gate, config)
    # exp turns an absolute error of its float32 argument into a relative one of the gate: |x| ulps beside a few others.
    bound = (a.double().abs() + gate.dt_bias.double().abs() + 8) * 2**-24 * g.abs()
    assert ((gate.out.double() - g).abs() <= bound).all()
    check(want, o, u, exact(want))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [32, 40, 64])
def test_large_trees(nodes: int) -> None:
    generator = torch.Generator().manual_seed(nodes)
    parents = [[int(torch.randint(0, i + 1, (1,), generator=generator)) for i in range(nodes)] for _ in range(2)]
    case = operands(parents, [nodes, nodes - 5], sizes=(32, 16))
    check(case, *run(case, case.mask), exact(case))
