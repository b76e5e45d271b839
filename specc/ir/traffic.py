"""Counts the bytes of recurrent state that the ops of the delta rule move between memory and a working tile.

The reference implementations call `load_state` and `store_state` where a kernel that follows the same schedule would
read or write a state tile; both return their tensor. Without an active recorder they do nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Literal, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
Kind = Literal["read", "write"]
SNAPSHOT_COMMIT = "snapshot_commit"


class Recorder:
    """Bytes moved by (kind, op), and how many tiles' worth of calls there were."""

    def __init__(self) -> None:
        self.bytes: Counter[tuple[Kind, str]] = Counter()
        self.op = ""

    def add(self, kind: Kind, moved: torch.Tensor, op: str | None = None) -> None:
        """Count the whole of `moved`, for `op` or the op that is running."""
        size = moved.numel() * moved.element_size()
        if size:
            self.bytes[kind, self.op if op is None else op] += size

    def total(self, kind: Kind) -> int:
        """Bytes of one kind over all ops."""
        return sum(count for (what, _), count in self.bytes.items() if what == kind)


_ACTIVE: ContextVar[Recorder | None] = ContextVar("state_traffic", default=None)


@contextmanager
def recording() -> Iterator[Recorder]:
    """Count what runs inside; an outer recorder pauses meanwhile."""
    recorder = Recorder()
    token = _ACTIVE.set(recorder)
    try:
        yield recorder
    finally:
        _ACTIVE.reset(token)


def load_state(state: torch.Tensor) -> torch.Tensor:
    """`state`, read from memory."""
    recorder = _ACTIVE.get()
    if recorder is not None:
        recorder.add("read", state)
    return state


def store_state(state: torch.Tensor) -> torch.Tensor:
    """`state`, written to memory."""
    recorder = _ACTIVE.get()
    if recorder is not None:
        recorder.add("write", state)
    return state


def snapshot_commit(taken: torch.Tensor) -> torch.Tensor:
    """`taken`, the node states that a commit from snapshots gathers: each is read and written once.

    That gather is an aten op of the commit graph, so whoever runs the graph calls this with the gather's result.
    """
    recorder = _ACTIVE.get()
    if recorder is not None:
        recorder.add("read", taken, SNAPSHOT_COMMIT)
        recorder.add("write", taken, SNAPSHOT_COMMIT)
    return taken


def counted(reference: Callable[P, R]) -> Callable[P, R]:
    """Decorates an op's reference implementation: what it moves is counted under its name."""

    @wraps(reference)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        recorder = _ACTIVE.get()
        if recorder is None:
            return reference(*args, **kwargs)
        outer, recorder.op = recorder.op, reference.__name__
        try:
            return reference(*args, **kwargs)
        finally:
            recorder.op = outer

    return run
