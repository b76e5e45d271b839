"""Progress of a fetch: bars on a terminal, nothing in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """What a fetch reports: `stage` the step that begins, `bytes_done` how far the download is."""

    bars: Progress | None = None

    def stage(self, text: str) -> None:
        """A new step begins."""
        if self.bars is not None:
            for task in self.bars.task_ids:
                self.bars.remove_task(task)
            self.bars.add_task(text, total=None)

    def bytes_done(self, present: int, total: int) -> None:
        """`present` of `total` bytes have arrived."""
        if self.bars is not None and self.bars.task_ids:
            self.bars.update(self.bars.task_ids[-1], completed=present, total=total)


SILENT = FetchProgress()


@contextmanager
def shown_progress() -> Iterator[FetchProgress]:
    """Bars on stderr if it is a terminal, else SILENT."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield SILENT
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        yield FetchProgress(bars)
