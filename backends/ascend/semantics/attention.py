"""Fused attention over a cache: npu_fused_infer_attention_score, npu_prompt_flash_attention.

Facts from torch_npu 2.13.0's documentation of the ops: a mask of 1 means masked out; its type is bool, int8 or uint8;
at Q = 1 inner_precise is 0 or 1; bit 1 of inner_precise makes rows without any key zero, without it their result is
not to be relied on; lengths are >= 0 and at most the axis; D is a multiple of 16. Public report vllm-ascend#15503:
with Q = 1 a bool mask is silently wrong beyond 512 keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

UNBOUNDED = 2147483647
MASK_TYPES = frozenset({torch.bool, torch.int8, torch.uint8})
OPERAND_TYPES = frozenset({torch.float16, torch.bfloat16})
MAX_HEADS, MAX_GROUP, MAX_HEAD_DIM, HEAD_DIM_STEP = 256, 64, 512, 16
BOOL_MASK_KEYS = 512
INPUT_LAYOUTS = {"BNSD": "BNSD", "BSND": "BSND", "BSH": "BSH", "BNSD_BSND": "BNSD"}


@dataclass(frozen=True, slots=True)
class AttentionSettings:
    """The numbers of a call. `row_invalid`: rows without a key give zeros (bit 1 of inner_precise)."""

    num_heads: int
    num_key_value_heads: int
    scale: float
    input_layout: str
    sparse_mode: int = 0
    inner_precise: int = 0
    pre_tokens: int = UNBOUNDED
    next_tokens: int = UNBOUNDED

    @property
    def row_invalid(self) -> bool:
        """Whether rows without any key are made zero."""
        return bool(self.inner_precise & 2)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    query_lengths: list[int] | None,
    key_lengths: list[int] | None,
    settings: AttentionSettings,
) -> torch.Tensor:
    """softmax(scale q k^T, masked) v. Scores and softmax in float32; the probabilities are operands of the cube unit
    and therefore rounded to the inputs' type; the second product is accumulated in float32 and rounded once.

    Layouts BNSD, BSND, BSH and BNSD_BSND (transposed output); rows of a query beyond its length are zero.
    """
    if settings.input_layout not in INPUT_LAYOUTS:
        raise NotImplementedError(f"attention with input_layout {settings.input_layout}")
    heads, kv_heads = settings.num_heads, settings.num_key_value_heads or settings.num_heads
    q, k, v = (
        _heads_first(tensor, count, settings.input_layout)
        for tensor, count in ((query, heads), (key, kv_heads), (value, kv_heads))
    )
    _check_operands(q, k, v, heads, kv_heads)
    batch, rows, keys = q.shape[0], q.shape[2], k.shape[2]
    _check_modes(settings, rows)
    hidden = _hidden(mask, batch, rows, keys, settings)
    beyond = torch.zeros(batch, 1, keys, 1, dtype=torch.bool)
    for sequence, length in enumerate(_per_sequence(key_lengths, batch, keys)):
        beyond[sequence, :, length:] = True
    hidden |= beyond.mT
    live = torch.ones(batch, rows, dtype=torch.bool)
    for sequence, length in enumerate(_per_sequence(query_lengths, batch, rows)):
        live[sequence, length:] = False
    empty = hidden.all(-1) & live[:, None]
    if bool(empty.any()) and not settings.row_invalid:
        raise ValueError("a row that sees no key needs inner_precise 2 or 3: undefined")
    k, v = (torch.where(beyond, 0.0, operand) for operand in (k, v))  # never read by the device
    result = _weighted(q, k, v, hidden, settings.scale)
    result = result.masked_fill(~live[:, None, :, None], 0.0)
    return _as_layout(result, settings.input_layout)


def _weighted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor, scale: float) -> torch.Tensor:
    """q [B,N,Q,D], k and v [B,Nkv,S,D], hidden bool [B,1,Q,S]: [B,N,Q,D] in q's type; rows without keys are zero."""
    group = q.shape[1] // k.shape[1]
    scores = (q.float() @ k.float().repeat_interleave(group, 1).mT) * scale
    scores = scores.masked_fill(hidden, float("-inf"))
    weights = torch.softmax(scores, -1).masked_fill(hidden.all(-1, keepdim=True), 0.0).to(q.dtype)
    return (weights.float() @ v.float().repeat_interleave(group, 1)).to(q.dtype)


def _heads_first(tensor: torch.Tensor, heads: int, layout: str) -> torch.Tensor:
    """[B, N, S, D] whatever the layout."""
    if layout == "BSH":
        if tensor.dim() != 3 or tensor.shape[2] % heads:
            raise ValueError(f"BSH attention with {heads} heads of {list(tensor.shape)}")
        tensor = tensor.unflatten(2, (heads, -1))
        return tensor.transpose(1, 2)
    if tensor.dim() != 4:
        raise ValueError(f"{layout} attention of {list(tensor.shape)}: four axes needed")
    return tensor.transpose(1, 2) if layout == "BSND" else tensor


def _as_layout(result: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "BNSD":
        return result
    swapped = result.transpose(1, 2).contiguous()
    return swapped.flatten(2) if layout == "BSH" else swapped


def _check_operands(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, kv_heads: int) -> None:
    if not q.dtype == k.dtype == v.dtype or q.dtype not in OPERAND_TYPES:
        raise ValueError(f"attention of {q.dtype}, {k.dtype}, {v.dtype}: float16 or bfloat16 needed")
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"attention of {list(q.shape)}, {list(k.shape)}, {list(v.shape)} [B, N, S, D]")
    if q.shape[1] != heads or k.shape[1] != kv_heads:
        raise ValueError(f"attention with {heads} and {kv_heads} heads of {q.shape[1]} and {k.shape[1]}")
    if heads % kv_heads or heads // kv_heads > MAX_GROUP or heads > MAX_HEADS:
        raise ValueError(f"attention with {heads} heads over {kv_heads}")
    if q.shape[3] % HEAD_DIM_STEP or q.shape[3] > MAX_HEAD_DIM:
        raise ValueError(f"attention with a head dimension of {q.shape[3]}: a multiple of 16, at most 512, needed")


def _check_modes(settings: AttentionSettings, rows: int) -> None:
    if settings.inner_precise not in (0, 1, 2, 3):
        raise ValueError(f"inner_precise {settings.inner_precise}")
    if rows == 1 and settings.inner_precise > 1:
        raise ValueError("inner_precise 2 and 3 are not for one query row")
    if rows > 1 and settings.sparse_mode not in (0, 1):
        raise NotImplementedError(f"attention with sparse_mode {settings.sparse_mode}")


def _hidden(mask: torch.Tensor | None, batch: int, rows: int, keys: int, settings: AttentionSettings) -> torch.Tensor:
    """bool [B,1,Q,S], True = masked out."""
    if mask is None:
        if settings.sparse_mode == 1 and rows > 1:
            raise ValueError("sparse_mode 1 needs a mask")
        return torch.zeros(batch, 1, rows, keys, dtype=torch.bool)
    if mask.dtype not in MASK_TYPES:
        raise ValueError(f"a mask of {mask.dtype}: bool, int8 or uint8 needed")
    if mask.dtype == torch.bool and rows == 1 and keys > BOOL_MASK_KEYS:
        raise ValueError("a bool mask for one query row and more than 512 keys is silently wrong (vllm-ascend#15503)")
    if mask.dtype != torch.bool and bool(((mask != 0) & (mask != 1)).any()):
        raise ValueError("a mask with other values than 0 and 1")
    shapes = {(1, rows, keys), (batch, 1, rows, keys), (1, 1, rows, keys)}
    shapes.add((batch, keys) if rows == 1 else (rows, keys))
    if tuple(mask.shape) not in shapes:
        raise ValueError(f"a mask of shape {list(mask.shape)} for {batch} sequences, {rows} rows, {keys} keys")
    hidden = mask.bool().reshape(-1, 1, rows, keys).expand(batch, 1, rows, keys).clone()
    if settings.sparse_mode == 0 and rows > 1:
        distance = torch.arange(keys)[None, :] - torch.arange(rows)[:, None]
        hidden |= (distance > settings.next_tokens) | (-distance > settings.pre_tokens)
    return hidden


def _per_sequence(lengths: list[int] | None, batch: int, limit: int) -> list[int]:
    """One length for each sequence. One number is for all of them; more than the batch is allowed."""
    if lengths is None:
        return [limit] * batch
    if len(lengths) != 1 and len(lengths) < batch:
        raise ValueError(f"{len(lengths)} lengths for {batch} sequences")
    full = lengths * batch if len(lengths) == 1 else lengths[:batch]
    for length in full:
        if not 0 <= length <= limit:
            raise IndexError(f"a length of {length} for an axis of {limit}: undefined")
    return full
