"""The same sweep on a Ray cluster: on this machine (started for the run), or on one that is up already.

A cell is one task. Ray itself retries nothing: a task whose worker or node died is begun again here, at most as often
as in local processes. Results come back to the driver, which keeps them, so that machines need no common folder; the
model folders must lie under the same paths everywhere, and specc must be installed there.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from specc.bench.evaluation.cells import Cell
from specc.bench.evaluation.pool import ATTEMPTS, Take
from specc.bench.evaluation.worker import Answer, attempt
from specc.diagnostics import DiagnosticError, error

LOCAL = "local"
"""The address that stands for a cluster of this machine's own."""


def require_ray() -> Any:
    """The package. Raises DiagnosticError (SPC296) where it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        remedy = "pip install 'specc[bench]', or leave --ray out: sweeps then run in local processes"
        raise DiagnosticError([error("SPC296", "`--ray` needs the package `ray`", help=remedy)]) from None


@dataclass(frozen=True, slots=True)
class OnRay:
    """Cells as Ray tasks.

    address: of a running cluster, or `local`; workers: tasks at once (None: as many as the cluster has CPUs, or GPUs);
    gpus: whether each task has a GPU to itself.
    """

    address: str = LOCAL
    workers: int | None = None
    gpus: bool = False

    def run(self, take: Take) -> Iterator[tuple[Cell, Answer]]:
        ray = require_ray()
        self._connect(ray)
        try:
            yield from self._run(ray, take)
        finally:
            ray.shutdown()

    def _connect(self, ray: Any) -> None:
        """Join the cluster, or start one without a dashboard; nothing is reported to anybody."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self.address == LOCAL:
            ray.init(num_cpus=self.workers, include_dashboard=False, log_to_driver=False, logging_level="error")
        else:
            ray.init(address=self.address, log_to_driver=False, logging_level="error")

    def _run(self, ray: Any, take: Take) -> Iterator[tuple[Cell, Answer]]:
        task = ray.remote(num_cpus=1, num_gpus=int(self.gpus), max_retries=0)(attempt)
        resources = ray.cluster_resources()
        most = self.workers or max(1, int(resources.get("GPU" if self.gpus else "CPU", 1)))
        running: dict[Any, tuple[Cell, int]] = {}
        while True:
            while len(running) < most and (cell := take()) is not None:
                running[task.remote(cell)] = (cell, 1)
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            cell, attempts = running.pop(done[0])
            try:
                answer: Answer = ray.get(done[0])
            except ray.exceptions.RayError as problem:
                if attempts < ATTEMPTS:
                    running[task.remote(cell)] = (cell, attempts + 1)
                    continue
                answer = Answer(None, f"its worker died {attempts} times: {type(problem).__name__}")
            yield cell, replace(answer, attempts=attempts)
