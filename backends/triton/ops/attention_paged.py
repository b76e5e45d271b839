"""Attention over a paged cache: rows lie in pages of a pool [P,page,Hkv,D] that a block table int32 [B,blocks] names.

Page sizes are powers of two from 16 on. The new rows of a step lie behind the committed ones, in the pages that the
table names for [length, length + R); what the rows of entries beyond hold is never used. `fused` says how the reference
multiplies; here both give the same.
"""

from __future__ import annotations

import torch

from specc.backends.triton.ops.attention import attend
from specc.backends.triton.ops.attention_step import rope_attention_, rope_attention_linear_

Tensor = torch.Tensor


def tree_attention_paged(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_table: Tensor,
    length: Tensor,
    mask: Tensor,
    positions: Tensor,
    scale: float,
    window: int,
    fused: bool = True,
) -> Tensor:
    """`tree_attention_cached` over pages: row length[b] + r is new row r, visible to node m if mask[b,m,r]."""
    return attend(
        q, k_pool, v_pool, length, mask.shape[-1], scale, window,
        mask=mask, positions=positions, table=block_table,
    )  # fmt: skip


def causal_attention_paged(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_table: Tensor,
    length: Tensor,
    positions: Tensor,
    offset: int,
    scale: float,
    window: int,
    fused: bool = True,
) -> Tensor:
    """`causal_attention_cached` over pages: row m of q sees the new rows [0, offset + m]."""
    rows = offset + q.shape[1]
    return attend(
        q, k_pool, v_pool, length, rows, scale, window,
        positions=positions, offset=offset, table=block_table,
    )  # fmt: skip


def rope_attention_paged_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_table: Tensor,
    length: Tensor,
    count: Tensor | None,
    mask: Tensor | None,
    scale: float,
    fused: bool = True,
) -> Tensor:
    """`rope_attention_` over pages."""
    return rope_attention_(q, k, v, cos, sin, k_pool, v_pool, length, count, mask, scale, fused, table=block_table)


def rope_attention_paged_linear_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_table: Tensor,
    length: Tensor,
    count: Tensor | None,
    mask: Tensor | None,
    scale: float,
    fused: bool,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
) -> Tensor:
    """`rope_attention_linear_` over pages."""
    return rope_attention_linear_(
        q, k, v, cos, sin, k_pool, v_pool, length, count, mask, scale, fused, weight, bias, residual,
        table=block_table,
    )  # fmt: skip
