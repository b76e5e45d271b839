"""Running a sweep: in this process, in local processes, or on Ray (`ray_pool`).

A worker that dies takes nothing with it: its cell is begun again by another one, at most `ATTEMPTS` times in all, and
what was finished is in the store. A deadline stops new cells from being begun; the others are named at the end.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from specc.bench.evaluation.cells import Cell
from specc.bench.evaluation.store import Store
from specc.bench.evaluation.worker import Answer, attempt, serve

ATTEMPTS = 3
Take = Callable[[], Cell | None]
Say = Callable[[str], None]


class Executor(Protocol):
    """Does cells somewhere. `take` gives the next one, None when there is none or the time is up."""

    def run(self, take: Take) -> Iterator[tuple[Cell, Answer]]: ...


@dataclass(frozen=True, slots=True)
class InProcess:
    """One after the other, here: for timed cells, which must have a device to themselves."""

    def run(self, take: Take) -> Iterator[tuple[Cell, Answer]]:
        while (cell := take()) is not None:
            yield cell, attempt(cell)


@dataclass(slots=True)
class _Worker:
    """A process, our end of its pipe, and the cell that it is at."""

    process: BaseProcess
    pipe: Connection
    cell: Cell | None = None
    attempts: int = 0


@dataclass(slots=True)
class Processes:
    """Local worker processes, started once each and fed through a pipe."""

    count: int
    workers: list[_Worker] = field(default_factory=list)

    def run(self, take: Take) -> Iterator[tuple[Cell, Answer]]:
        again: list[tuple[Cell, int]] = []
        try:
            while True:
                self._feed(take, again)
                busy = [worker for worker in self.workers if worker.cell is not None]
                if not busy:
                    return
                wait([worker.pipe for worker in busy])
                for worker in busy:
                    if worker.pipe.poll():
                        yield from self._receive(worker, again)
        finally:
            for worker in self.workers:
                worker.pipe.close()
            for worker in self.workers:
                worker.process.terminate()
                worker.process.join()
            self.workers.clear()

    def _feed(self, take: Take, again: list[tuple[Cell, int]]) -> None:
        """Work for every idle worker; workers are started as they are needed."""
        for number in range(self.count):
            if number < len(self.workers) and self.workers[number].cell is not None:
                continue
            if again:
                cell, attempts = again.pop()
            else:
                fresh = take()
                if fresh is None:
                    return
                cell, attempts = fresh, 0
            if number == len(self.workers):
                self.workers.append(_started())
            worker = self.workers[number]
            worker.cell, worker.attempts = cell, attempts + 1
            with suppress(OSError):  # it died while idle: its pipe is at its end, which `_receive` sees
                worker.pipe.send(cell)

    def _receive(self, worker: _Worker, again: list[tuple[Cell, int]]) -> Iterator[tuple[Cell, Answer]]:
        """A worker's answer; if it died, its cell goes back and another process takes its place."""
        cell, attempts = worker.cell, worker.attempts
        assert cell is not None
        try:
            answer: Answer = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            code = worker.process.exitcode
            self.workers[self.workers.index(worker)] = _started()
            if attempts < ATTEMPTS:
                again.append((cell, attempts))
                return
            answer = Answer(None, f"its worker died {attempts} times, at last with exit code {code}")
        worker.cell = None
        yield cell, replace(answer, attempts=attempts)


def _started() -> _Worker:
    """A new process, spawned: one that is forked would inherit a device's context."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A cell that was reached. `kept`: its result was in the store already."""

    cell: Cell
    answer: Answer
    kept: bool


@dataclass(slots=True)
class Sweep:
    """What became of a list of cells, in its order."""

    outcomes: list[Outcome] = field(default_factory=list)
    not_reached: list[Cell] = field(default_factory=list)

    def result(self, cell: Cell) -> dict[str, Any] | None:
        """The result of a cell; None if it failed or was not reached."""
        return next((item.answer.result for item in self.outcomes if item.cell.key == cell.key), None)

    @property
    def failed(self) -> list[Outcome]:
        """Cells without a result."""
        return [item for item in self.outcomes if item.answer.result is None]


def run_cells(
    cells: Sequence[Cell], store: Store, executor: Executor, deadline: float | None = None, say: Say = lambda _: None
) -> Sweep:
    """Do the cells that are not in the store, in their order; keep each as soon as it is finished.

    deadline: of time.monotonic(); no cell is begun after it. A failed cell is not kept: the next run tries it again.
    """
    found: dict[str, Outcome] = {}
    open_cells: list[Cell] = []
    for cell in cells:
        kept = store.get(cell)
        if kept is not None:
            found[cell.key] = Outcome(cell, Answer(kept), kept=True)
        elif cell.key not in {other.key for other in open_cells}:
            open_cells.append(cell)
    if found:
        say(f"{len(found)} of {len(cells)} cells were finished before")
    queue, total = iter(open_cells), len(open_cells)

    def take() -> Cell | None:
        return None if deadline is not None and time.monotonic() >= deadline else next(queue, None)

    for count, (cell, answer) in enumerate(executor.run(take), 1):
        if answer.result is not None:
            store.put(cell, answer.result)
        found[cell.key] = Outcome(cell, answer, kept=False)
        say(f"[{count}/{total}] {cell.name}: {answer.failure or f'{answer.seconds:.1f} s'}")
    made = Sweep()
    for cell in cells:
        if cell.key in found:
            made.outcomes.append(found[cell.key])
        else:
            made.not_reached.append(cell)
    return made
