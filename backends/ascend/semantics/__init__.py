"""What the NPU ops compute, as documented for torch_npu 2.13.0, on plain CPU tensors.

One description serves the CPU kernels of `torch.ops.npu.*` (`cpu.py`) and the harness' evaluator of GE graphs. A
function raises IndexError or ValueError where the documentation leaves the result undefined or forbids the input,
and NotImplementedError for a mode that is not described here. fp16 and bf16 are computed in float32 and rounded once.
"""

from __future__ import annotations
