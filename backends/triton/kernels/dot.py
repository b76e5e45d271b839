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
def dot_pieces(a, b, acc, PIECES: tl.constexpr):
    """acc + a b for float32 a. With bfloat16 b, a is split into PIECES bfloat16 pieces, each feeding one product.

    Two pieces leave 2^-17 of an element of a (2e-6 class for states), three are as good as float32.
    """
    if b.dtype == tl.bfloat16:
        for _ in tl.static_range(PIECES if EXACT else 1):
            piece = bfloat16(a)
            acc = dot_exact(piece, b, acc)
            a = a - piece.to(tl.float32)
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
