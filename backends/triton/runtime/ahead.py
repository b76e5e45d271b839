"""Steps that start before the one in front of them has been read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specc.backends.triton.runtime.captured import Captured


class Ahead:
    """One kind of step of a batch, run so that the device does not wait for the host.

    All that a step needs is on the device, so the next one is started before the record of
    the one in front of it is read. One step too many changes nothing: every row is finished
    then. Records go to two host buffers by turns, each with an event that says when it is there.
    """

    def __init__(self, current: Captured, name: str, batch: int, most: int) -> None:
        self._current, self._name, self._batch = current, name, batch
        # At most so many tokens are left to any row; a row that is not finished gets one a step.
        self._left = most
        self._started = self._taken = 0
        self._cuda = current.state.length.is_cuda
        self._buffers: list[Tensor] = []
        self._arrived = [torch.cuda.Event(), torch.cuda.Event()] if self._cuda else []

    def _start(self) -> None:
        record = self._current.run(self._name)[: self._batch]
        place = self._started % 2
        if len(self._buffers) == place:
            self._buffers.append(torch.empty(record.shape, dtype=record.dtype, pin_memory=self._cuda))
        self._buffers[place].copy_(record, non_blocking=True)
        if self._cuda:
            self._arrived[place].record()
        self._started += 1

    def _wait(self, number: int) -> None:
        if self._cuda:
            self._arrived[number % 2].synchronize()

    def take(self) -> Tensor:
        """The record of the step in turn, on the host."""
        if self._started == self._taken:
            self._start()
        if self._left > 1:
            self._start()
        self._wait(self._taken)
        self._taken += 1
        return self._buffers[(self._taken - 1) % 2].clone()

    def gave(self, emitted: Sequence[Sequence[int]]) -> None:
        """What the step that was taken last gave to every row."""
        self._left -= min((len(row) for row in emitted if row), default=0)

    def end(self) -> None:
        """Wait for a step that nobody will take."""
        if self._started > self._taken:
            self._wait(self._taken)
