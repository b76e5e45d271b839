"""What the kernels of the gated delta rule share: gates, norms, masks, and one token's step on a state tile.

State tiles of the schedules that go token by token are [C,R,E]: R rows of the state (values), K = C E columns. A
thread then holds many columns of few rows, so that sums over K need few exchanges between threads. The step has one
order of operations, spelled out with `fma`, so that equal inputs give equal bits in every kernel that uses it.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import INTERPRETED

EPS = tl.constexpr(1e-6)


@triton.jit
def softplus(x):
    """log(1 + e^x); x itself above 20. A short series where 1 + e^x would lose e^x's digits."""
    y = tl.exp(tl.minimum(x, 20.0))
    z = tl.minimum(y, 1.0)
    series = z * (1.0 + z * (-0.5 + z * (1.0 / 3.0 + z * (-0.25 + z * 0.2))))
    return tl.where(x > 20.0, x, tl.where(y < 0.03, series, tl.log(1.0 + y)))


@triton.jit
def gates(g, beta, a_log, dt_bias, hv, GATE: tl.constexpr):
    """(g, beta) in float32. GATE 0: as given. Else raw a and b come in: g = -e^a_log softplus(a + dt_bias), beta =
    GATE sigmoid(b) (2 where negative eigenvalues are allowed; Grazzi et al., 2024)."""
    g = g.to(tl.float32)
    beta = beta.to(tl.float32)
    if GATE > 0:
        g = -tl.exp(tl.load(a_log + hv).to(tl.float32)) * softplus(g + tl.load(dt_bias + hv).to(tl.float32))
        beta = GATE / (1.0 + tl.exp(-beta))
    return g, beta


@triton.jit
def ancestors(mask, b, N, T: tl.constexpr, MASK: tl.constexpr):
    """[T,T] bool: j is an ancestor of i or i itself. MASK 0: a chain; 1: bytes [B,N,N]; 2: int64 bits [B,N]."""
    i = tl.arange(0, T)[:, None]
    j = tl.arange(0, T)[None, :]
    inside = (i < N) & (j < N)
    if MASK == 0:
        return inside & (j <= i)
    elif MASK == 1:
        return tl.load(mask + (b * N + i) * N + j, mask=inside, other=0) != 0
    else:
        bits = tl.load(mask + b * N + i, mask=i < N, other=0)
        return inside & (((bits >> j) & 1) != 0)


@triton.jit
def live_rows(valid, b, N, T: tl.constexpr, VALID: tl.constexpr):
    """[T] bool: rows that are nodes, not padding."""
    i = tl.arange(0, T)
    if VALID:
        return tl.load(valid + b * N + i, mask=i < N, other=0) != 0
    else:
        return i < N


@triton.jit
def columns(C: tl.constexpr, E: tl.constexpr):
    """[C,E]: the column numbers of K = C E."""
    return tl.arange(0, C)[:, None] * E + tl.arange(0, E)[None, :]


@triton.jit
def tile_offsets(rows, K: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """[C,R,E] offsets into a state [V,K] for the given rows [R]."""
    across = tl.arange(0, C)[:, None, None] * E + tl.arange(0, E)[None, None, :]
    return rows[None, :, None] * K + across


@triton.jit
def prefetch(lines):
    """Ask for the lines [..] of 128 bytes at these pointers in the L2 cache: they travel while something else runs."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [lines], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def inverse_norm(x):
    """1 / sqrt(sum x^2 + eps) of x [C,E] float32."""
    return tl.rsqrt(tl.sum(tl.sum(x * x, 1), 0) + EPS)


@triton.jit
def add_factor(tile, x, weighted):
    """tile + weighted x^T: tile [C,R,E] already decayed, x [C,E] float32, weighted [R] (u times the key's norm)."""
    return tl.fma(weighted[None, :, None], x[:, None, :], tile)


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
def token_step(tile, xk, xq, value, g, beta, K: tl.constexpr, BV: tl.constexpr, E: tl.constexpr):
    """One token on a tile [C,R,E]: (o [R], u [R], tile'). xk, xq raw [C,E], value [R], g and beta scalars.

    k = r x with the norm r outside the products (design 04): u = beta (v - r S x), S + (r u) x^T.
    """
    xk = xk.to(tl.float32)
    xq = xq.to(tl.float32)
    norm = inverse_norm(xk)
    tile = tile * tl.exp(g)
    u = beta * tl.fma(-norm, product(tile, xk, K // E, BV, E), value.to(tl.float32))
    tile = add_factor(tile, xk, u * norm)
    return (inverse_norm(xq) * (K**-0.5)) * product(tile, xq, K // E, BV, E), u, tile


@triton.jit
def factor_step(tile, xk, u, g):
    """The update of `token_step` from its factors, in the same order: bit for bit the same tile."""
    xk = xk.to(tl.float32)
    norm = inverse_norm(xk)
    return add_factor(tile * tl.exp(g), xk, u * norm)
