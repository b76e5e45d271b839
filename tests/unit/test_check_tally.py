"""Whether the examples count: steps of windowed deferral."""

from __future__ import annotations

from specc.check.tally import FEWEST_WINDOWED, Tally


def windowed(counts: list[int]) -> list[str]:
    tally = Tally()
    for count in counts:
        tally.pending([count], 4)
    return tally.windows.shortfalls()


def test_windows_that_never_wait_or_fill_do_not_count() -> None:
    assert len(windowed([0] * FEWEST_WINDOWED)) == 2
    assert "a full window" in windowed([0, 1] * FEWEST_WINDOWED)[0]
    assert "waiting factors" in windowed([0, 4] * FEWEST_WINDOWED)[0]
    assert windowed([0, 3, 4] * FEWEST_WINDOWED) == []


def test_a_few_steps_are_not_judged() -> None:
    assert windowed([0] * (FEWEST_WINDOWED - 1)) == []
    assert "windowed" not in Tally().as_json()
