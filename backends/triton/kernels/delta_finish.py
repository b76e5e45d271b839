"""What the last program of a key head to arrive does behind a verify: the head norm, and copies that had to wait."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.head_norm import normed

NODES = tl.constexpr(16)
"""Nodes at a time."""


@triton.jit
def arrive(arrived, at, programs):
    """Whether this program is the last of `programs` to arrive at a counter; what the others stored is visible then."""
    tl.debug_barrier()
    is_last = tl.atomic_add(arrived + at, 1, sem="acq_rel") == programs - 1
    if is_last:
        tl.store(arrived + at, 0)
    return is_last


@triton.jit
def norm_nodes(o, gate, norm, out, first, N, eps, row_stride, gate_stride, V: tl.constexpr):
    """`normed` of one head of some nodes: o and out [N,V] by row stride, gate by its own."""
    WIDE: tl.constexpr = triton.next_power_of_2(V)
    node = first + tl.arange(0, NODES)[:, None]
    column = tl.arange(0, WIDE)[None, :]
    inside = (node < N) & (column < V)
    weight = tl.load(norm + tl.arange(0, WIDE), mask=tl.arange(0, WIDE) < V, other=0.0).to(tl.float32)
    gates = tl.load(gate + node * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    outputs = tl.load(o + node * row_stride + column, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    tl.store(out + node * row_stride + column, normed(outputs, weight, gates, eps, out, V), mask=inside)


@triton.jit
def keep_factors(k, k_out, g, g_out, first, N, H, HV, stride_kt, K: tl.constexpr, SHARE: tl.constexpr):
    """Raw keys [N,K] of a key head and log decays [N,SHARE] of its value heads, of some nodes, to where the factors
    lie: these may have been pending, so they are written when nobody reads them any more."""
    WIDE: tl.constexpr = triton.next_power_of_2(K)
    HEADS: tl.constexpr = triton.next_power_of_2(SHARE)
    node = first + tl.arange(0, NODES)[:, None]
    column, head = tl.arange(0, WIDE)[None, :], tl.arange(0, HEADS)[None, :]
    inside = (node < N) & (column < K)
    tl.store(k_out + node * (H * K) + column, tl.load(k + node * stride_kt + column, mask=inside), mask=inside)
    inside = (node < N) & (head < SHARE)
    tl.store(g_out + node * HV + head, tl.load(g + node * HV + head, mask=inside), mask=inside)


@triton.jit
def finish(o, gate, norm, out, k, k_out, g, g_out, arrived, b, head, N, H, HV, eps, stride_kt, gate_stride,
           K: tl.constexpr, V: tl.constexpr, T: tl.constexpr, SHARE: tl.constexpr, FACTORS: tl.constexpr):  # fmt: skip
    """Pointers are those of a sequence: o, out [N,HV,V], k and gate of the key head, k_out [N,H,K], g, g_out [N,HV]."""
    if arrive(arrived, b * H + head, SHARE * tl.num_programs(0)):
        for first in tl.static_range(0, T, NODES):
            for share in tl.static_range(SHARE):
                place = (head * SHARE + share) * V
                norm_nodes(o + place, gate + share * V, norm, out + place, first, N, eps, HV * V, gate_stride, V)
            if FACTORS:
                keep_factors(
                    k, k_out + head * K, g + head * SHARE, g_out + head * SHARE, first, N, H, HV, stride_kt, K, SHARE
                )
