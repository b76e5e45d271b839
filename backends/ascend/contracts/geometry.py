"""Sizes of an attention call by its layout: batch, query rows, heads, head dim, keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from specc.backends.ascend.contracts.calls import NpuCall, fake_tensor

FUSED = ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2")
ATTENTION = (*FUSED, "npu_prompt_flash_attention", "npu_incre_flash_attention")
LAYOUTS = ("BSH", "BSND", "BNSD", "TND", "NTD")
"""What a layout may be or start with (`BNSD_BSND`: read as the first, written as the second)."""


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention call with its operands under one name each; sizes are None where the layout has none of them."""

    call: NpuCall
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: Any
    layout: str
    heads: int
    kv_heads: int
    batch: int | None
    rows: int | None
    head_dim: int
    keys: int | None
    page: int | None
    pages: int | None

    @property
    def node(self) -> Node:
        """The node of the call."""
        return self.call.node

    @property
    def sparse_mode(self) -> int:
        """0 where the op has no modes (incremental attention: a full mask)."""
        return int(self.call.get("sparse_mode", default=0))

    @property
    def inner_precise(self) -> int | None:
        """None where the op does not have it."""
        held = self.call.get("inner_precise")
        return None if held is None else int(held)

    @property
    def is_paged(self) -> bool:
        """Whether keys and values lie in pages."""
        return self.page is not None


def attention_of(call: NpuCall) -> Attention | str | None:
    """The call read by its layout; a text says why it can't be; None where it is no attention with recorded types."""
    if call.name not in ATTENTION:
        return None
    tensors = [fake_tensor(call.get(*names)) for names in (("query", "q"), ("key", "k"), ("value", "v"))]
    if any(tensor is None for tensor in tensors):
        return None
    query, key, value = (tensor for tensor in tensors if tensor is not None)
    written = str(call.get("input_layout", default="BSH"))
    layout = written.split("_")[0]
    heads = int(call.get("num_heads", "num_query_heads", default=1))
    kv_heads = int(call.get("num_key_value_heads", default=0)) or heads
    if layout not in LAYOUTS:
        return f"`{written}` is no layout of the op"
    if query.dim() != len(layout):
        return f"layout {written} needs a query of {len(layout)} dims, this one has {query.dim()}"
    table = call.get("block_table")
    if table is None and key.dim() != query.dim():
        return f"layout {written} needs a key of {len(layout)} dims, this one has {key.dim()}"
    at = {letter: position for position, letter in enumerate(layout)}
    head_dim = query.shape[at["D"]] if "D" in at else query.shape[at["H"]] // max(heads, 1)
    page = int(call.get("block_size", default=0)) if table is not None else None
    width = fake_tensor(table)
    keys: int | None = None
    if page is not None:
        keys = page * width.shape[-1] if width is not None and width.dim() == 2 else None
    elif "S" in at:
        keys = key.shape[at["S"]]
    return Attention(
        call,
        query,
        key,
        value,
        call.get("atten_mask"),
        layout,
        heads,
        kv_heads,
        query.shape[at["B"]] if "B" in at else None,
        query.shape[at["S"]] if "S" in at else None,
        head_dim,
        keys,
        page,
        key.shape[0] if page is not None else None,
    )
