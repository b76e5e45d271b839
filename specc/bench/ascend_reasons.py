"""Why each Transpose and Cast of a layer is there, by the source line of the generated module that it was made for."""

from __future__ import annotations

import re

NO_OP = "torchair casts the result of every aten.mul to the type that it has; GE removes it"
UNKNOWN = "no reason is recorded"
_FLOAT32 = "decays, rates and the delta rule are computed in float32 (u: 5.5e-8; 3e-4 in float16)"
_TAPS = "a convolution adds its taps in float32; its result has the program's type"
_HEADS = "batched products want heads before nodes; projections give nodes before heads"
_EXPERTS = "experts are chosen in float32, ties by exact counts"
REASONS: tuple[tuple[str, str, str], ...] = (
    ("Cast", r"taps\.to\(wide\)|F\.silu\(total\)", _TAPS),
    ("Transpose", r"taps", "the taps of a convolution lie [channels, taps] in a checkpoint"),
    ("Cast", r"permute\(0, 3, 1, 2\)\.to", "outputs and factors go back to the type that they are stored in"),
    ("Transpose", r"permute\(0, 3, 1, 2\)", "the next product wants nodes before heads again"),
    ("Cast", r"softmax|topk|above|level|weight\.to\(logits|expert|router", _EXPERTS),
    (
        "Transpose",
        r"softmax|router|weight\.t\(|routed|expert|F\.silu\(gate\) \* up",
        "experts are a batched product with tokens last",
    ),
    ("Transpose", r"index_select|rows\.copy_", "GE gathers along the first dim; rows of a batch are the second"),
    (
        "Cast",
        r"unit_rows\(torch\.cat\(parts|beta=beta\.to|matrices\(state\)|state\.dtype\)",
        "the recurrent operator takes queries, keys, rates and states in bfloat16; matmuls want states in float32",
    ),
    ("Cast", r"seen\.to", "a mask becomes numbers, so that sums over paths are one product"),
    ("Cast", r"to\(torch\.float32\)|\.to\(dtype\)", _FLOAT32),
    ("Transpose", r"bmm|transpose\(1, 2\)|columns\(|key_rows|split|addcmul|across|permute", _HEADS),
)


def reason(kind: str, line: str, operator: str = "") -> str:
    """The reason for a Transpose or Cast of this line, made for `operator`; UNKNOWN if there is none."""
    if kind == "Cast" and operator == "aten.mul.Tensor":
        return NO_OP
    return next((text for wanted, pattern, text in REASONS if kind == wanted and re.search(pattern, line)), UNKNOWN)
