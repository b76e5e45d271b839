"""`rope_attention_`: rotary embeddings, new rows of the caches and attention, in one launch where that is faster."""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.attention_apart import attention_apart
from specc.backends.triton.kernels.attention_inputs import rotate_and_append
from specc.backends.triton.kernels.attention_step import attention_step
from specc.backends.triton.launch.core import interpreted, power_of_two
from specc.backends.triton.ops.attention import (
    LOG2E,
    Joining,
    alike,
    attend,
    box_of,
    boxes,
    cache_strides,
    capacity_of,
    joining,
    page_rows,
    parts_of,
    rows_contiguous,
    stages_of,
    tiles_of,
)
from specc.backends.triton.ops.attention_configs import AttentionConfig, step_config
from specc.backends.triton.ops.linear import LinearConfig, flat_rows, fused_linear, launch_linear, linear_config
from specc.backends.triton.ops.linear_once import Left

Tensor = torch.Tensor
JOINED_ROWS = 1
"""Tokens of all sequences up to which a product joins the parts of attention in front of it: each program does it."""
NEW_COLUMNS = 16
"""New columns that a program of `attention_apart` goes through at a time."""
AT_ONCE = 8
"""Parts that it reads at a time."""


def config_of(q: Tensor, k_cache: Tensor, table: Tensor | None = None) -> AttentionConfig:
    """The configuration for q [B,M,Hq,D] over caches [B,C,Hkv,D], or pools that a `table` points into."""
    (batch, tokens, heads, dim), shared, capacity = q.shape, k_cache.shape[2], capacity_of(k_cache, table)
    padded = power_of_two(dim, 16)
    packed, groups, page = tokens * heads // shared, batch * shared, page_rows(k_cache, table)
    return step_config(padded, packed, groups, q.element_size() == 4, capacity, page)


def kept_in_place(cache: Tensor) -> Tensor:
    """A cache that a kernel writes. Raises ValueError where a row's elements do not lie in order."""
    if cache.stride(-1) != 1 and cache.shape[-1] > 1:
        raise ValueError("the rows of a cache that is updated in place have to be contiguous")
    return cache


def rope_attention_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    count: Tensor | None,
    mask: Tensor | None,
    scale: float,
    fused: bool = True,
    config: AttentionConfig | None = None,
    table: Tensor | None = None,
) -> Tensor:
    """Attention of q [B,M,Hq,D], rotated by cos, sin [B,M,D/2], over cache rows [0, length[b]) and new rows k, v
    [B,M,Hkv,D], whose first count[b] (None: all), rotated too, become rows length[b] + j of the caches [B,C,Hkv,D].

    `mask` bool [B,M,M]: which new rows a token sees; None: those up to its own. `table`: see `attend`.
    """
    shared = k_cache.shape[2]
    config = config or config_of(q, k_cache, table)
    if not config.step:
        k_cache, v_cache = kept_in_place(k_cache), kept_in_place(v_cache)
        q, (k, v), cos, sin = rows_contiguous(q), alike(k, v), cos.contiguous(), sin.contiguous()
        rotated = rotate_first(q, k, v, cos, sin, k_cache, v_cache, length, count, table)
        return attend(rotated, k_cache, v_cache, length, q.shape[1], scale, 0, mask=mask, config=config, table=table)
    out, join = launch_step(q, k, v, cos, sin, k_cache, v_cache, length, count, mask, scale, config, table)
    join.finish(out, length, q.shape[1], shared, config)
    return out


def launch_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    count: Tensor | None,
    mask: Tensor | None,
    scale: float,
    config: AttentionConfig,
    table: Tensor | None,
) -> tuple[Tensor, Joining]:
    """The one launch of `rope_attention_`: (out, its parts); what several parts have seen is not in `out` yet."""
    k_cache, v_cache = kept_in_place(k_cache), kept_in_place(v_cache)
    q, (k, v), cos, sin = rows_contiguous(q), alike(k, v), cos.contiguous(), sin.contiguous()
    if config.apart:
        return launch_apart(q, k, v, cos, sin, k_cache, v_cache, length, count, mask, scale, config, table)
    batch, tokens, heads, dim = q.shape
    shared, capacity, page = k_cache.shape[2], capacity_of(k_cache, table), page_rows(k_cache, table)
    out = torch.empty(batch, tokens, heads, dim, dtype=q.dtype, device=q.device)
    parts = parts_of(config, batch * shared * tiles_of(q, shared, config), capacity + tokens)
    join = joining(out, shared, parts, config)
    bits = q if mask is None else mask.view(torch.uint8)
    box = box_of(config, dim, page)
    k_tiles, v_tiles = (boxes(cache, box) for cache in (k_cache, v_cache))
    pdl, bulk = not interpreted(), k_tiles is not None and v_tiles is not None
    attention_step[(join.tiles * shared, batch, join.parts)](
        q, k, v, cos, sin, k_cache, v_cache, k_tiles or q, v_tiles or q, table, length,
        length if count is None else count, bits, out, join.partial, join.lse,
        scale * LOG2E, join.tiles, tokens, capacity, shared, join.parts,
        *q.stride()[:3], *k.stride()[:3], *cache_strides(k_cache, v_cache, table), *bits.stride()[:3],
        G=heads // shared, D=dim, DP=power_of_two(dim, 16), BM=config.rows, BN=config.bn, BT=config.bt,
        AHEAD=config.ahead, LEAST=config.least, CAUSAL=mask is None, COUNT=count is not None, TMA=bulk,
        EARLY=config.early, SPLIT=join.parts > 1, PAGE=page, STAGED=config.staged, PDL=pdl,
        num_warps=config.warps, num_stages=stages_of(config, bulk), **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
    return out, join


def launch_apart(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    count: Tensor | None,
    mask: Tensor | None,
    scale: float,
    config: AttentionConfig,
    table: Tensor | None,
) -> tuple[Tensor, Joining]:
    """As `launch_step`, with a part for the new columns and one for every `bn` rows that the caches can hold."""
    batch, tokens, heads, dim = q.shape
    shared, capacity, page = k_cache.shape[2], capacity_of(k_cache, table), page_rows(k_cache, table)
    out = torch.empty(batch, tokens, heads, dim, dtype=q.dtype, device=q.device)
    join = joining(out, shared, -(-capacity // config.bn) + 1, config)
    bits, pdl = q if mask is None else mask.view(torch.uint8), not interpreted()
    attention_apart[(join.tiles * shared, join.parts, batch)](
        q, k, v, cos, sin, k_cache, v_cache, table, length, length if count is None else count, bits,
        join.partial, join.lse,
        scale * LOG2E, join.tiles, tokens, capacity, shared, join.parts,
        *q.stride()[:3], *k.stride()[:3], *cache_strides(k_cache, v_cache, table), *bits.stride()[:3],
        G=heads // shared, D=dim, DP=power_of_two(dim, 16), BM=config.rows, BN=config.bn,
        BT=NEW_COLUMNS, CAUSAL=mask is None, COUNT=count is not None, PAGE=page, PDL=pdl,
        num_warps=config.warps, num_stages=1, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
    return out, join


def rope_attention_linear_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    count: Tensor | None,
    mask: Tensor | None,
    scale: float,
    fused: bool,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    config: AttentionConfig | None = None,
    linear: LinearConfig | None = None,
    table: Tensor | None = None,
) -> Tensor:
    """`rope_attention_`, then y [B,M,F] = out W^T + bias + residual; where that is faster the product itself joins the
    parts that attention has left, or starts before the launch that joins them. All ways give the same bits.

    On an H200, 16 nodes of SmolLM2 take 472 us, and 454 where products of one step start early (predicted 475). Where a
    product streams its weight they must not: Llama's plain steps take 929 instead of 904, 16 nodes 950 either way.
    """
    shared, (batch, tokens, heads, dim) = k_cache.shape[2], q.shape
    config = config or config_of(q, k_cache, table)
    linear = linear or linear_config(weight.shape[1], weight.shape[0], False, q.dtype)
    if not config.step or not linear.once(weight.shape[1]) or batch * tokens > JOINED_ROWS:
        if config.apart and config.step and linear.once(weight.shape[1]):
            out, join = launch_step(q, k, v, cos, sin, k_cache, v_cache, length, count, mask, scale, config, table)
            join.finish(out, length, tokens, shared, config, lead=True)
        else:
            out = rope_attention_(q, k, v, cos, sin, k_cache, v_cache, length, count, mask, scale, fused, config, table)
        return fused_linear(out.view(batch, tokens, -1), weight, bias, None, 0.0, "none", residual)
    out, join = launch_step(q, k, v, cos, sin, k_cache, v_cache, length, count, mask, scale, config, table)
    rows, left = out.view(batch * tokens, -1), None
    if join.parts > 1:
        padded, step = join.tiles * config.rows, config.bn * config.least
        at_once = min(AT_ONCE, power_of_two(join.parts))
        rows, left = join.partial, Left(join.lse, length, join.parts, padded, heads // shared, dim, step, at_once)
    y = torch.empty(batch, tokens, weight.shape[0], dtype=q.dtype, device=q.device)
    beside = None if residual is None else flat_rows(residual)
    launch_linear(rows, weight, bias, None, 0.0, False, beside, y.view(batch * tokens, -1), linear, left=left)
    return y


def rotate_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    count: Tensor | None,
    table: Tensor | None = None,
) -> Tensor:
    """q rotated, and the caches with their new rows: one launch, a program per token and group of heads."""
    batch, tokens, heads, dim = q.shape
    shared, pdl = k.shape[2], not interpreted()
    out = torch.empty(batch, tokens, heads, dim, dtype=q.dtype, device=q.device)
    rotate_and_append[(batch * tokens, shared)](
        q, k, v, cos, sin, k_cache, v_cache, table, length, length if count is None else count, out,
        tokens, shared, capacity_of(k_cache, table), *q.stride()[:3], *k.stride()[:3],
        *cache_strides(k_cache, v_cache, table),
        G=heads // shared, GP=power_of_two(heads // shared), D=dim, DP=power_of_two(dim), COUNT=count is not None,
        PAGE=page_rows(k_cache, table), PDL=pdl, num_warps=1, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
    return out
