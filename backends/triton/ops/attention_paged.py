"""Attention over a paged cache: rows lie in pages of a pool [P,page,Hkv,D] that a block table int32 [B,blocks] names.

Page sizes are powers of two from 16 on. The new rows of a step lie behind the committed ones, in the pages that the
table names for [length, length + R); what the rows of entries beyond hold is never used. `fused` says how the reference
multiplies; here both give the same.
"""

from __future__ import annotations

import torch

from specc.backends.triton.ops.attention import attend

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
