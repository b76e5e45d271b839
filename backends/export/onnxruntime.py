"""Exported ONNX steps on the CPU, by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class OrtSteps:
    """One session per step, made when the step is first run, with one thread."""

    def __init__(self, models: Mapping[str, bytes]) -> None:
        self.models = models
        self.sessions: dict[str, Any] = {}

    def session(self, step: str) -> Any:
        """The session of a step. Raises RuntimeError where onnxruntime can't run the model, a missing kernel say."""
        import onnxruntime  # only there where the extra is installed
        from onnxruntime.capi import onnxruntime_pybind11_state as errors

        if step not in self.sessions:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.log_severity_level = 3
            try:
                self.sessions[step] = onnxruntime.InferenceSession(
                    self.models[step], options, providers=["CPUExecutionProvider"]
                )
            except (errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.NotImplemented) as reason:
                raise RuntimeError(f"step `{step}`: {reason}") from reason
        return self.sessions[step]

    def prepare(self, step: str) -> None:
        """Make the session of a step before it is run. Raises RuntimeError where onnxruntime can't."""
        self.session(step)

    def __call__(self, step: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run a step."""
        session = self.session(step)
        names = [item.name for item in session.get_inputs()]
        feeds = {name: value.contiguous().numpy() for name, value in zip(names, tensors, strict=True)}
        return [torch.from_numpy(value) for value in session.run(None, feeds)]
