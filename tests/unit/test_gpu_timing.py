"""What GPU benchmarks share, as far as it goes without a GPU: what may be timed, what is said otherwise."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.bench import gpu_timing
from specc.bench.gpu_timing import Report, Row, Timing, checked, error, guarded, poison, require_gpu, sets_for
from specc.diagnostics import DiagnosticError


@given(st.floats(1, 1e12))
def test_input_sets_exceed_the_cache_or_are_as_many_as_a_graph_takes(size: float) -> None:
    count = sets_for(size)
    assert count >= 2
    assert count * size > gpu_timing.ROTATED or count == gpu_timing.MOST_CALLS
    assert count == 2 or (count - 1) * size <= gpu_timing.ROTATED


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.bool])
def test_poison_is_no_result(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    poison(tensor)
    assert not tensor.eq(torch.zeros_like(tensor)).any()
    if dtype.is_floating_point:
        assert math.isnan(error(tensor, torch.ones(3)))


def test_error_is_relative_to_its_scale() -> None:
    found, expected = torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0])
    assert error(found, expected) == pytest.approx(0.1)
    assert error(found, expected, torch.tensor([0.0, 0.5])) == pytest.approx(1.0)


@pytest.mark.parametrize(("found", "wrong"), [(0.5, False), (1.0, False), (1.5, True), (math.nan, True)])
def test_only_what_is_right_is_timed(monkeypatch: pytest.MonkeyPatch, found: float, wrong: bool) -> None:
    def timed(calls: list[None]) -> Timing:
        return Timing(7.0, 6.0, 8.0, len(calls))

    monkeypatch.setattr(gpu_timing, "timed", timed)
    row = checked({"case": 1}, lambda: {"u": found, "o": 0.0}, {"u": 1.0, "o": 0.0}, list, 4.3e6)
    assert row["wrong"] is wrong
    assert ("us" in row) is not wrong
    assert (row["case"], row["read_us"]) == (1, 1.0)


def test_a_failure_is_a_row_and_ends_only_its_own_case() -> None:
    def out_of_shared_memory() -> dict[str, float]:
        raise RuntimeError("out of shared memory\nand a long trace")

    row = checked({"case": 1}, out_of_shared_memory, {}, list)
    assert (row["wrong"], row["failed"]) == (True, "RuntimeError: out of shared memory")

    def rows() -> Iterator[Row]:
        yield {"case": 1}
        raise KeyError("tile")

    assert list(guarded({"peer": "p"}, rows())) == [
        {"case": 1},
        {"peer": "p", "wrong": True, "failed": "KeyError: 'tile'"},
    ]


def test_rows_are_on_disk_as_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("result", {"commit": "c"}, tmp_path)
    report.add({"us": 1.0})
    assert json.loads((tmp_path / "result.json").read_text()) == {"commit": "c", "rows": [{"us": 1.0}]}
    assert not report.wrong
    report.add({"wrong": True})
    assert report.wrong
    report.write(note="n")
    kept = json.loads((tmp_path / "result.json").read_text())
    assert (len(kept["rows"]), kept["note"]) == (2, "n")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == kept["rows"]


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DiagnosticError) as caught:
        require_gpu("specc bench kernels")
    (found,) = caught.value.diagnostics
    assert found.code == "SPC292"
    assert "specc bench kernels" in found.message
    assert found.help
