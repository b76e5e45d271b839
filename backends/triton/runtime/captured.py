"""Steps as CUDA graphs over a state of fixed addresses; without CUDA the same steps run one by one."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor

from specc.backends.printing.runtime.abi import (
    MAX_BATCH_SIZE,
    SLOTS,
    State,
    Stepped,
    Weights,
    init_state,
    run_flush,
    run_plain_step,
    run_step,
)

WARM_UP = 2


def captured_size(batch: int) -> int:
    """The batch size whose graph a batch uses: the next power of two, or the largest that the spec allows."""
    return min(1 << (batch - 1).bit_length(), MAX_BATCH_SIZE)


def take_over(state: State, made: State) -> None:
    """Copy what a step made into the state's own tensors; caches changed in place already."""
    for value, new in zip(state, made, strict=True):
        if new is not value:
            value.copy_(new)


def first_rows(state: State, batch: int) -> State:
    """Views of the first `batch` rows; what all rows share as it is."""
    if state.length.shape[0] == batch:
        return state
    parts = [
        value if slot.batch_dim < 0 else value.narrow(slot.batch_dim, 0, batch)
        for value, slot in zip(state, SLOTS.values(), strict=True)
    ]
    return State(*parts)


class Captured:
    """The steps of one batch size; each gives an int64 record, which is all that the host reads.

    With `graphs` a step is one launch of a CUDA graph; without, its kernels start one by one,
    which is for debugging and for machines without CUDA.
    """

    def __init__(self, weights: Weights, batch: int, device: torch.device, graphs: bool) -> None:
        self.weights = weights
        self.state: State = init_state(batch, device)
        self.graphs = graphs
        self.stepped: Stepped | None = None
        self._captured: dict[str, torch.cuda.CUDAGraph] = {}
        self._records: dict[str, Tensor] = {}
        if graphs:
            # Every row is finished in a fresh state, so that warming up changes nothing.
            for name in ("step", "plain", "flush"):
                # Where nothing is ever pending, a flush does nothing that could be captured.
                if name != "flush" or run_flush(self.state) is not self.state:
                    self._capture(name)

    def run(self, name: str) -> Tensor:
        """Run "step", "plain" or "flush"; its record, valid until the next run.

        The records of "step" and "plain" are int64 [B,W]: finished, the root token, then the
        other fields of Stepped or Plain.
        """
        if name not in self._captured:
            return self._step(name)()
        self._captured[name].replay()
        return self._records[name]

    def _step(self, name: str) -> Callable[[], Tensor]:
        # No attribute holds these: graphs in a cycle of references would die whenever Python collects garbage.
        return {"step": self._speculative, "plain": self._plain, "flush": self._flush}[name]

    def _speculative(self) -> Tensor:
        self.stepped = run_step(self.weights, self.state)
        return self.stepped.record

    def _plain(self) -> Tensor:
        return run_plain_step(self.weights, self.state).record

    def _flush(self) -> Tensor:
        take_over(self.state, run_flush(self.state))
        return self.state.length

    def _capture(self, name: str) -> None:
        """Warm up on another stream (kernels compile, libraries allocate), then record.

        A graph that dies meanwhile, somebody else's too, would end the recording: no garbage is collected then.
        """
        function, stream = self._step(name), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            with torch.cuda.graph(graph):
                self._records[name] = function()
        finally:
            if collects:
                gc.enable()
        self._captured[name] = graph


def unpack(stepped: Stepped, record: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """`finished` and the fields of Stepped by name, from a record on the host; `stepped` gives the widths."""
    parts: dict[str, Tensor] = {}
    place = 2
    for name, value in zip(stepped._fields[1:], stepped[1:], strict=True):
        if value is not None:
            width = value.shape[1] if value.dim() == 2 else 1
            part = record[:, place : place + width].to(value.dtype)
            parts[name] = part if value.dim() == 2 else part.squeeze(1)
            place += width
    return record[:, 0].bool(), parts
