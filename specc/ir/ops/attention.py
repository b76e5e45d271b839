"""Rotary embeddings and attention of new tokens over a committed prefix plus other new tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specc.ir.op import IndexOperand, op


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def rope_frequencies(
    dim: int, theta: float, scaling: list[float], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Inverse frequencies [dim/2]. `scaling` is [] or llama3's [factor, low, high, original length]."""
    exponent = torch.arange(0, dim, 2, dtype=dtype, device=device) / dim
    frequency = 1.0 / (theta**exponent)
    if not scaling:
        return frequency
    factor, low, high, original = scaling
    wavelength = 2 * torch.pi / frequency
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * frequency / factor + smooth * frequency
    scaled = torch.where(wavelength > original / low, frequency / factor, blended)
    return torch.where(wavelength < original / high, frequency, scaled)


def _rope_tables_fake(
    positions: torch.Tensor, dim: int, theta: float, scaling: list[float], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (*positions.shape, dim // 2)
    return positions.new_empty(shape, dtype=dtype), positions.new_empty(shape, dtype=dtype)


@op(
    "rope_tables(Tensor positions, int dim, float theta, float[] scaling, ScalarType dtype) -> (Tensor, Tensor)",
    fake=_rope_tables_fake,
    rows=("positions",),
)
def rope_tables(
    positions: torch.Tensor, dim: int, theta: float, scaling: list[float], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin [B,M,dim/2] of the rotary angles at `positions` int64 [B,M] (RoFormer; llama3 scaling optional).

    Angles are computed in float32 (float64 for a float64 model) and rounded to `dtype` once.
    """
    compute = _compute_dtype(dtype)
    frequency = rope_frequencies(dim, theta, scaling, compute, positions.device)
    angle = positions.to(compute).unsqueeze(-1) * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


@op(
    "rope(Tensor x, Tensor cos, Tensor sin) -> Tensor",
    fake=lambda x, cos, sin: torch.empty_like(x, memory_format=torch.contiguous_format),
    rows=("x", "cos", "sin"),
)
def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [B,M,H,D] in halves (Hugging Face layout) by cos, sin [B,M,D/2]."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attend_eager(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float
) -> torch.Tensor:
    """As `attend`, spelled out: scores, mask as -inf, softmax, weighted sum (the paper's eager reference mode)."""
    group = q.shape[2] // k.shape[2]
    key, value = (x.repeat_interleave(group, dim=2).transpose(1, 2) for x in (k, v))
    scores = torch.matmul(q.transpose(1, 2), key.transpose(2, 3)) * scale
    scores = scores.masked_fill(~visible.unsqueeze(1), float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=_compute_dtype(q.dtype)).to(q.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous()


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float, fused: bool
) -> torch.Tensor:
    """q [B,M,Hq,D] over k, v [B,R,Hkv,D] where visible bool [B,M,R]; every row sees at least one."""
    if not fused:
        return attend_eager(q, k, v, visible, scale)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=visible.unsqueeze(1),
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2).contiguous()


def prefix_visible(length: torch.Tensor, capacity: int, positions: torch.Tensor, window: int) -> torch.Tensor:
    """bool [B,M,C]: committed rows below `length` [B], and within `window` (0: all) of `positions` [B,M]."""
    column = torch.arange(capacity, device=length.device)
    visible = (column < length.unsqueeze(1)).unsqueeze(1).expand(-1, positions.shape[1], -1)
    if window > 0:
        visible = visible & (column > positions.unsqueeze(-1) - window)
    return visible


def _attention_fake(q: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


@op(
    "tree_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor length, Tensor k_new, Tensor v_new, "
    "Tensor mask, Tensor positions, float scale, int window, bool fused=True) -> Tensor",
    fake=_attention_fake,
    rows=("q", "mask", "positions"),
    # At buffer level a cache may have been written before: plan-buffers proves that the new rows are wanted.
    meta={"reads_written": True},
)
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
    """Attention of q [B,M,Hq,D] over the committed prefix and the rows `k_new`, `v_new` [B,R,Hkv,D].

    Row m sees cache rows [0, length[b]) (only the last `window` before positions[b,m], if window > 0) and the
    new rows r with mask[b,m,r] (bool). EAGLE-Pangu, section on tree-masked teacher execution.
    """
    prefix = prefix_visible(length, k_cache.shape[1], positions, window)
    visible = torch.cat((prefix, mask), dim=-1)
    return attend(q, torch.cat((k_cache, k_new), dim=1), torch.cat((v_cache, v_new), dim=1), visible, scale, fused)


@op(
    "causal_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor length, Tensor k_new, Tensor v_new, "
    "Tensor positions, int offset, float scale, int window, bool fused=True) -> Tensor",
    fake=_attention_fake,
    rows=("q", "positions"),
    meta={"reads_written": True},
)
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
    """As `tree_attention`, for chains: row m of q sees new rows [0, offset + m]; no mask tensor exists."""
    prefix = prefix_visible(length, k_cache.shape[1], positions, window)
    row = torch.arange(q.shape[1], device=q.device).unsqueeze(1) + offset
    column = torch.arange(k_new.shape[1], device=q.device)
    block = (column <= row).unsqueeze(0)
    if window > 0:
        block = block & (column > row - window)
    visible = torch.cat((prefix, block.expand(q.shape[0], -1, -1)), dim=-1)
    return attend(q, torch.cat((k_cache, k_new), dim=1), torch.cat((v_cache, v_new), dim=1), visible, scale, fused)


def _ancestor_mask_fake(parent_row: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    batch, nodes = parent_row.shape
    return parent_row.new_empty((batch, nodes, nodes), dtype=torch.bool)


@op(
    "ancestor_mask(Tensor parent_row, Tensor valid) -> Tensor",
    fake=_ancestor_mask_fake,
    indices=(IndexOperand("parent_row", "parent_row", 1, slack=1),),
)
def ancestor_mask(parent_row: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Ancestor-or-self closure bool [B,N,N] of a tree given by parent rows int64 [B,N] and valid [B,N].

    Row 0 is the dummy root (the committed context), node i is row i + 1, so every index is in [0, N]. Padding
    nodes see themselves only. log2 doublings: A <- A | A[parent of parent of …] (design 02, pass 2; I3).
    """
    batch, nodes = parent_row.shape
    jump = torch.where(valid, parent_row, torch.zeros_like(parent_row))
    jump = torch.cat((torch.zeros_like(jump[:, :1]), jump), dim=1)
    eye = torch.eye(nodes + 1, dtype=torch.bool, device=parent_row.device)
    closure = eye.unsqueeze(0).expand(batch, -1, -1)
    for _ in range(max(nodes - 1, 1).bit_length()):
        above = torch.gather(closure, 1, jump.unsqueeze(-1).expand(-1, -1, nodes + 1))
        closure = closure | above
        jump = torch.gather(jump, 1, jump)
    return closure[:, 1:, 1:].contiguous()
