"""A state tile of one number per thread and tensor, and a token's step on it without a layout conversion or a barrier.

A tile is a tuple of R C 4 tensors [W,L], and a program has W L threads. Column c E + 4 l + j, E = 4 L, of a row of the
state lies in tensor (r C + c) 4 + j at [w,l]; which of the R rows w + W n that is, depends on the lane: n = r xor the
lane's own number, l / (L / R). A thread so holds R rows of 4 C columns and loads and stores them by fours, and a row's
threads are neighbours in a warp. A sum over K is a chain of multiply-adds in each thread and then log2(L) exchanges
with other lanes. For R rows these are shared out: with each of the first log2(R) exchanges a lane gives away the sums
of half of the rows that it has, those in the upper half of its tensors whoever it is, and at the end it has the sum of
its own row, tensor 0's, and does the arithmetic of that row only.

Exchanges are gathers along a row, which are right however the compiler lays a tile out. Counting on one number per
thread instead, by shuffles in assembly, was wrong for heads of 8 numbers, whose tiles were laid out otherwise.

The order of a sum depends on E alone, not on R or the number of warps. E is a geometry's, so equal inputs give equal
bits in every kernel. Products of a sum are spelled out as `fma`: a compiler that were free to contract a product and a
sum could make two variants of a kernel differ in a bit.
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
def quarters(x):
    """x [..,E] as four tensors [..,E/4]: one number each of four neighbours, which one thread has."""
    shape: tl.constexpr = x.shape
    even, odd = tl.split(tl.reshape(x, shape[:-1] + [shape[-1] // 4, 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def whole(tile, at: tl.constexpr, W: tl.constexpr, E: tl.constexpr):
    """The reverse of `quarters` for tensors at .. at + 3 [W,E/4] of a tile: [W,E]."""
    return tl.reshape(tl.join(tl.join(tile[at], tile[at + 2]), tl.join(tile[at + 1], tile[at + 3])), [W, E])


@triton.jit
def load_raw(at, K: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """A row of K numbers as C tensors [E], as stored, from the pointers [E] of its first E; zeros beyond K."""
    parts = ()
    for c in tl.static_range(C):
        if (c + 1) * E <= K:
            parts = parts + (tl.load(at + c * E),)
        else:
            parts = parts + (tl.load(at + c * E, mask=tl.arange(0, E) + c * E < K, other=0.0),)
    return parts


@triton.jit
def wide_row(parts, C: tl.constexpr):
    """A row as C tensors [E] as 4 C tensors [1,L] in float32."""
    found = ()
    for c in tl.static_range(C):
        four = quarters(widened(parts[c]))
        for i in tl.static_range(4):
            found = found + (four[i][None, :],)
    return found


@triton.jit
def load_row(at, K: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """A row of K numbers as 4 C tensors [1,L] in float32, from the pointers [E] of its first E."""
    return wide_row(load_raw(at, K, C, E), C)


@triton.jit
def load_rows(x, first, N, stride, K: tl.constexpr, W: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """Rows first .. first + W of x, `stride` apart, as C tensors [W,E] as stored; zeros from N and from K on."""
    row = first + tl.arange(0, W)[:, None]
    parts = ()
    for c in tl.static_range(C):
        column = tl.arange(0, E)[None, :] + c * E
        inside = row < N if (c + 1) * E <= K else (row < N) & (column < K)
        parts = parts + (tl.load(x + row * stride + column, mask=inside, other=0.0),)
    return parts


@triton.jit
def wide_rows(parts, first: tl.constexpr, C: tl.constexpr):
    """Parts first .. first + C of `load_rows` as 4 C tensors [W,L] in float32."""
    found = ()
    for c in tl.static_range(C):
        found = found + quarters(widened(parts[first + c]))
    return found


@triton.jit
def tile_rows(first, r: tl.constexpr, W: tl.constexpr, R: tl.constexpr, L: tl.constexpr, E: tl.constexpr):
    """[W,E]: the row of the state that a thread has in a tile's tensors of number r; a row has L lanes."""
    lane = tl.arange(0, E)[None, :] // (E // L)
    return first + tl.arange(0, W)[:, None] + (lane // (L // R) ^ r) * W


@triton.jit
def load_tile(state, first, K: tl.constexpr, V: tl.constexpr, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
              E: tl.constexpr):  # fmt: skip
    """Rows first .. first + R W of a state [V,K]; zeros outside."""
    parts = ()
    for r in tl.static_range(R):
        value = tile_rows(first, r, W, R, E // 4, E)
        for c in tl.static_range(C):
            column = tl.arange(0, E)[None, :] + c * E
            at = state + value * K + column
            if (C * E == K) and (V % (R * W) == 0):
                parts = parts + (tl.load(at),)
            else:
                parts = parts + (tl.load(at, mask=(value < V) & (column < K), other=0.0),)
    tile = ()
    for i in tl.static_range(R * C):
        tile = tile + quarters(parts[i])
    return tile


@triton.jit
def store_tile(state, tile, first, K: tl.constexpr, V: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
               C: tl.constexpr, E: tl.constexpr):  # fmt: skip
    """The reverse of `load_tile`."""
    for r in tl.static_range(R):
        value = tile_rows(first, r, W, R, E // 4, E)
        for c in tl.static_range(C):
            column = tl.arange(0, E)[None, :] + c * E
            at = state + value * K + column
            part = whole(tile, (r * C + c) * 4, W, E)
            if (C * E == K) and (V % (R * W) == 0):
                tl.store(at, part)
            else:
                tl.store(at, part, mask=(value < V) & (column < K))


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
def store_values(at, value, x, V: tl.constexpr, BV: tl.constexpr):
    """x to the pointers `at` of the places `value` in a row of V numbers; programs have BV of them."""
    if V % BV == 0:
        put(at, x)
    else:
        tl.store(at, x, mask=value < V)


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
def get_values(at, value, V: tl.constexpr, BV: tl.constexpr):
    """The numbers from the pointers `at` of the places `value` in a row of V as float32; zeros beyond."""
    if V % BV == 0:
        return get(at).to(tl.float32)
    else:
        return tl.load(at, mask=value < V, other=0.0).to(tl.float32)


@triton.jit
def get_six(at):
    """Six float32 numbers from one pointer (a multiple of 16 bytes) on, in two loads."""
    if INTERPRETED:
        return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4), tl.load(at + 5)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.v4.f32 {$0, $1, $2, $3}, [$6]; ld.global.v2.f32 {$4, $5}, [$6+16];", "=&f,=&f,=&f,=&f,=f,=f,l",
            [at], (tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32), False, 1,
        )  # fmt: skip


@triton.jit
def room(BYTES: tl.constexpr):
    """The address (int32) of BYTES, at most 48 KB, of shared memory, which are this program's as long as it runs."""
    declared: tl.constexpr = f"{{.shared .align 16 .b8 near[{BYTES}]; mov.u32 $0, near;}}"
    return tl.inline_asm_elementwise(declared, "=r,r", [0], tl.int32, False, 1)


@triton.jit
def put_near(at, x):
    """Float32 numbers to addresses in shared memory, from where they lie in threads."""
    tl.inline_asm_elementwise("st.shared.f32 [$1], $2; mov.u32 $0, 0;", "=r,r,f", [at, x], tl.int32, False, 1)


@triton.jit
def get_near(at):
    """A float32 number from each address in shared memory."""
    return tl.inline_asm_elementwise("ld.shared.f32 $0, [$1];", "=f,r", [at], tl.float32, False, 1)


@triton.jit
def get_six_near(at):
    """Six float32 numbers from one address in shared memory (a multiple of 16) on."""
    return tl.inline_asm_elementwise(
        "ld.shared.v4.f32 {$0, $1, $2, $3}, [$6]; ld.shared.v2.f32 {$4, $5}, [$6+16];", "=&f,=&f,=&f,=&f,=f,=f,r",
        [at], (tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32), False, 1,
    )  # fmt: skip


@triton.jit
def put_row_near(at, row, C: tl.constexpr, E: tl.constexpr):
    """Rows as 4 C tensors [W,L] float32 to shared memory, from the addresses [W,L] of each lane's first number on."""
    for c in tl.static_range(C):
        tl.inline_asm_elementwise(
            "st.shared.v4.f32 [$1], {$2, $3, $4, $5}; mov.u32 $0, 0;", "=r,r,f,f,f,f",
            [at + c * (E * 4), row[4 * c], row[4 * c + 1], row[4 * c + 2], row[4 * c + 3]], tl.int32, False, 1,
        )  # fmt: skip


@triton.jit
def four_near(at, further: tl.constexpr):
    """Four float32 numbers from `further` bytes behind each address in shared memory on."""
    code: tl.constexpr = f"ld.shared.v4.f32 {{$0, $1, $2, $3}}, [$4+{further}];"
    return tl.inline_asm_elementwise(
        code, "=f,=f,=f,=f,r", [at], (tl.float32, tl.float32, tl.float32, tl.float32), False, 1
    )


@triton.jit
def row_near(at, further: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """The row of `put_row_near` from `further` bytes behind the addresses [1,L] of each lane's first number on."""
    row = ()
    for c in tl.static_range(C):
        row = row + four_near(at, further + c * (E * 4))
    return row


@triton.jit
def swapped(x, D: tl.constexpr):
    """x [W,L] of the lane whose number differs from one's own in the bits of D."""
    lane = tl.arange(0, x.shape[1])[None, :] ^ D
    return tl.gather(x, tl.broadcast_to(lane, x.shape), 1)


@triton.jit
def row_sum(sums, R: tl.constexpr, L: tl.constexpr):
    """Sums over the lanes of R rows [W,L], of each lane's own row. R <= L."""
    for bit in tl.static_range(5):
        if (R >> bit) > 1:
            kept = ()
            for r in tl.static_range(R >> (bit + 1)):
                kept = kept + (sums[r] + swapped(sums[r + (R >> (bit + 1))], L >> (bit + 1)),)
            sums = kept
    total = sums[0]
    for bit in tl.static_range(5):
        if (L // R) >> (bit + 1) > 0:
            total += swapped(total, (L // R) >> (bit + 1))
    return total


@triton.jit
def spread(x, R: tl.constexpr, L: tl.constexpr):
    """x [W,L] of each lane's own row as R tensors [W,L] in a tile's order."""
    parts = (x,)
    for r in tl.static_range(1, R):
        parts = parts + (swapped(x, r * (L // R)),)
    return parts


@triton.jit
def own_rows(first, W: tl.constexpr, R: tl.constexpr, L: tl.constexpr):
    """[W,L]: the row of the state that a lane has alone in `row_sum`."""
    return first + tl.arange(0, W)[:, None] + tl.arange(0, L)[None, :] // (L // R) * W


@triton.jit
def token_sums(xk, xq, C: tl.constexpr, W: tl.constexpr, L: tl.constexpr):
    """(x_k . x_k, x_q . x_q, x_k . x_q) [W,L], alike in all lanes, of rows as 4 C tensors [W,L] or [1,L]."""
    nothing = tl.zeros([W, L], tl.float32)
    square_k, square_q, shared = nothing, nothing, nothing
    for c in tl.static_range(4 * C):
        square_k = tl.fma(xk[c], xk[c], square_k)
        square_q = tl.fma(xq[c], xq[c], square_q)
        shared = tl.fma(xk[c], xq[c], shared)
    return row_sum((square_k,), 1, L), row_sum((square_q,), 1, L), row_sum((shared,), 1, L)


@triton.jit
def token_numbers(square_k, square_q, shared, g, beta, K: tl.constexpr):
    """(e^g, r_k, -r_k e^g, r_q e^g, beta, r_q x_k . x_q): what of a token's step no state changes; numbers or tensors.
    r_q has the query's scale K^-1/2."""
    decay = tl.exp(g)
    norm, scale = tl.rsqrt(square_k + EPS), tl.rsqrt(square_q + EPS) * (K**-0.5)
    return decay, norm, -norm * decay, scale * decay, beta, scale * shared


@triton.jit
def updated(tile, xk, decay, weighted, R: tl.constexpr, C: tl.constexpr):
    """decay S + weighted x^T: raw keys, weighted (u times the key's inverse norm) as R tensors [W,L]."""
    after = ()
    for r in tl.static_range(R):
        for c in tl.static_range(4 * C):
            after = after + (tl.fma(weighted[r], xk[c], tile[r * 4 * C + c] * decay),)
    return after


@triton.jit
def tile_step(tile, xk, xq, value, numbers, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr, L: tl.constexpr):
    """One token on a tile S: (o [W,L], u [W,L] of each lane's own row, S'). xk, xq raw, 4 C tensors [1,L] float32;
    value [W,L] of the own row; numbers: `token_numbers`.

    k = r x with the inverse norm r outside the products (design 04). Both products are with the tile as it comes in, so
    that their sums run side by side: u = beta (v - r d S x_k), w = r u, S' = d S + w x_k^T and
    S' x_q = d S x_q + w (x_k . x_q); fading is -r d. With the query's inverse norm and scale s, reading is s d and
    shared s x_k . x_q.
    """
    decay, norm, fading, reading, beta, shared = numbers
    old, read = (), ()
    for r in tl.static_range(R):
        sum_k, sum_q = tl.zeros([W, L], tl.float32), tl.zeros([W, L], tl.float32)
        for c in tl.static_range(4 * C):
            sum_k = tl.fma(tile[r * 4 * C + c], xk[c], sum_k)
            sum_q = tl.fma(tile[r * 4 * C + c], xq[c], sum_q)
        old, read = old + (sum_k,), read + (sum_q,)
    u = beta * tl.fma(fading, row_sum(old, R, L), value)
    weighted = u * norm
    output = tl.fma(weighted, shared, reading * row_sum(read, R, L))
    return output, u, updated(tile, xk, decay, spread(weighted, R, L), R, C)


@triton.jit
def factor_step(tile, xk, u, g, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr, L: tl.constexpr):
    """The update of `tile_step` from its factors, in the same order: bit for bit the same tile. u: R tensors [W,L]."""
    square = tl.zeros([W, L], tl.float32)
    for c in tl.static_range(4 * C):
        square = tl.fma(xk[c], xk[c], square)
    norm = tl.rsqrt(row_sum((square,), 1, L) + EPS)
    weighted = ()
    for r in tl.static_range(R):
        weighted = weighted + (u[r] * norm,)
    return updated(tile, xk, tl.exp(g), weighted, R, C)
