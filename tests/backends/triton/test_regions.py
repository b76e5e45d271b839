"""Generated kernels equal the nodes that they stand for."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule

from tests.backends.triton.region_graphs import batch_graphs
from tests.backends.triton.regions_support import both

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
    wanted, got, _ = both(module, seed)
    for one, other in zip(wanted, got, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
