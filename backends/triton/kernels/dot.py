"""Matrix products for the kernels: nearly float32 results at the tensor cores' rate.

Float32 operands go through the tensor cores as sums of bfloat16 pieces (8 mantissa bits each) where the other operand
is exact in bfloat16, else as three tf32 products (design 09, "Numerics"). All kernels multiply through this file: the
Triton interpreter multiplies bfloat16 operands of `tl.dot` as raw 16-bit integers, so they are widened there.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
EXACT = tl.constexpr(True)
"""False where a spec says `numerics: fast`: one tf32 product, one bfloat16 piece (errors of 4e-4 to 7e-4)."""


@triton.jit
def bfloat16(x):
    """Float32 rounded to the nearest bfloat16 (the interpreter's own conversion truncates)."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        x = bits.to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def rounded(x, like):
    """Float32 in the dtype of the pointer `like`."""
    if like.dtype.element_ty == tl.bfloat16:
        return bfloat16(x)
    else:
        return x.to(like.dtype.element_ty)


@triton.jit
def dot_exact(a, b, acc):
    """acc + a b, where a and b [M,K], [K,N] are bfloat16; acc float32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    else:
        return tl.dot(a, b, acc)


@triton.jit
def dot_float32(a, b, acc):
    """acc + a b of float32 operands, each split into two tf32 pieces: about 2e-7 relative."""
    if EXACT:
        return tl.dot(a, b, acc, input_precision="tf32x3")
    else:
        return tl.dot(a, b, acc, input_precision="tf32")


@triton.jit
def dot_vector(a, b, acc):
    """acc + a b of small float32 operands by multiply-adds: for those, splitting into pieces takes longer."""
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def halves(a):
    """Float32 as two bfloat16 pieces, each rounded to nearest. Pairs of numbers are converted at once: one by one they
    go through a unit that takes 16 a clock, which at 32 sequences is a fifth of the time of a tree verify."""
    if INTERPRETED:
        big = bfloat16(a)
        return big, bfloat16(a - big.to(tl.float32))
    else:
        return tl.inline_asm_elementwise(
            "{.reg .b32 lo, hi; .reg .f32 x, y; cvt.rn.bf16x2.f32 $0, $3, $2;"
            " shl.b32 lo, $0, 16; and.b32 hi, $0, 0xffff0000; mov.b32 x, lo; mov.b32 y, hi;"
            " sub.f32 x, $2, x; sub.f32 y, $3, y; cvt.rn.bf16x2.f32 $1, y, x;}",
            "=&r,=&r,r,r", [a], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip


@triton.jit
def thirds(a):
    """As `halves`, three pieces: all of a float32 number's digits."""
    if INTERPRETED:
        big = bfloat16(a)
        rest = a - big.to(tl.float32)
        middle = bfloat16(rest)
        return big, middle, bfloat16(rest - middle.to(tl.float32))
    else:
        return tl.inline_asm_elementwise(
            "{.reg .b32 lo, hi; .reg .f32 x, y, s, t; cvt.rn.bf16x2.f32 $0, $4, $3;"
            " shl.b32 lo, $0, 16; and.b32 hi, $0, 0xffff0000; mov.b32 s, lo; mov.b32 t, hi;"
            " sub.f32 x, $3, s; sub.f32 y, $4, t; cvt.rn.bf16x2.f32 $1, y, x;"
            " shl.b32 lo, $1, 16; and.b32 hi, $1, 0xffff0000; mov.b32 s, lo; mov.b32 t, hi;"
            " sub.f32 x, x, s; sub.f32 y, y, t; cvt.rn.bf16x2.f32 $2, y, x;}",
            "=&r,=&r,=&r,r,r", [a], dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip


@triton.jit
def dot_pieces(a, b, acc, PIECES: tl.constexpr):
    """acc + a b for float32 a. With bfloat16 b, a is split into PIECES bfloat16 pieces, each feeding one product.

    Two pieces leave 2^-17 of an element of a (2e-6 class for states), three are as good as float32.
    """
    if b.dtype == tl.bfloat16:
        if not EXACT:
            acc = dot_exact(bfloat16(a), b, acc)
        elif PIECES == 2:
            big, small = halves(a)
            acc = dot_exact(small, b, dot_exact(big, b, acc))
        else:
            big, middle, small = thirds(a)
            acc = dot_exact(small, b, dot_exact(middle, b, dot_exact(big, b, acc)))
        return acc
    else:
        return dot_float32(a, b.to(tl.float32), acc)


@triton.jit
def dot_rows(a, b, acc):
    """acc + a b for two operands as they come in, both bfloat16 or both float32."""
    if a.dtype == tl.bfloat16:
        return dot_exact(a, b, acc)
    else:
        return dot_float32(a, b, acc)
