"""What the kernels of the gated delta rule share: gates, masks, and lines that are brought near."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import INTERPRETED
from specc.backends.triton.kernels.region_math import sigmoid, softplus

EPS = tl.constexpr(1e-6)


@triton.jit
def gate_values(a, b, a_log, dt_bias, GATE: tl.constexpr):
    """g = -e^a_log softplus(a + dt_bias) and beta = GATE sigmoid(b), all float32."""
    return softplus(a + dt_bias) * -tl.exp(a_log), GATE * sigmoid(b)


@triton.jit
def gates(g, beta, a_log, dt_bias, hv, GATE: tl.constexpr):
    """(g, beta) in float32. GATE 0: as given. Else raw a and b come in: g = -e^a_log softplus(a + dt_bias), beta =
    GATE sigmoid(b) (2 where negative eigenvalues are allowed; Grazzi et al., 2024)."""
    g = g.to(tl.float32)
    beta = beta.to(tl.float32)
    if GATE > 0:
        at_a, at_dt = tl.load(a_log + hv).to(tl.float32), tl.load(dt_bias + hv).to(tl.float32)
        g, beta = gate_values(g, beta, at_a, at_dt, GATE)
    return g, beta


@triton.jit
def ancestors(mask, b, N, T: tl.constexpr, MASK: tl.constexpr):
    """[T,T] bool: j is an ancestor of i or i itself, from bytes [B,N,N]; without MASK of a chain."""
    i = tl.arange(0, T)[:, None]
    j = tl.arange(0, T)[None, :]
    inside = (i < N) & (j < N)
    if MASK:
        return tl.load(mask + (b * N + i) * N + j, mask=inside, other=0) != 0
    else:
        return inside & (j <= i)


@triton.jit
def prefetch(lines):
    """Ask for the lines [..] of 128 bytes at these pointers in the L2 cache: they travel while something else runs."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [lines], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def touch(at):
    """Bring the sectors of 32 bytes at these pointers into the multiprocessor's own cache: a program's stores go past
    it, so that each first load of what was stored would wait for the L2 cache, one after the other. The store hardly
    happens (its condition is a NaN that no kernel makes) and changes nothing; without it the load would be left out.
    """
    if not INTERPRETED:
        if at.dtype.element_ty.primitive_bitwidth == 16:
            tl.inline_asm_elementwise(
                "{.reg .b16 t; .reg .pred p; ld.global.b16 t, [$1]; setp.eq.b16 p, t, 0x7fab;"
                " @p st.global.b16 [$1], t; mov.u32 $0, 0;}",
                "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            tl.inline_asm_elementwise(
                "{.reg .b32 t; .reg .pred p; ld.global.b32 t, [$1]; setp.eq.b32 p, t, 0x7fabcdef;"
                " @p st.global.b32 [$1], t; mov.u32 $0, 0;}",
                "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
