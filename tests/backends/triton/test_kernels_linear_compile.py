"""The linear layers' configurations compile for sm_90 without a GPU and spill nothing."""

from __future__ import annotations

import pytest

from tests.backends.triton.apart import printed


@pytest.mark.slow
def test_configurations_spill_nothing() -> None:
    """In a process of its own: kernels of this one are the interpreter's."""
    found = printed("compiled_linear")
    assert len(found) > 3
    assert {name: used for name, used in found.items() if used["spills"]} == {}
    assert all(16 <= used["registers"] <= 255 and used["shared"] <= 232448 for used in found.values())
