"""Rotary embedding and attention that read no more cache rows than are committed.

Query heads that share a KV head are folded into the row axis, so that no K or V row is
repeated: q [B,M,Hq,D] becomes [B,Hkv,G*M,D] with G = Hq / Hkv.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [B,M,H,D] in halves by cos, sin [B,M,D/2]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float,
    fused: bool,
) -> torch.Tensor:
    """q [B,M,Hq,D] over k, v [B,R,Hkv,D] where visible bool [B or 1,M,R] (None: all)."""
    batch, rows, heads, dim = q.shape
    shared = k.shape[2]
    group = heads // shared
    folded = q.view(batch, rows, shared, group, dim).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, shared, group * rows, dim)
    mask = None
    if visible is not None:
        mask = visible.unsqueeze(1).repeat(1, 1, group, 1)
    key, value = k.transpose(1, 2), v.transpose(1, 2)
    if fused:
        out = F.scaled_dot_product_attention(
            folded, key, value, attn_mask=mask, scale=scale
        )
    else:
        scores = torch.matmul(folded, key.transpose(2, 3)) * scale
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        out = torch.matmul(torch.softmax(scores, dim=-1, dtype=wide).to(q.dtype), value)
    out = out.view(batch, shared, group, rows, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, rows, heads, dim)


def attend_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of a prompt's first rows: row m of q sees rows [0, m] of k, v."""
    group = q.shape[2] // k.shape[2]
    key = k.transpose(1, 2).repeat_interleave(group, 1)
    value = v.transpose(1, 2).repeat_interleave(group, 1)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), key, value, is_causal=True, scale=scale
    )
    return out.transpose(1, 2).contiguous()


def block_visible(
    length: torch.Tensor,
    total: int,
    block: torch.Tensor,
    positions: torch.Tensor,
    window: int,
) -> torch.Tensor:
    """bool [B,M,total]: committed rows below `length` [B], then `block` [B or 1,M,R].

    Row length[b] + r is new row r. `window` > 0 limits the committed rows to the last
    `window` before `positions` [B,M]; the block is windowed by its maker.
    """
    column = torch.arange(total, device=length.device)
    node = (column - length.unsqueeze(1)).unsqueeze(1)
    inside = node.clamp(0, block.shape[-1] - 1).expand(-1, block.shape[1], -1)
    new = torch.gather(block.expand(length.shape[0], -1, -1), 2, inside)
    prefix = node < 0
    if window > 0:
        prefix = prefix & (column > positions.unsqueeze(-1) - window)
    return torch.where(node < 0, prefix, new & (node < block.shape[-1]))


def causal_block(
    rows: int, columns: int, offset: int, window: int, device: torch.device
) -> torch.Tensor:
    """bool [1,rows,columns]: row m sees new rows [0, offset + m], windowed."""
    row = torch.arange(rows, device=device).unsqueeze(1) + offset
    column = torch.arange(columns, device=device)
    block = column <= row
    if window > 0:
        block = block & (column > row - window)
    return block.unsqueeze(0)


def tree_attention_cached(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    length: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    window: int,
    fused: bool = True,
) -> torch.Tensor:
    """Attention of q [B,M,Hq,D] over the committed rows and the cache's tail.

    Row m sees cache rows [0, length[b]) and tail rows length[b] + r with mask[b,m,r].
    """
    total = int(length.max()) + mask.shape[-1]
    visible = block_visible(length, total, mask, positions, window)
    return attend(q, k_cache[:, :total], v_cache[:, :total], visible, scale, fused)


def causal_attention_cached(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    length: torch.Tensor,
    positions: torch.Tensor,
    offset: int,
    scale: float,
    window: int,
    fused: bool = True,
) -> torch.Tensor:
    """As `tree_attention_cached` for a chain: row m sees tail rows [0, offset + m]."""
    rows = offset + q.shape[1]
    total = min(int(length.max()) + rows, k_cache.shape[1])
    keys, values = k_cache[:, :total], v_cache[:, :total]
    if window == 0 and q.shape[0] == 1 and q.shape[1] == 1:
        return attend(q, keys, values, None, scale, fused)
    if window == 0 and offset == 0 and fused and total == q.shape[1]:
        return attend_causal(q, keys, values, scale)
    block = causal_block(q.shape[1], rows, offset, window, q.device)
    visible = block_visible(length, total, block, positions, window)
    return attend(q, keys, values, visible, scale, fused)


def tree_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    length: torch.Tensor,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    window: int,
    fused: bool = True,
) -> torch.Tensor:
    """Attention of q [B,M,Hq,D] over committed rows and new rows k_new, v_new [B,R,Hkv,D].

    Row m sees cache rows [0, length[b]) and new rows r with mask[b,m,r].
    """
    context = int(length.max())
    column = torch.arange(context, device=length.device)
    prefix = column < length.view(-1, 1, 1)
    if window > 0:
        prefix = prefix & (column > positions.unsqueeze(-1) - window)
    prefix = prefix.expand(-1, q.shape[1], -1)
    visible = torch.cat((prefix, mask.expand(q.shape[0], -1, -1)), dim=-1)
    keys = torch.cat((k_cache[:, :context], k_new), dim=1)
    values = torch.cat((v_cache[:, :context], v_new), dim=1)
    return attend(q, keys, values, visible, scale, fused)


def causal_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    length: torch.Tensor,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    positions: torch.Tensor,
    offset: int,
    scale: float,
    window: int,
    fused: bool = True,
) -> torch.Tensor:
    """As `tree_attention` for a chain: row m sees new rows [0, offset + m]."""
    block = causal_block(q.shape[1], k_new.shape[1], offset, window, q.device)
    return tree_attention(
        q,
        k_cache,
        v_cache,
        length,
        k_new,
        v_new,
        block,
        positions,
        scale,
        window,
        fused,
    )
