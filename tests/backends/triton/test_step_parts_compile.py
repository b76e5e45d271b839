"""The kernels around attention, products and recurrences compile for sm_90 without a GPU, and spill nothing."""

from __future__ import annotations

import pytest

from tests.backends.triton.apart import printed
from tests.backends.triton.conftest import NOT_HERE


@pytest.mark.slow
@pytest.mark.skipif(bool(NOT_HERE), reason=NOT_HERE)
@pytest.mark.parametrize("group", ["rows", "49152", "151936"])
def test_nothing_spills(group: str) -> None:
    """In a process of its own: kernels of this one are the interpreter's."""
    found = printed("compiled_step_parts", group)
    assert len(found) > 8
    assert {name: used for name, used in found.items() if used["spills"]} == {}
    assert all(8 <= used["registers"] <= 255 and used["shared"] <= 232448 for used in found.values())
