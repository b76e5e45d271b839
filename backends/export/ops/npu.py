"""The ops of the NPU level from plain PyTorch: what they document, for programs that run elsewhere.

Unlike their references these do not raise: an exported graph can't. Where the device leaves a result undefined (a row
outside the cache), nothing is written.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def npu_rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + epsilon) * gamma over the last dim, in float32 at least, rounded once."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + epsilon)
    return (wide * scale * gamma.to(wide.dtype)).to(x.dtype)


def npu_rotary_mul(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x * cos + rotate_half(x) * sin for x [B,T,H,D], cos and sin [B,T,1,D]."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x.narrow(-1, half, half), x.narrow(-1, 0, half)), dim=-1)
    return x * cos + turned * sin


def npu_swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of the halves of the last dim."""
    half = gate_up.shape[-1] // 2
    return F.silu(gate_up.narrow(-1, 0, half)) * gate_up.narrow(-1, half, half)


def npu_scatter_update(cache: torch.Tensor, start: torch.Tensor, rows: torch.Tensor, axis: int) -> torch.Tensor:
    """cache [B,C,…] with rows [B,M,…] at start[b] … start[b] + M - 1 along axis 1.

    A select over the cache: each cell keeps its value or takes a row's, so that no row number leaves its range.
    """
    offset = torch.arange(cache.shape[1], device=cache.device) - start.unsqueeze(1)
    last = rows.shape[1] - 1
    trailing = [1] * (cache.dim() - 2)
    at = offset.clamp(0, last).reshape(*offset.shape, *trailing).expand(-1, -1, *rows.shape[2:])
    inside = ((offset >= 0) & (offset <= last)).reshape(*offset.shape, *trailing)
    return torch.where(inside, torch.gather(rows, 1, at), cache)


def npu_fused_infer_attention_score(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    atten_mask: torch.Tensor | None,
    actual_seq_lengths_kv: torch.Tensor | None,
    num_heads: int,
    num_key_value_heads: int,
    scale: float,
    input_layout: str,
    sparse_mode: int,
    inner_precise: int,
) -> torch.Tensor:
    """q [B,Q,Hq,D] over k, v [B,S,Hkv,D]: scores and softmax in float32; a query that sees nothing gives zeros.

    atten_mask int8 [B,1,Q,S], 1 = masked out; keys from actual_seq_lengths_kv[b] on are not seen either. The layout is
    BSND; the modes say how the device computes, which changes nothing here.
    """
    batch, rows, heads, dim = q.shape
    shared, group = num_key_value_heads, num_heads // num_key_value_heads
    folded = q.reshape(batch, rows, shared, group, dim).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, shared, group * rows, dim).to(torch.float32)
    scores = torch.matmul(folded, k.permute(0, 2, 3, 1).to(torch.float32)) * scale
    hidden = torch.zeros((batch, 1, rows, k.shape[1]), dtype=torch.bool, device=q.device)
    if atten_mask is not None:
        hidden = atten_mask.ne(0)
    if actual_seq_lengths_kv is not None:
        column = torch.arange(k.shape[1], device=q.device)
        hidden = hidden | (column >= actual_seq_lengths_kv.reshape(-1, 1, 1, 1))
    hidden = hidden.repeat(1, 1, group, 1)
    weights = torch.softmax(scores.masked_fill(hidden, torch.finfo(torch.float32).min), dim=-1)
    weights = weights.masked_fill(hidden, 0.0).to(q.dtype)
    out = torch.matmul(weights, v.transpose(1, 2))
    out = out.reshape(batch, shared, group, rows, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, rows, heads, dim)
