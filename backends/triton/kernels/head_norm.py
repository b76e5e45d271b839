"""The norm over a head's outputs and its gate, behind the delta rule."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_rows import prefetch
from specc.backends.triton.kernels.dot import rounded
from specc.backends.triton.kernels.region_math import silu


@triton.jit
def square_sums(x):
    """[R] sums of squares of x [R,N]. In what order they are added depends on how a kernel's tensors lie in threads."""
    return tl.sum(x * x, 1)


@triton.jit
def normed(o, weight, gate, eps, like, V: tl.constexpr):
    """rms_norm(o) weight silu(gate) of [R,VP] in float32, zeros beyond V: rounded after each of the three steps."""
    scale = tl.rsqrt(tl.div_rn(square_sums(o), tl.full([], V, tl.float32)) + eps)
    head = rounded(o * scale[:, None] * weight[None, :], like).to(tl.float32)
    return rounded(head * rounded(silu(gate), like).to(tl.float32), like)


@triton.jit
def ask_ahead(norm, V: tl.constexpr):
    """The norm's weight on its way into the L2 cache, for the last program to arrive: lines of 128 bytes at least."""
    LINES: tl.constexpr = triton.cdiv(V, 64)
    prefetch(norm + tl.minimum(tl.arange(0, triton.next_power_of_2(LINES)) * 64, V - 1))


@triton.jit
def gated_norm(o, gate, norm, out, eps, R: tl.constexpr, V: tl.constexpr):
    """`normed` of R heads side by side, which other programs have written; no program waits for another here."""
    ROWS: tl.constexpr = triton.next_power_of_2(R)
    WIDE: tl.constexpr = triton.next_power_of_2(V)
    column = tl.arange(0, WIDE)
    at = tl.arange(0, ROWS)[:, None] * V + column[None, :]
    inside = (at < R * V) & (column < V)[None, :]
    weight = tl.load(norm + column, mask=column < V, other=0.0).to(tl.float32)
    outputs = tl.load(o + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    gates = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, normed(outputs, weight, gates, eps, out, V), mask=inside)
