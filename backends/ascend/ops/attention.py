"""Tree masks, and attention from matmuls where the device's own does not fit."""

from __future__ import annotations

import torch

from specc.backends.ascend.ops.rows import rows_in_order


def ancestor_mask(parent_row: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Ancestor-or-self closure bool [B,N,N] of parent rows int64 [B,N] (0: the context) and valid [B,N].

    Row i of the matrix I + P, with P the parents, squared until it holds whole paths: no index is looked up.
    """
    nodes = parent_row.shape[1]
    node = rows_in_order(nodes, parent_row.device)
    is_parent = (parent_row.unsqueeze(2) == node.unsqueeze(0) + 1) & valid.unsqueeze(2)
    above = (is_parent | (node == node.reshape(-1, 1))).to(torch.float32)
    for _ in range(max(nodes - 1, 1).bit_length()):
        above = torch.bmm(above, above).clamp(max=1.0)
    return above > 0.0


def attention_mask(
    length: torch.Tensor,
    mask: torch.Tensor | None,
    positions: torch.Tensor,
    capacity: int,
    window: int,
    apart: bool = False,
) -> torch.Tensor:
    """int8 [B,1,Q,C] (apart: [B,1,Q,C+R]), 1 = masked out: what query m sees of a cache of C = `capacity` rows.

    length int64 [B], positions int64 [B,Q]. Committed rows are seen (the last `window` before the position, if > 0);
    new row r, at column length[b] + r (apart: C + r), where mask[b,m,r] (bool [B,Q,R]), or, without a mask, along the
    chain: r <= m and r > m - window.
    """
    batch, rows = positions.shape
    device = positions.device
    column = rows_in_order(capacity, device)
    behind = column - length.unsqueeze(1)
    prefix = (behind < 0).unsqueeze(1)
    if window > 0:
        prefix = prefix & (column.unsqueeze(0) > positions.unsqueeze(2) - window)
    number = torch.arange(rows, device=device).unsqueeze(1)
    if apart:
        new = chain_mask(number, rows_in_order(rows, device), window).expand(batch, -1, -1) if mask is None else mask
        visible = torch.cat((prefix.expand(-1, rows, -1), new), dim=2)
    elif mask is None:
        visible = prefix | ((behind >= 0).unsqueeze(1) & chain_mask(number, behind.unsqueeze(1), window))
    else:
        last = mask.shape[2] - 1
        inside = ((behind >= 0) & (behind <= last)).unsqueeze(1)
        new = torch.gather(mask, 2, behind.clamp(0, last).unsqueeze(1).expand(-1, rows, -1))
        visible = prefix | (inside & new)
    return visible.logical_not().to(torch.int8).unsqueeze(1)


def chain_mask(row: torch.Tensor, column: torch.Tensor, window: int) -> torch.Tensor:
    """bool: column <= row, and within `window` of it, if > 0."""
    seen = column <= row
    return seen & (column > row - window) if window > 0 else seen


def masked_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    atten_mask: torch.Tensor,
    scale: float,
    k_more: torch.Tensor | None = None,
    v_more: torch.Tensor | None = None,
) -> torch.Tensor:
    """q [B,Q,Hq,D] over k, v [B,S,Hkv,D] and then k_more, v_more [B,R,Hkv,D] -> [B,Q,Hq,D].

    atten_mask int8 [B,1,Q,S+R], 1 = masked out; a row of which nothing is seen gives zeros. Softmax in float32
    (float64 of float64). Query heads that share a KV head are rows of one product: K and V are not repeated.
    """
    batch, rows, heads, dim = q.shape
    shared = k.shape[2]
    group = heads // shared
    wide = torch.promote_types(q.dtype, torch.float32)
    folded = q.reshape(batch, rows, shared, group, dim).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch * shared, group * rows, dim)
    scores = torch.bmm(folded.to(wide), columns(k).to(wide))
    if k_more is not None:
        scores = torch.cat((scores, torch.bmm(folded.to(wide), columns(k_more).to(wide))), dim=2)
    hidden = atten_mask.ne(0).unsqueeze(1).expand(-1, shared, group, -1, -1)
    hidden = hidden.reshape(batch * shared, group * rows, -1)
    anything = hidden.logical_not().any(dim=2, keepdim=True)
    scores = (scores * scale).masked_fill(hidden, torch.finfo(wide).min)
    weights = torch.where(anything, torch.softmax(scores, dim=-1), torch.zeros_like(scores)).to(q.dtype)
    out = torch.bmm(weights.narrow(2, 0, k.shape[1]), values(v))
    if v_more is not None:
        out = out + torch.bmm(weights.narrow(2, k.shape[1], v_more.shape[1]), values(v_more))
    out = out.reshape(batch, shared, group, rows, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, rows, heads, dim)


def columns(x: torch.Tensor) -> torch.Tensor:
    """[B,R,H,D] as matrices [B*H,D,R]."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[3], x.shape[1])


def values(x: torch.Tensor) -> torch.Tensor:
    """[B,R,H,D] as matrices [B*H,R,D]."""
    return x.permute(0, 2, 1, 3).reshape(-1, x.shape[1], x.shape[3])
