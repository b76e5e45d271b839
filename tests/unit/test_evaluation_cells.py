"""Sweeps: keys by content, results kept whole, workers that die, deadlines, kills in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.bench.evaluation.cells import Cell, code_fingerprint, fingerprint_of, key_of
from specc.bench.evaluation.pool import ATTEMPTS, InProcess, Processes, run_cells
from specc.bench.evaluation.store import Store
from specc.diagnostics import DiagnosticError
from tests.unit.sweep_fixtures import DIE_ONCE, REFUSE, marks, squares

ROOT = Path(__file__).resolve().parents[2]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_a_key_depends_on_the_inputs_alone(inputs: dict[str, Any]) -> None:
    cell = Cell("a", "module:function", inputs, {"model": "here"})
    same = Cell("b", "module:function", dict(reversed(list(inputs.items()))), {"model": "there"})
    assert cell.key == same.key
    assert cell.key == Cell("a", "module:function", json.loads(json.dumps(inputs))).key
    assert cell.key != replace(cell, work="module:other").key
    assert cell.key != replace(cell, inputs=inputs | {"one more": 1}).key


@settings(max_examples=20)
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_what_is_kept_is_what_was_put(tmp_path_factory: Any, inputs: dict[str, Any], result: dict[str, Any]) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    cell = Cell("a", "module:function", inputs)
    assert store.get(cell) is None
    store.put(cell, result)
    assert store.get(cell) == result
    assert store.get(replace(cell, inputs=inputs | {"one more": 1})) is None


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"schema": "specc.cell/1"}', '{"schema": 1, "key": "", "result": {}}']
)
def test_a_damaged_file_is_no_result(tmp_path: Path, damage: str) -> None:
    store, cell = Store(tmp_path), Cell("a", "module:function", {"x": 1})
    store.put(cell, {"y": 2}).write_text(damage, encoding="utf-8")
    assert store.get(cell) is None


def test_a_file_under_another_cells_name_is_no_result(tmp_path: Path) -> None:
    store, cell, other = Store(tmp_path), Cell("a", "m:f", {"x": 1}), Cell("a", "m:f", {"x": 2})
    os.replace(store.put(cell, {"y": 2}), store.path(other))
    assert store.get(other) is None


def test_a_fingerprint_follows_the_weights_and_not_the_documents(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = fingerprint_of(tmp_path)
    (tmp_path / "README.md").write_text("about it", encoding="utf-8")
    fingerprint_of.cache_clear()
    assert fingerprint_of(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"two")
    fingerprint_of.cache_clear()
    assert fingerprint_of(tmp_path) != first
    with pytest.raises(DiagnosticError, match="SPC401"):
        fingerprint_of(tmp_path / "missing")


def test_the_code_has_a_fingerprint() -> None:
    assert len(code_fingerprint()) == 64
    assert key_of({"b": 1, "a": 2}) == key_of({"a": 2, "b": 1})


def test_finished_cells_are_not_done_again(tmp_path: Path) -> None:
    cells, store = squares(tmp_path / "marks", 4), Store(tmp_path / "store")
    first = run_cells(cells[:2], store, InProcess())
    assert [item.kept for item in first.outcomes] == [False, False]
    second = run_cells(cells, store, InProcess())
    assert [item.kept for item in second.outcomes] == [True, True, False, False]
    assert [item.answer.result["square"] for item in second.outcomes if item.answer.result] == [0, 1, 4, 9]
    assert all(len(marks(tmp_path / "marks", number)) == 1 for number in range(4))


def test_a_failed_cell_is_told_and_tried_again_the_next_time(tmp_path: Path) -> None:
    good, bad = squares(tmp_path / "marks", 2), squares(tmp_path / "marks", 1, REFUSE)
    said: list[str] = []
    sweep = run_cells([*bad, *good], Store(tmp_path / "store"), InProcess(), say=said.append)
    assert [item.cell.work for item in sweep.failed] == [REFUSE]
    assert sweep.failed[0].answer.failure == "ValueError: no square of 0"
    assert sweep.result(bad[0]) is None
    assert (sweep.result(good[1]) or {})["square"] == 1
    assert any("no square of 0" in line for line in said)
    assert [item.kept for item in run_cells([*bad, *good], Store(tmp_path / "store"), InProcess()).outcomes] == [
        False, True, True,
    ]  # fmt: skip


def test_after_the_deadline_no_cell_is_begun(tmp_path: Path) -> None:
    cells, store = squares(tmp_path / "marks", 5, seconds=0.15), Store(tmp_path / "store")
    sweep = run_cells(cells, store, InProcess(), deadline=time.monotonic() + 0.2)
    assert [item.cell.name for item in sweep.outcomes] == ["square/0", "square/1"]
    assert [cell.name for cell in sweep.not_reached] == ["square/2", "square/3", "square/4"]
    assert not run_cells(cells, store, InProcess()).not_reached


def test_processes_do_the_cells_and_a_dead_worker_loses_nothing(tmp_path: Path) -> None:
    cells = [*squares(tmp_path / "marks", 6, DIE_ONCE, deaths=0), *squares(tmp_path / "other", 2, DIE_ONCE)]
    sweep = run_cells(cells, Store(tmp_path / "store"), Processes(3))
    assert not sweep.failed
    assert not sweep.not_reached
    assert [(item.answer.result or {})["square"] for item in sweep.outcomes] == [0, 1, 4, 9, 16, 25, 0, 1]
    assert [item.answer.attempts for item in sweep.outcomes] == [1] * 6 + [2] * 2


def test_a_cell_that_always_kills_its_worker_fails_in_the_end(tmp_path: Path) -> None:
    cells = [*squares(tmp_path / "marks", 1, DIE_ONCE, deaths=99), *squares(tmp_path / "marks", 3)[1:]]
    sweep = run_cells(cells, Store(tmp_path / "store"), Processes(2))
    assert len(sweep.failed) == 1
    assert f"its worker died {ATTEMPTS} times" in sweep.failed[0].answer.failure
    assert "exit code -9" in sweep.failed[0].answer.failure
    assert len(marks(tmp_path / "marks", 0)) == ATTEMPTS


KILLED = """
import sys
from pathlib import Path
from specc.bench.evaluation.pool import InProcess, run_cells
from specc.bench.evaluation.store import Store
from tests.unit.sweep_fixtures import squares
run_cells(squares(Path(sys.argv[1]) / "marks", 6, seconds=0.2), Store(Path(sys.argv[1]) / "store"), InProcess())
"""


def test_after_a_kill_the_finished_cells_are_there_and_the_rest_is_done(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT)
    store, cells = Store(tmp_path / "store"), squares(tmp_path / "marks", 6, seconds=0.2)
    until = time.monotonic() + 30
    while store.get(cells[1]) is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = sum(store.get(cell) is not None for cell in cells)
    assert 2 <= finished < 6
    sweep = run_cells(cells, store, InProcess())
    assert sum(item.kept for item in sweep.outcomes) == finished
    assert [(item.answer.result or {})["square"] for item in sweep.outcomes] == [0, 1, 4, 9, 16, 25]
    assert all(len(marks(tmp_path / "marks", number)) == 1 for number in range(finished))


def test_workers_start_without_torch() -> None:
    text = (
        "import sys; import specc.bench.evaluation.pool, specc.bench.evaluation.ray_pool; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
