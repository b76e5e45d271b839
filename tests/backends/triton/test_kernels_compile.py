"""Configurations of the table compile for sm_90 without a GPU and spill nothing; T = 64 still does and is left out."""

from __future__ import annotations

import pytest

from tests.backends.triton.apart import printed

GROUPS = ("tree 16", "tree 32", "pending 16", "windowed 16", "walk", "commit", "conv")


@pytest.mark.slow
@pytest.mark.parametrize("keys", [128, 256])
@pytest.mark.parametrize("group", GROUPS)
def test_configurations_spill_nothing(group: str, keys: int) -> None:
    found = printed("compiled_kernels", group, keys)
    assert found
    assert {name: used for name, used in found.items() if used["spills"]} == {}
    assert all(16 <= used["registers"] <= 255 and used["shared"] <= 232448 for used in found.values())
