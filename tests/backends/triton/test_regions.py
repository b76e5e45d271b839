"""Generated kernels equal the nodes that they stand for."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule

from specc.ir.build import GraphBuilder, fake
from specc.ir.dims import BATCH
from tests.backends.triton.region_graphs import EXACT, ROUNDED, batch_graphs, token_graphs
from tests.backends.triton.regions_support import both

aten = torch.ops.aten
SETTINGS = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


@SETTINGS
@given(batch_graphs(), st.integers(0, 99))
def test_integers_of_batch_rows_equal_the_nodes(module: GraphModule, seed: int) -> None:
    wanted, got = both(module, seed)
    for one, other in zip(wanted, got, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal up to a few units in the last place of the largest values (a rounding to bfloat16 may fall either way)."""
    unit = 2.0**-7 if torch.bfloat16 in (one.dtype, other.dtype) else 2.0**-20
    largest = one.double().nan_to_num(0, 0, 0).abs().max()
    return bool(torch.allclose(one.double(), other.double(), rtol=0, atol=float(unit * (largest + 1)), equal_nan=True))


@SETTINGS
@given(token_graphs(), st.integers(0, 99))
def test_elementwise_floats_of_token_rows_equal_the_nodes_bitwise(module: GraphModule, seed: int) -> None:
    wanted, got = both(module, seed)
    for one, other in zip(wanted, got, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


@SETTINGS
@given(token_graphs(kinds=(*EXACT, *ROUNDED, *ROUNDED)), st.integers(0, 99))
def test_norms_gates_and_rotations_equal_the_nodes(module: GraphModule, seed: int) -> None:
    wanted, got = both(module, seed)
    for one, other in zip(wanted, got, strict=True):
        assert one.dtype == other.dtype
        assert close(one, other)


def test_each_part_of_what_a_kernel_computes() -> None:
    """Every window, element and regrouping of a block, in sizes with and without padding."""
    for size in (4, 6):
        b = GraphBuilder()
        x = b.placeholder("x", fake((BATCH, 3, size), torch.int64))
        y = b.call(aten.mul.Tensor, x, 5)
        made = [b.call(aten.select.int, y, 2, at) for at in range(size)]
        made += [b.call(aten.select.int, y, 1, at) for at in range(3)]
        made += [b.call(aten.narrow.default, y, 2, at, size - at) for at in range(size)]
        made.append(b.call(aten.flatten.using_ints, y, 1, 2))
        made.append(b.call(aten.unflatten.int, y, 2, [2, size // 2]))
        made.append(b.call(aten.transpose.int, y, 1, 2))
        wanted, got = both(b.output([b.call(aten.add.Tensor, item, 1) for item in made]), size)
        for one, other in zip(wanted, got, strict=True):
            assert torch.equal(one, other)
