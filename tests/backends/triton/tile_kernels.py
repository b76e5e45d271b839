"""Kernels around the functions of a state tile, for their tests."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_tile import load_tile, parts_of, put, store_tile, token_step


@triton.jit
def one_token(state, xk, xq, v, o, u, g, beta, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """A token whose rows are in registers as [C,E]."""
    column = tl.arange(0, C)[:, None] * E + tl.arange(0, E)[None, :]
    value = tl.arange(0, V)
    tiles = load_tile(state, value, K, V, V, C, E)
    output, factor, tiles = token_step(
        tiles, tl.load(xk + column), tl.load(xq + column), tl.load(v + value), g, beta, K, C, E
    )
    put(o + value, output)
    put(u + value, factor)
    store_tile(state, tiles, value, K, V, V, C, E)


@triton.jit
def taken_apart(x, y, C: tl.constexpr, E: tl.constexpr):
    """y [C,E] from the parts of x [C,E]."""
    parts = parts_of(tl.load(x + tl.arange(0, C)[:, None] * E + tl.arange(0, E)[None, :]), C, E)
    for c in tl.static_range(C):
        tl.store(y + c * E + tl.arange(0, E), parts[c])
