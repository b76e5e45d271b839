"""Forward and backward of one batch: plainly, or on CUDA compiled and replayed as one graph.

The chunk scan of 16 layers is thousands of small kernels; launched one by one they cost the host more time than the
device. A CUDA graph of the whole pass, with fixed input and gradient buffers, takes the host out of it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specc.train.gated_delta import GatedDeltaModel

WARM_UP_PASSES = 3


class GradientStep:
    """`step(ids)` leaves the gradients in the parameters and returns the mean loss in nats per token.

    ids [B, T + 1]. Matrix products are bfloat16 on CUDA (TF32 within the delta rule) and float32 on the CPU. With
    `compiled` (CUDA only) every batch must have the shape of the first one.
    """

    def __init__(self, model: GatedDeltaModel, device: torch.device, compiled: bool) -> None:
        self.model, self.device = model, device
        self.compiled = compiled and device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        if self.compiled:
            # One block at a time: all layers share one compiled function.
            for layer in model.model.layers:
                layer.compile(dynamic=False)

    def loss(self, ids: Tensor) -> Tensor:
        """Mean cross-entropy, differentiable."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self.model(ids[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    def __call__(self, ids: Tensor) -> Tensor:
        if not self.compiled:
            self.model.zero_grad(set_to_none=True)
            loss = self.loss(ids)
            loss.backward()
            return loss.detach()
        if self._graph is None:
            self._capture(ids)
        assert self._graph is not None
        self._ids.copy_(ids)
        self._graph.replay()
        return self._loss

    def _capture(self, ids: Tensor) -> None:
        """Compile and record; the gradients of the recorded pass are the buffers that every replay overwrites."""
        self._ids = ids.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_PASSES):
                self.loss(self._ids).backward()
        torch.cuda.current_stream().wait_stream(stream)
        self.model.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = self.loss(self._ids)
            self._loss.backward()
        self._loss = self._loss.detach()
