"""What the kernels of the gated delta rule share: gates, norms, masks, and one token's step on a state tile.

State tiles of the schedules that go token by token are [C,R,E]: R rows of the state (values), C E >= K columns. A
thread then holds many columns of few rows, so that sums over K need few exchanges between threads. The step has one
order of operations, spelled out with `fma`, so that equal inputs give equal bits in every kernel that uses it.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import INTERPRETED
from specc.backends.triton.kernels.region_math import sigmoid, softplus

EPS = tl.constexpr(1e-6)


@triton.jit
def gates(g, beta, a_log, dt_bias, hv, GATE: tl.constexpr):
    """(g, beta) in float32. GATE 0: as given. Else raw a and b come in: g = -e^a_log softplus(a + dt_bias), beta =
    GATE sigmoid(b) (2 where negative eigenvalues are allowed; Grazzi et al., 2024)."""
    g = g.to(tl.float32)
    beta = beta.to(tl.float32)
    if GATE > 0:
        g = softplus(g + tl.load(dt_bias + hv).to(tl.float32)) * -tl.exp(tl.load(a_log + hv).to(tl.float32))
        beta = GATE * sigmoid(beta)
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
def columns(C: tl.constexpr, E: tl.constexpr):
    """[C,E]: the column numbers of K = C E."""
    return tl.arange(0, C)[:, None] * E + tl.arange(0, E)[None, :]


@triton.jit
def load_row(row, column, K: tl.constexpr, KP: tl.constexpr):
    """[C,E] of a row of K numbers; zeros beyond K (KP = C E)."""
    if K == KP:
        return tl.load(row + column)
    else:
        return tl.load(row + column, mask=column < K, other=0.0)


@triton.jit
def load_values(row, value, V: tl.constexpr, BV: tl.constexpr):
    """[R] of a row of V numbers; zeros beyond V."""
    if V % BV == 0:
        return tl.load(row + value)
    else:
        return tl.load(row + value, mask=value < V, other=0.0)


@triton.jit
def tile_offsets(value, K: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """[C,R,E] offsets into a state [V,K] for the given rows [R]."""
    across = tl.arange(0, C)[:, None, None] * E + tl.arange(0, E)[None, None, :]
    return value[None, :, None] * K + across


@triton.jit
def tile_inside(value, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """[C,R,E] bool: what of a tile is inside a state [V,K]."""
    across = tl.arange(0, C)[:, None, None] * E + tl.arange(0, E)[None, None, :]
    return (value[None, :, None] < V) & (across < K)


@triton.jit
def load_tile(state, value, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """[C,R,E] of a state [V,K]; zeros outside."""
    if (C * E == K) and (V % BV == 0):
        return tl.load(state + tile_offsets(value, K, C, E))
    else:
        return tl.load(state + tile_offsets(value, K, C, E), mask=tile_inside(value, K, V, C, E), other=0.0)


@triton.jit
def store_tile(state, tile, value, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
               E: tl.constexpr):  # fmt: skip
    """The reverse of `load_tile`."""
    if (C * E == K) and (V % BV == 0):
        tl.store(state + tile_offsets(value, K, C, E), tile)
    else:
        tl.store(state + tile_offsets(value, K, C, E), tile, mask=tile_inside(value, K, V, C, E))


@triton.jit
def prefetch(lines):
    """Ask for the lines [..] of 128 bytes at these pointers in the L2 cache: they travel while something else runs."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [lines], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def total(x):
    """The sum of x [C,E]."""
    return tl.sum(tl.sum(x, 1), 0)


@triton.jit
def quarters(x, C: tl.constexpr, R: tl.constexpr, E: tl.constexpr):
    """Four tensors [C,R,E/4] of [C,R,E]: every fourth column each. A thread holds four neighbours, so nothing moves."""
    even, odd = tl.split(x.reshape(C, R, E // 2, 2))
    first, third = tl.split(even.reshape(C, R, E // 4, 2))
    second, fourth = tl.split(odd.reshape(C, R, E // 4, 2))
    return first, second, third, fourth


@triton.jit
def product(tile, x, C: tl.constexpr, R: tl.constexpr, E: tl.constexpr):
    """tile x: [C,R,E] by [C,E] -> [R].

    Multiply-adds are spelled out and everything else is a sum of their results: where a compiler would be free to
    contract a product and a sum, two variants of a kernel could differ in a bit.
    """
    t0, t1, t2, t3 = quarters(tile, C, R, E)
    x0, x1, x2, x3 = quarters(x[:, None, :], C, 1, E)
    return tl.sum(tl.sum(tl.fma(t3, x3, tl.fma(t2, x2, tl.fma(t1, x1, t0 * x0))), 0), 1)


@triton.jit
def after_factor(tile, xk, decay, weighted):
    """decay S + weighted x^T: a tile [C,R,E], a raw key [C,E], weighted [R] (u times the key's inverse norm)."""
    return tl.fma(weighted[None, :, None], xk[:, None, :], tile * decay)


@triton.jit
def token_step(tile, xk, xq, value, g, beta, K: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """One token on a tile S [C,R,E]: (o [R], u [R], S'). xk, xq raw [C,E], value [R], g and beta scalars.

    k = r x with the inverse norm r outside the products (design 04). Both products are with the tile as it comes in, so
    that their sums over threads run side by side: u = beta (v - r d S x_k), w = r u, S' = d S + w x_k^T and
    S' x_q = d S x_q + w (x_k . x_q).
    """
    xk = xk.to(tl.float32)
    xq = xq.to(tl.float32)
    norm = tl.rsqrt(total(xk * xk) + EPS)
    scale = tl.rsqrt(total(xq * xq) + EPS) * (K**-0.5)
    shared = total(xk * xq)
    decay = tl.exp(g)
    old = product(tile, xk, C, BV, E)
    read = product(tile, xq, C, BV, E)
    u = beta * tl.fma(-(norm * decay), old, value.to(tl.float32))
    weighted = u * norm
    return scale * tl.fma(weighted, shared, decay * read), u, after_factor(tile, xk, decay, weighted)


@triton.jit
def factor_step(tile, xk, u, g):
    """The update of `token_step` from its factors, in the same order: bit for bit the same tile."""
    xk = xk.to(tl.float32)
    return after_factor(tile, xk, tl.exp(g), u * tl.rsqrt(total(xk * xk) + EPS))
