"""The linear layers' configurations compile for sm_90 without a GPU, spill nothing and wait where they should."""

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


@pytest.mark.slow
def test_the_weight_is_on_its_way_before_the_wait_and_nothing_else_is() -> None:
    found = printed("compiled_order")
    assert len(found) > 3
    for name, made in found.items():
        reads = [(kind, pointers) for kind, pointers in made["reads"]]
        wait = reads.index(("wait", []))
        before, after = reads[:wait], reads[wait + 1 :]
        copies = [pointers for kind, pointers in before if kind.startswith("async")]
        assert copies == [["boxes"]] * (made["stages"] - 1), name
        early = {pointer for kind, pointers in before if kind == "load" for pointer in pointers}
        assert early <= ({"norm", "taps", "a_log", "dt_bias"} if name.startswith("mixer") else {"norm"}), name
        assert ("load", ["x"]) in after, name
        assert [pointers for kind, pointers in after if kind.startswith("async")] == [["boxes"]], name


@pytest.mark.slow
def test_one_step_layers_have_little_behind_their_wait() -> None:
    """The projection in front of an attention never lets it start before its own wait."""
    found = printed("compiled_once")
    assert len(found) == 8
    assert all(1 <= seen["barriers"] <= 7 for seen in found.values())
    assert {name: seen["early"] for name, seen in found.items()} == {name: int("960" not in name) for name in found}
