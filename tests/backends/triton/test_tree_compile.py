"""The tree's second phase starts beside the first one and reads what that wrote only when it is done."""

from __future__ import annotations

import pytest

from tests.backends.triton.apart import printed


@pytest.mark.parametrize("keys", [8, 64, 256])
def test_nothing_is_read_before_it_is_written(keys: int) -> None:
    """A loop whose loads depend on no condition is started by the compiler in front of what stands in it: where K fits
    in one chunk, results of phase 1 were asked for before the wait, and were sometimes wrong."""
    found = printed("compiled_tree", keys)
    assert set(found) == {f"delta_tree_apply {name}" for name in ("verify", "deferred", "windowed")}
    assert all(one["waits"] and not one["early"] for one in found.values()), found
