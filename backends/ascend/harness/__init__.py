"""The torchair of the torch_npu wheel, driven without an NPU: its GE graph, and that graph executed on the CPU.

`lower` compiles a function with the real `torchair.get_npu_backend` (its Python files only: no CANN, no shared
library, nothing installed), and keeps the GE graph protos that torchair would hand to the device. `evaluator` runs
them with the documented semantics of the GE ops and raises `Undefined` wherever GE leaves a result undefined.
Inputs are CPU tensors here, which torchair marks as host data: that changes placements and options, not the ops.
What this can't see: GE's own fusions and tiling, device numerics, speed.
"""
