"""A state tile as a tuple of [R,E] tensors, and one token's step on it without a layout conversion or a barrier.

The K columns of R rows lie as C tensors of E neighbouring columns each. In the layout that a load of such a tensor has
by nature a thread holds four neighbours of a row, and a row's threads belong to one warp. So sums over K are
multiply-adds in a thread and then a few exchanges inside a warp, and a token's key [E] reaches the threads by a load of
their own. Rows and warps are not part of the order of those sums, so equal inputs give equal bits in every kernel as
long as a thread holds four numbers of each tensor at least (R E >= 128 warps). E is part of it, and is a geometry's.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_rows import EPS
from specc.backends.triton.kernels.dot import INTERPRETED


@triton.jit
def widened(x):
    """A part of a row [E] as float32. Pairs of bfloat16 numbers are taken apart in two instructions, not four."""
    if INTERPRETED or x.dtype != tl.bfloat16:
        return x.to(tl.float32)
    else:
        return tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], tl.float32, True, 2
        )


@triton.jit
def wide(parts, C: tl.constexpr):
    """A row as a tuple of C tensors [E], in float32."""
    rows = ()
    for c in tl.static_range(C):
        rows = rows + (widened(parts[c]),)
    return rows


@triton.jit
def load_part(row, first: tl.constexpr, K: tl.constexpr, E: tl.constexpr):
    """[E] numbers of a row of K from column `first` on; zeros beyond K."""
    column = tl.arange(0, E) + first
    if first + E <= K:
        return tl.load(row + column)
    else:
        return tl.load(row + column, mask=column < K, other=0.0)


@triton.jit
def load_parts(row, K: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """A row of K numbers as a tuple of C tensors [E]."""
    parts = ()
    for c in tl.static_range(C):
        parts = parts + (load_part(row, c * E, K, E),)  # the compiler knows no other way
    return parts


@triton.jit
def load_tile(state, value, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """The given rows [BV] of a state [V,K] as a tuple of C tensors [BV,E]; zeros outside."""
    tiles = ()
    for c in tl.static_range(C):
        column = tl.arange(0, E)[None, :] + c * E
        at = state + value[:, None] * K + column
        if (C * E == K) and (V % BV == 0):
            tiles = tiles + (tl.load(at),)
        else:
            tiles = tiles + (tl.load(at, mask=(value[:, None] < V) & (column < K), other=0.0),)
    return tiles


@triton.jit
def store_tile(state, tiles, value, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
                E: tl.constexpr):  # fmt: skip
    """The reverse of `load_tile`."""
    for c in tl.static_range(C):
        column = tl.arange(0, E)[None, :] + c * E
        at = state + value[:, None] * K + column
        if (C * E == K) and (V % BV == 0):
            tl.store(at, tiles[c])
        else:
            tl.store(at, tiles[c], mask=(value[:, None] < V) & (column < K))


@triton.jit
def put(at, x):
    """x at the pointers `at` from where it lies in threads: those that hold the same number all store it.

    `tl.store` would first spread x over all threads, through shared memory and with barriers, at every token.
    """
    if INTERPRETED:
        tl.store(at, x)
    elif x.dtype.primitive_bitwidth == 16:
        tl.inline_asm_elementwise(
            "st.global.b16 [$1], $2; mov.u32 $0, 0;", "=r,l,h", [at, x.to(tl.int16, bitcast=True)], tl.int32, False, 1
        )
    else:
        tl.inline_asm_elementwise(
            "st.global.b32 [$1], $2; mov.u32 $0, 0;", "=r,l,r", [at, x.to(tl.int32, bitcast=True)], tl.int32, False, 1
        )


@triton.jit
def store_values(row, value, x, V: tl.constexpr, BV: tl.constexpr):
    """x [BV] to a row of V numbers."""
    if V % BV == 0:
        put(row + value, x)
    else:
        tl.store(row + value, x, mask=value < V)


@triton.jit
def get(at):
    """Numbers of 16 or 32 bits from the pointers `at` to where they are needed, as `put` stores them."""
    if INTERPRETED:
        return tl.load(at)
    elif at.dtype.element_ty.primitive_bitwidth == 16:
        found = tl.inline_asm_elementwise("ld.global.b16 $0, [$1];", "=h,l", [at], tl.int16, False, 1)
        return found.to(at.dtype.element_ty, bitcast=True)
    else:
        found = tl.inline_asm_elementwise("ld.global.b32 $0, [$1];", "=r,l", [at], tl.int32, False, 1)
        return found.to(at.dtype.element_ty, bitcast=True)


@triton.jit
def get_values(row, value, V: tl.constexpr, BV: tl.constexpr):
    """[BV] numbers of a row of V; zeros beyond."""
    if V % BV == 0:
        return get(row + value)
    else:
        return tl.load(row + value, mask=value < V, other=0.0)


@triton.jit
def nothing_like(x):
    """Zeros that lie in threads as the float32 tensor x does, and so does what is computed from them."""
    if INTERPRETED:
        return tl.zeros_like(x)
    else:
        return tl.inline_asm_elementwise("mov.f32 $0, 0f00000000;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def token_sums(xk, xq, nothing, C: tl.constexpr):
    """(x_k . x_k, x_q . x_q, x_k . x_q) [R] of rows as tuples of C tensors [R,E]; `nothing` [R,E] zeros."""
    square_k, square_q, shared = nothing, nothing, nothing
    for c in tl.static_range(C):
        k, q = xk[c].to(tl.float32), xq[c].to(tl.float32)
        square_k, square_q, shared = tl.fma(k, k, square_k), tl.fma(q, q, square_q), tl.fma(k, q, shared)
    return tl.sum(square_k, 1), tl.sum(square_q, 1), tl.sum(shared, 1)


@triton.jit
def token_numbers(square_k, square_q, shared, g, beta, K: tl.constexpr):
    """(e^g, r_k, r_k e^g, r_q, beta, x_k . x_q): what of a token's step no state changes; numbers or tensors."""
    decay = tl.exp(g)
    norm = tl.rsqrt(square_k + EPS)
    return decay, norm, norm * decay, tl.rsqrt(square_q + EPS) * (K**-0.5), beta, shared


@triton.jit
def updated(tiles, xk, decay, weighted, C: tl.constexpr):
    """decay S + weighted x^T: tiles [R,E], raw keys [E], weighted [R] (u times the key's inverse norm)."""
    after = ()
    for c in tl.static_range(C):
        after = after + (tl.fma(weighted[:, None], xk[c][None, :], tiles[c] * decay),)
    return after


@triton.jit
def tile_step(tiles, xk, xq, value, numbers, C: tl.constexpr):
    """One token on a tile S (tuple of C tensors [R,E]): (o [R], u [R], S'). xk, xq raw, tuples of [E] float32; value
    [R]; numbers: `token_numbers`.

    k = r x with the inverse norm r outside the products (design 04). Both products are with the tile as it comes in, so
    that their sums run side by side: u = beta (v - r d S x_k), w = r u, S' = d S + w x_k^T and
    S' x_q = d S x_q + w (x_k . x_q); fading is r d. Multiply-adds are spelled out: a compiler that were free to
    contract a product and a sum could make two variants of a kernel differ in a bit.
    """
    decay, norm, fading, scale, beta, shared = numbers
    old, read = tl.zeros_like(tiles[0]), tl.zeros_like(tiles[0])
    for c in tl.static_range(C):
        old = tl.fma(tiles[c], xk[c][None, :], old)
        read = tl.fma(tiles[c], xq[c][None, :], read)
    u = beta * tl.fma(-fading, tl.sum(old, 1), value.to(tl.float32))
    weighted = u * norm
    return scale * tl.fma(weighted, shared, decay * tl.sum(read, 1)), u, updated(tiles, xk, decay, weighted, C)


@triton.jit
def factor_step(tiles, xk, u, g, C: tl.constexpr):
    """The update of `tile_step` from its factors, in the same order: bit for bit the same tile. xk: a tuple of [E]."""
    square = nothing_like(tiles[0])
    for c in tl.static_range(C):
        square = tl.fma(xk[c][None, :], xk[c][None, :], square)
    return updated(tiles, xk, tl.exp(g), u * tl.rsqrt(tl.sum(square, 1) + EPS), C)
