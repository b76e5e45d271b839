"""Contracts of fused attention beside its mask (SPC520 to SPC529)."""

from __future__ import annotations

import torch
from torch.fx import Node

from specc.backends.ascend.contracts.calls import NpuCall, fake_tensor
from specc.backends.ascend.contracts.context import Context, sizes, static
from specc.backends.ascend.contracts.geometry import Attention, attention_of
from specc.backends.ascend.contracts.masks import FULL_MASK_MODES
from specc.backends.ascend.contracts.polarity import read_mask
from specc.ir.ranges import interval as iv
from specc.ir.ranges.bounds import of_size

MAX_ROWS = 16
MAX_HEAD_DIM, HEAD_DIM_STEP = 512, 16
MAX_HEADS, MAX_GROUP = 256, 64
MAX_PAGE, PAGE_STEP, PAGE_STEP_ONE_ROW = 512, 128, 16
TYPES = (torch.float16, torch.bfloat16)
COMPRESSED_MODES, COMPRESSED_SIDE, TREE_MODE = (2, 3, 4), 2048, 9
ROW_SAFE = (2, 3)


def check_attention(call: NpuCall, ctx: Context) -> None:
    """Entry of this family."""
    attention = attention_of(call)
    if isinstance(attention, str):
        help = "use BSND or BNSD for dense decoding with trees, TND for packed rows with a mask"
        ctx.refuse("SPC520", call.node, attention, help)
        return
    if attention is None:
        return
    for check in (_types, _heads, _rows, _modes, _packed, _rows_without_keys, _band, _pages):
        check(attention, ctx)


def _types(attention: Attention, ctx: Context) -> None:
    query, quantised = attention.query.dtype, torch.int8 in (attention.key.dtype, attention.value.dtype)
    help = "cast to float16 or bfloat16, or compute this attention with matmuls (`verify: {attention: eager}`)"
    if query not in TYPES:
        ctx.refuse("SPC521", attention.node, f"the query is {query}; the op has float16 and bfloat16 only", help)
    elif not quantised and {attention.key.dtype, attention.value.dtype} != {query}:
        held = f"{attention.key.dtype} keys and {attention.value.dtype} values"
        ctx.refuse("SPC521", attention.node, f"a {query} query over {held}", "give all three the same dtype")


def _heads(attention: Attention, ctx: Context) -> None:
    width, heads, kv_heads = static(attention.head_dim), attention.heads, attention.kv_heads
    in_query = attention.query.shape[attention.layout.index("N")] if "N" in attention.layout else heads
    faults = []
    if width is not None and (width % HEAD_DIM_STEP or not 0 < width <= MAX_HEAD_DIM):
        faults.append(f"head_dim {width} is not a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}")
    if heads > MAX_HEADS:
        faults.append(f"{heads} query heads are more than {MAX_HEADS}")
    if heads % kv_heads:
        faults.append(f"{heads} query heads are no multiple of {kv_heads} key heads")
    elif heads // kv_heads > MAX_GROUP:
        faults.append(f"{heads // kv_heads} query heads share a key head, more than {MAX_GROUP}")
    if in_query != heads:
        faults.append(f"the query has {in_query} heads, num_heads says {heads}")
    if faults:
        help = "pad head_dim with zeros, repeat the key heads, or compute this attention with matmuls"
        ctx.refuse("SPC522", attention.node, "; ".join(faults), help)


def _rows(attention: Attention, ctx: Context) -> None:
    rows = None if attention.rows is None else static(attention.rows)
    if ctx.stage == "decode" and rows is not None and rows > MAX_ROWS:
        ctx.refuse(
            "SPC523",
            attention.node,
            f"{rows} query rows; a decode round takes at most {MAX_ROWS}, the root included",
            f"draft at most {MAX_ROWS - 1} tokens (`draft: {{num_speculative_tokens: {MAX_ROWS - 1}}}`)",
        )


def _modes(attention: Attention, ctx: Context) -> None:
    mode, mask = attention.sparse_mode, fake_tensor(attention.mask)
    node = attention.node
    if mode in FULL_MASK_MODES:
        if mode == 1 and attention.mask is None:
            ctx.refuse(
                "SPC524", node, "sparse_mode 1 has no mask, which it must", "pass a full mask, or use sparse_mode 0"
            )
        return
    if mode == TREE_MODE:
        latent = attention.call.get("query_rope") is not None or torch.int8 in (attention.key.dtype,)
        if not attention.call.name.endswith("_v2") or not latent:
            message = (
                "sparse_mode 9 (a tree's mask) is for npu_fused_infer_attention_score_v2 with MLA or int8 keys only"
            )
            ctx.refuse("SPC524", node, message, "use sparse_mode 0 with a full mask (B, 1, Q, KV)")
    elif mode in COMPRESSED_MODES:
        side = tuple(static(size) for size in mask.shape) if mask is not None else ()
        if mask is None or side[-2:] != (COMPRESSED_SIDE, COMPRESSED_SIDE) or any(size != 1 for size in side[:-2]):
            has = "no mask" if mask is None else f"a mask {sizes(mask)}"
            message = f"sparse_mode {mode} reads the fixed {COMPRESSED_SIDE} x {COMPRESSED_SIDE} mask, and has {has}"
            ctx.refuse("SPC524", node, message, "a tree's mask is a full one: sparse_mode 0")
    else:
        ctx.refuse(
            "SPC524", node, f"sparse_mode {mode} is not one of 0 to 4 and 9", "use sparse_mode 0 with a full mask"
        )


def _packed(attention: Attention, ctx: Context) -> None:
    if attention.layout in ("TND", "NTD") and attention.mask is None:
        ctx.refuse(
            "SPC525",
            attention.node,
            f"layout {attention.layout} without a mask: a row averages over all rows of its sequence, later too",
            "pass the causal mask with sparse_mode 3, or use BSND with a full mask",
        )


def _rows_without_keys(attention: Attention, ctx: Context) -> None:
    """A row whose keys are all masked out is garbage unless the mode says that such rows exist."""
    held = attention.inner_precise
    if held is None:
        return
    if held not in (0, 1, *ROW_SAFE):
        ctx.refuse("SPC526", attention.node, f"inner_precise {held} is not one of 0 to 3", "use 2")
        return
    mask = attention.mask
    if held in ROW_SAFE and attention.rows == 1:
        help = "use 0 or 1, and let the row see a key (its own)"
        ctx.refuse("SPC526", attention.node, f"inner_precise {held} with one query row, which has 0 and 1 only", help)
    if held in ROW_SAFE or not isinstance(mask, Node) or attention.sparse_mode not in FULL_MASK_MODES:
        return
    if ctx.refused(attention.node, "SPC510", "SPC512", "SPC513"):
        return  # of that mask nothing is known
    reading = read_mask(mask, ctx)
    if not (reading.seen or reading.known == "constant"):
        ctx.refuse(
            "SPC526",
            attention.node,
            f"a row of the mask `{mask.name}` may hide every key, which inner_precise {held} does not allow for",
            "use inner_precise 2 (or 3), or let every row see a key: its own, or the first",
        )


def _band(attention: Attention, ctx: Context) -> None:
    """pre_tokens and next_tokens cut a band out of the scores in mode 0, counted from the top left corner."""
    call = attention.call
    if not call.has("next_tokens") or attention.sparse_mode != 0:
        return
    keys = None if attention.keys is None else static(attention.keys)
    rows = None if attention.rows is None else static(attention.rows)
    ahead, back = int(call.get("next_tokens")), int(call.get("pre_tokens"))
    square = keys is not None and keys == rows and attention.mask is None
    if square or (ahead >= (keys or MAX_INT) and back >= (rows or MAX_INT)):
        return
    told = "" if call.given("next_tokens") else ", its default"
    ctx.refuse(
        "SPC527",
        attention.node,
        f"next_tokens is {ahead}{told} and pre_tokens {back}: row i sees keys i - {back} to i + {ahead}, whatever "
        "the mask says",
        f"pass next_tokens={MAX_INT} and pre_tokens={MAX_INT} with a full mask",
    )


MAX_INT = 2**31 - 1


def _pages(attention: Attention, ctx: Context) -> None:
    page, table = attention.page, attention.call.get("block_table")
    if page is None:
        return
    step = PAGE_STEP_ONE_ROW if attention.rows == 1 else PAGE_STEP
    if page % step or not step <= page <= MAX_PAGE:
        ctx.refuse(
            "SPC528",
            attention.node,
            f"pages of {page} rows; they must be a multiple of {step}, at most {MAX_PAGE}"
            + ("" if step == PAGE_STEP_ONE_ROW else ", where there is more than one query row"),
            "use `runtime: {kv_block_size: 128}`",
        )
    elif page not in attention.key.shape[1:-1]:
        message = f"block_size says {page}, the pages of the key are {sizes(attention.key)}"
        ctx.refuse("SPC528", attention.node, message, "give block_size the rows of a page")
    held = ctx.ranges.of(table)
    legal = iv.up_to(of_size(attention.pages or 0))
    if not held.within(legal):
        ctx.refuse(
            "SPC529",
            attention.node,
            f"a page number may be {held}, and the cache has pages {legal}; the op does not check them",
            "declare the range of the table, and give unused entries a page that exists (0), not -1",
        )
