"""Attention on an NPU: one mask for all layers of a step, made outside them, and attention over the whole cache.

The new rows of the step lie in the cache behind the committed ones, at length[b] + r. Masks are int8 with 1 = masked
out: bool masks were seen to be misread (vllm-ascend issue 15503).
"""

from __future__ import annotations

import torch

from specc.ir.op import op
from specc.ir.ops.attention import prefix_visible
from specc.ir.ops.npu import VALUE

HEAD_DIM_MULTIPLE, MAX_HEAD_DIM = 16, 512


def _new_rows(mask: torch.Tensor | None, positions: torch.Tensor) -> int:
    return int(positions.shape[1] if mask is None else mask.shape[-1])


def _mask_fake(
    length: torch.Tensor,
    mask: torch.Tensor | None,
    positions: torch.Tensor,
    capacity: int,
    window: int,
    apart: bool = False,
) -> torch.Tensor:
    batch, rows = positions.shape
    columns = capacity + (_new_rows(mask, positions) if apart else 0)
    return positions.new_empty((batch, 1, rows, columns), dtype=torch.int8)


@op(
    "attention_mask(Tensor length, Tensor? mask, Tensor positions, int capacity, int window, bool apart=False) "
    "-> Tensor",
    fake=_mask_fake,
    levels=VALUE,
)
def attention_mask(
    length: torch.Tensor,
    mask: torch.Tensor | None,
    positions: torch.Tensor,
    capacity: int,
    window: int,
    apart: bool = False,
) -> torch.Tensor:
    """int8 [B,1,Q,C] (apart: [B,1,Q,C+R]), 1 = masked out: what query m sees of a cache of C = `capacity` rows.

    length int64 [B], positions int64 [B,Q]. Column c is seen where c < length[b] (and c > positions[b,m] - window, if
    window > 0). New row r stands at column length[b] + r (apart: at C + r, rows that are kept beside the cache) and is
    seen where mask[b,m,r] (bool [B,Q,R]), or without a mask where r <= m (and r > m - window): R = Q, a chain. Raises
    IndexError where a new row would stand outside the cache: nobody would see it.
    """
    batch, rows = positions.shape
    visible = prefix_visible(length, capacity, positions, window)
    if mask is None:
        row = torch.arange(rows, device=length.device).unsqueeze(1)
        column = torch.arange(rows, device=length.device)
        block = column <= row
        block = block & (column > row - window) if window > 0 else block
        mask = block.unsqueeze(0).expand(batch, -1, -1)
    if apart:
        visible = torch.cat((visible, mask), dim=-1)
    else:
        if bool((length + mask.shape[-1] > capacity).any()):
            raise IndexError(f"new rows lie outside a cache of {capacity} rows")
        column = length.unsqueeze(1) + torch.arange(mask.shape[-1], device=length.device)
        visible = visible.contiguous().scatter(2, column.unsqueeze(1).expand(-1, rows, -1), mask)
    return visible.logical_not().to(torch.int8).unsqueeze(1)


def check_mask(q: torch.Tensor, mask: torch.Tensor, columns: int) -> None:
    """Raises ValueError where a mask is not int8 [B,1,Q,S] of zeros and ones."""
    wanted = (q.shape[0], 1, q.shape[1], columns)
    if mask.dtype != torch.int8 or tuple(mask.shape) != wanted:
        raise ValueError(f"the mask is {mask.dtype}{tuple(mask.shape)}, not int8{wanted}")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("a mask holds something other than 0 and 1")


def _weights(scores: torch.Tensor, masked: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """softmax over the last dim of what is not masked; rows of which nothing is seen are zeros."""
    nothing = masked.all(dim=-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(masked & ~nothing, float("-inf")), dim=-1)
    return weights.masked_fill(nothing, 0.0).to(dtype)


def _attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masked: torch.Tensor, scale: float, compute: torch.dtype
) -> torch.Tensor:
    """q [B,Q,Hq,D] over k, v [B,S,Hkv,D] where not masked bool [B,1,Q,S]; scores and softmax in `compute`."""
    group = q.shape[2] // k.shape[2]
    key, value = (x.repeat_interleave(group, dim=2).transpose(1, 2) for x in (k, v))
    scores = torch.matmul(q.transpose(1, 2).to(compute), key.transpose(2, 3).to(compute)) * scale
    return torch.matmul(_weights(scores, masked, q.dtype), value).transpose(1, 2).contiguous()


def _attention_fake(q: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


@op(
    "masked_attention(Tensor q, Tensor k, Tensor v, Tensor atten_mask, float scale, Tensor? k_more=None, "
    "Tensor? v_more=None) -> Tensor",
    fake=_attention_fake,
    levels=VALUE,
)
def masked_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    atten_mask: torch.Tensor,
    scale: float,
    k_more: torch.Tensor | None = None,
    v_more: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention from matmuls: q [B,Q,Hq,D] over k, v [B,S,Hkv,D] and then k_more, v_more [B,R,Hkv,D], if given.

    atten_mask int8 [B,1,Q,S+R], 1 = masked out (`attention_mask`, apart where there is more). Softmax in float32
    (float64 of float64). The weighted sum runs over both parts without copying the cache. Raises ValueError for a mask
    of another dtype or shape.
    """
    if k_more is not None and v_more is not None:
        k, v = torch.cat((k, k_more), dim=1), torch.cat((v, v_more), dim=1)
    check_mask(q, atten_mask, k.shape[1])
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _attended(q, k, v, atten_mask.bool(), scale, compute)


@op(
    "npu_fused_infer_attention_score(Tensor q, Tensor k, Tensor v, Tensor? atten_mask, "
    "Tensor? actual_seq_lengths_kv, int num_heads, int num_key_value_heads, float scale, str input_layout, "
    "int sparse_mode, int inner_precise) -> Tensor",
    fake=_attention_fake,
    levels=VALUE,
)
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
    """Fused attention: q [B,Q,Hq,D] over k, v [B,S,Hkv,D], float16 or bfloat16, layout BSND.

    atten_mask int8 [B,1,Q,S], 1 = masked out; sparse_mode 1 (the full mask counts as it is) or 0 with or without a
    mask. Rows from actual_seq_lengths_kv[b] (int64 [B], 1 to S) on are not read. inner_precise 2 and 3 give zeros for a
    query that sees nothing; with 0 and 1 that is undefined and raises. Raises ValueError for what the operator does
    not take, IndexError for a length outside [1, S].
    """
    _check_fused(q, k, v, num_heads, num_key_value_heads, input_layout)
    columns = k.shape[1]
    masked = torch.zeros((q.shape[0], 1, q.shape[1], columns), dtype=torch.bool, device=q.device)
    if atten_mask is not None:
        check_mask(q, atten_mask, columns)
        masked = atten_mask.bool()
    if sparse_mode not in (0, 1) or (sparse_mode == 1 and atten_mask is None):
        raise ValueError(f"sparse_mode {sparse_mode} {'with' if atten_mask is not None else 'without'} a mask")
    if actual_seq_lengths_kv is not None:
        if bool((actual_seq_lengths_kv < 1).any()) or bool((actual_seq_lengths_kv > columns).any()):
            raise IndexError(f"a key length is outside [1, {columns}]")
        unread = torch.arange(columns, device=q.device) >= actual_seq_lengths_kv.unsqueeze(1)
        masked = masked | unread[:, None, None, :]
        k, v = (x.masked_fill(unread[:, :, None, None], 0) for x in (k, v))
    if inner_precise < 2 and bool(masked.all(dim=-1).any()):
        raise ValueError("a query sees nothing, which needs inner_precise 2 or 3")
    return _attended(q, k, v, masked, scale, torch.float32)


def _check_fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, kv_heads: int, layout: str) -> None:
    if layout != "BSND":
        raise ValueError(f"layout {layout} is not BSND")
    if q.dtype not in (torch.float16, torch.bfloat16) or {k.dtype, v.dtype} != {q.dtype}:
        raise ValueError(f"q {q.dtype}, k {k.dtype}, v {v.dtype}: all float16 or all bfloat16")
    if (q.shape[2], k.shape[2]) != (heads, kv_heads) or heads % kv_heads or k.shape != v.shape:
        raise ValueError(f"{heads} heads over {kv_heads} do not fit q {tuple(q.shape)}, k {tuple(k.shape)}")
    dim = q.shape[3]
    if dim % HEAD_DIM_MULTIPLE or dim > MAX_HEAD_DIM or dim != k.shape[3]:
        raise ValueError(f"head dim {dim}: a multiple of {HEAD_DIM_MULTIPLE}, at most {MAX_HEAD_DIM}")
