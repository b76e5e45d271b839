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


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [2048, 16384])
@pytest.mark.parametrize(("dim", "page"), [(64, 16), (128, 16), (128, 32)])
def test_rows_of_small_pages_are_read_16_bytes_at_a_time(dim: int, page: int, capacity: int) -> None:
    """Stages ahead, in the loop over whole tiles too: without it only the loop over the last rows has such copies.
    Where sequences can be long, entries of the table come like that as well, 4 bytes each."""
    found = printed("compiled_pages", dim, page, capacity)
    assert found.keys() == {"attention_split", "attention_step"}
    for copies in found.values():
        assert copies.keys() == ({"16"} if capacity == 2048 else {"4", "16"})
        assert copies["16"] >= 32
