"""Sweeps on a local Ray cluster: the same results, and a killed worker's cell is done again."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from specc.bench.evaluation import ray_pool
from specc.diagnostics import DiagnosticError

ROOT = Path(__file__).resolve().parents[2]
SWEEP = """
import json, sys
from pathlib import Path
from specc.bench.evaluation.pool import run_cells
from specc.bench.evaluation.ray_pool import OnRay
from specc.bench.evaluation.store import Store
from tests.unit.sweep_fixtures import DIE_ONCE, squares
folder = Path(sys.argv[1])
cells = [*squares(folder / "marks", 8, seconds=0.3), *squares(folder / "other", 2, DIE_ONCE)]
cells += squares(folder / "deadly", 1, DIE_ONCE, deaths=99)
sweep = run_cells(cells, Store(folder / "store"), OnRay(workers=4))
print(json.dumps([[item.answer.result, item.answer.failure, item.answer.attempts] for item in sweep.outcomes]))
"""


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DiagnosticError, match="SPC296"):
        ray_pool.require_ray()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_local_cluster_does_the_cells_and_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SWEEP, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.strip().splitlines()[-1])
    assert [result["square"] for result, _, _ in answers[:10]] == [0, 1, 4, 9, 16, 25, 36, 49, 0, 1]
    assert len({result["process"] for result, _, _ in answers[:8]}) > 1
    assert [attempts for _, _, attempts in answers[:10]] == [1] * 8 + [2] * 2
    assert answers[10][0] is None
    assert "its worker died 3 times" in answers[10][1]
    assert len(list((tmp_path / "store").glob("*.json"))) == 10
