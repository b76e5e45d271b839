"""The attention kernels of the shipped head dims compile for sm_90 without a GPU and spill nothing."""

from __future__ import annotations

import pytest

from tests.backends.triton.apart import printed


@pytest.mark.slow
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_attention_spills_nothing(dim: int) -> None:
    """In a process of its own: kernels of this one are the interpreter's."""
    found = printed("compiled_attention", dim)
    assert len(found) > 20
    assert any(name.startswith("attention_short:") for name in found) == (dim == 64)
    assert {name: used for name, used in found.items() if used["spills"]} == {}
    assert all(16 <= used["registers"] <= 255 and used["shared"] <= 232448 for used in found.values())
