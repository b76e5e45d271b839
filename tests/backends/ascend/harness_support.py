"""How a lowered function is held against torch's own result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from specc.backends.ascend.harness.lower import Lowered, lower

FEW = settings(max_examples=4, phases=[Phase.explicit, Phase.generate])  # each example is a compilation
TYPES = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-12}
"""Of a result's size. fp16 and bf16: two roundings, of which torch's own may be another one."""


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(seed: int, high: int, *shape: int, low: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Whole numbers from `low` to `high` - 1."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def shuffled(seed: int, size: int) -> torch.Tensor:
    """0 .. size - 1 in some order."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def copied(values: Any) -> Any:
    """The same tensors in memory of their own."""
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, values)


def assert_same(made: Any, wanted: Any, scale: float = 1.0) -> None:
    """The same structure, types and shapes; floats within the type's tolerance, everything else equal."""
    left, shape = pytree.tree_flatten(made)
    right, other = pytree.tree_flatten(wanted)
    assert shape == other
    for ours, theirs in zip(left, right, strict=True):
        assert ours.dtype == theirs.dtype
        bound = TOLERANCE.get(theirs.dtype, 0.0) * scale
        torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound, equal_nan=True)


def check(function: Callable[..., Any], *inputs: Any, scale: float = 1.0) -> Lowered:
    """Lower and run a function: results and changed inputs must be torch's own. Lowering itself changes nothing."""
    wanted_inputs, untouched = copied(inputs), copied(inputs)
    wanted = function(*wanted_inputs)
    lowered = lower(function, inputs)
    assert_same(inputs, untouched, 0.0)
    assert_same(lowered.run(*inputs), wanted, scale)
    assert_same(inputs, wanted_inputs, scale)
    assert lowered.recompiles == 0
    return lowered
