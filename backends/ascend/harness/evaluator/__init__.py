"""GE graphs executed on the CPU with the documented semantics of their ops, one family of ops per file.

Nothing is guessed: an op, an input or an attribute that is not modelled raises `Unmodelled`, and everything that GE
leaves undefined (an index out of range, a mask of a wrong type, rows written twice) raises `Undefined`.

Arithmetic: fp16 and bf16 values are computed in float32 and rounded once per op, with matrix products and sums
accumulated in float32, as the vector and cube units document it. hf32 is off (torchair's default for matmul).
"""

from __future__ import annotations

from specc.backends.ascend.harness.evaluator.engine import evaluate
from specc.backends.ascend.harness.evaluator.families import FAMILIES
from specc.backends.ascend.harness.evaluator.node import Node, Undefined, Unmodelled, operators

__all__ = ["FAMILIES", "Node", "Undefined", "Unmodelled", "evaluate", "operators"]
