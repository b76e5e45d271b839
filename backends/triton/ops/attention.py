"""Attention over a committed prefix and the new rows of a step: ops of `specc.ir.ops` without host synchronisation.

The grid depends on shapes only: a fixed number of parts, whose bounds every program works out from the row's length.
`fused` says how the reference multiplies; here both give the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-untyped]

from specc.backends.triton.kernels.attention import attention_merge, attention_split
from specc.backends.triton.kernels.attention_inputs import close_ancestors, rope_angles, rotate_halves
from specc.backends.triton.kernels.attention_short import attention_short
from specc.backends.triton.launch.core import interpreted, power_of_two
from specc.backends.triton.ops.attention_configs import MOST_PARTS, AttentionConfig, attention_config
from specc.ir.ops.attention import rope_frequencies

Tensor = torch.Tensor
LOG2E = 1.4426950408889634
MERGED = 16
"""Parts that the merge reads at a time, at most."""
MERGED_AT_ONCE = 4
"""Rows that a program of the merge takes where there are many: thousands of programs take longer to start."""
MERGED_FROM = 1024
"""Rows that are many to the merge."""
MOST_TOKENS = 64
"""Tokens of a decoding step, at most; more are a prompt."""
BULK = 16
"""Bytes to which bulk copies are aligned."""
HEAD_BLOCK = 8
"""Heads that one program rotates, at most."""
CLIMBING = 16
"""Nodes of one program that climb the tree, at most."""


def rows_contiguous(x: Tensor) -> Tensor:
    """x, copied if neighbours of its last dim do not lie side by side."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def boxes(cache: Tensor, rows: int) -> TensorDescriptor | None:
    """A descriptor of a cache [B,C,H,D] or pool [P,page,H,D] as [rows,H*D] with boxes of [rows,D]; None if it can't be
    one: rows 0, gaps between sequences, addresses that bulk copies can't take."""
    whole, inside, heads, dim = cache.shape
    stride = cache.stride(1)
    ends = (cache.data_ptr() | stride * cache.element_size()) % BULK == 0
    if not rows or not ends or cache.stride()[2:] != (dim, 1) or (whole > 1 and cache.stride(0) != inside * stride):
        return None
    return TensorDescriptor(cache, [whole * inside, heads * dim], [stride, 1], [rows, dim])


def box_of(config: AttentionConfig, dim: int, page: int) -> int:
    """Rows of a box of `boxes`: it must not go beyond a head nor a page of so many rows (0: no pages); 0: no boxes."""
    return min(config.bn, page or config.bn) if config.tma and power_of_two(dim, 16) == dim else 0


def stages_of(config: AttentionConfig, bulk: bool) -> int:
    """Stages of the loop over whole tiles; look-ups have none where rows do not lie as bulk copies take them."""
    return config.stages // 2 if config.staged and not bulk else config.stages


def parts_of(config: AttentionConfig, tiles: int, columns: int) -> int:
    """How many parts so many columns are split into, for all tiles of all heads and sequences to fill the device."""
    return max(1, min(config.programs // tiles, MOST_PARTS, -(-columns // (config.bn * config.least))))


def tiles_of(q: Tensor, shared: int, config: AttentionConfig) -> int:
    """How many tiles the packed rows of q [B,M,Hq,D] take for each of `shared` KV heads."""
    return -(-(q.shape[1] * q.shape[2] // shared) // config.rows)


def alike(k_new: Tensor, v_new: Tensor) -> tuple[Tensor, Tensor]:
    """New rows with the same strides, copied if need be."""
    k_new, v_new = rows_contiguous(k_new), rows_contiguous(v_new)
    return (k_new, v_new) if k_new.stride() == v_new.stride() else (k_new.contiguous(), v_new.contiguous())


def merge_parts(
    join: Joining, out: Tensor, length: Tensor, new: int, shared: int, config: AttentionConfig, lead: bool
) -> None:
    """out [B,M,Hq,D] from parts of length[b] + `new` columns; see `Joining.finish`."""
    batch, tokens, heads, dim = out.shape
    packed, pdl = tokens * heads // shared, not interpreted()
    rows = MERGED_AT_ONCE if batch * shared * packed >= MERGED_FROM else 1
    attention_merge[(-(-packed // rows), shared, batch)](
        join.partial, join.lse, out, length, join.tiles, tokens, new, shared, join.parts,
        G=heads // shared, D=dim, DP=power_of_two(dim, 16), BM=config.rows, STEP=config.bn * config.least,
        PARTS=min(MERGED, power_of_two(join.parts) if rows == 1 else join.parts), ROWS=rows, LEAD=lead, PDL=pdl,
        num_warps=1 if rows == 1 else 2,
        **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Joining:
    """Parts of `tiles` tiles a KV head, and where they lie until they are joined; see `leave_part`.

    By a second launch: a dependent one costs less than a last program that joins what the others have left.
    """

    tiles: int
    parts: int
    partial: Tensor
    lse: Tensor

    def finish(
        self, out: Tensor, length: Tensor, new: int, shared: int, config: AttentionConfig, lead: bool = False
    ) -> None:
        """The second launch, where there are several parts: of length[b] + `new` columns. `lead`: the launch behind it
        is a product, and may start before this one's wait."""
        if self.parts > 1:
            merge_parts(self, out, length, new, shared, config, lead)


def joining(out: Tensor, shared: int, parts: int, config: AttentionConfig) -> Joining:
    """For so many parts of out [B,M,Hq,D], `shared` KV heads."""
    batch, dim, tiles = out.shape[0], out.shape[-1], tiles_of(out, shared, config)
    partial = lse = out
    if parts > 1:
        places = batch * shared * tiles * config.rows * parts
        partial = torch.empty(places * dim, dtype=torch.float32, device=out.device)
        lse = torch.empty(places, dtype=torch.float32, device=out.device)
    return Joining(tiles, parts, partial, lse)


def page_rows(cache: Tensor, table: Tensor | None) -> int:
    """Rows of a page of a pool [P,page,Hkv,D] that a `table` points into; 0 for a cache [B,C,Hkv,D]."""
    return 0 if table is None else cache.shape[1]


def capacity_of(cache: Tensor, table: Tensor | None) -> int:
    """Rows that a sequence can have in a cache [B,C,Hkv,D], or in pages that a `table` int32 [B,blocks] names."""
    return cache.shape[1] * (1 if table is None else table.shape[1])


def cache_strides(k_cache: Tensor, v_cache: Tensor, table: Tensor | None) -> tuple[int, ...]:
    """Of sequences, rows and heads; all sequences share a pool that a `table` points into."""
    strides = [stride for cache in (k_cache, v_cache) for stride in cache.stride()[:3]]
    if table is not None:
        strides[0] = strides[3] = 0
    return tuple(strides)


def strides_of(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, new: Tensor, bits: Tensor, table: Tensor | None
) -> tuple[int, ...]:
    """Of all operands as the kernels take them."""
    caches = cache_strides(k_cache, v_cache, table)
    return (
        *q.stride()[:3], *caches, *new.stride()[:3], *bits.stride()[:3], 0 if table is None else table.stride(0)
    )  # fmt: skip


def attend_short(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    rows: int,
    scale: float,
    k_new: Tensor,
    v_new: Tensor,
    bits: Tensor,
    offset: int,
    table: Tensor | None,
    config: AttentionConfig,
    out: Tensor,
    causal: bool,
    separate: bool,
) -> None:
    """`attend` with a part for the new columns and one for every `bn` rows that the caches can hold."""
    batch, tokens, heads, dim = q.shape
    shared, page, capacity = k_cache.shape[2], page_rows(k_cache, table), capacity_of(k_cache, table)
    join, pdl = joining(out, shared, -(-capacity // config.bn) + 1, config), not interpreted()
    attention_short[(join.tiles * shared, join.parts, batch)](
        q, k_cache, v_cache, k_new, v_new, q if table is None else table, length, bits, join.partial, join.lse,
        scale * LOG2E, join.tiles, tokens, rows, capacity, offset, shared, join.parts,
        *strides_of(q, k_cache, v_cache, k_new, bits, table),
        G=heads // shared, D=dim, DP=power_of_two(dim, 16), BM=config.rows, BN=config.bn, BT=power_of_two(rows, 16),
        CAUSAL=causal, SEPARATE=separate, PAGE=page, PDL=pdl,
        num_warps=config.warps, num_stages=1, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
    join.finish(out, length, rows, shared, config)


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    rows: int,
    scale: float,
    window: int,
    *,
    fresh: tuple[Tensor, Tensor] | None = None,
    mask: Tensor | None = None,
    positions: Tensor | None = None,
    offset: int = 0,
    table: Tensor | None = None,
    config: AttentionConfig | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """q [B,M,Hq,D] over the caches' rows below `length` and `rows` new ones; the parameters of the ops below.

    `fresh`: (k_new, v_new) where new rows are not in the caches. `mask`: None for chains. `table` int32 [B,blocks]:
    caches are pools [P,page,Hkv,D] of pages.
    """
    q, k_cache, v_cache = rows_contiguous(q), rows_contiguous(k_cache), rows_contiguous(v_cache)
    batch, tokens, heads, dim = q.shape
    shared = k_cache.shape[2]
    group = heads // shared
    padded = power_of_two(dim, 16)
    page, capacity = page_rows(k_cache, table), capacity_of(k_cache, table)
    wide, packed, groups = q.element_size() == 4, tokens * group, batch * shared
    config = config or attention_config(padded, packed, groups, wide, capacity, page)
    if out is None:
        out = torch.empty(batch, tokens, heads, dim, dtype=q.dtype, device=q.device)
    k_new, v_new = alike(*(fresh or (q, q)))
    bits = q if mask is None else mask.view(torch.uint8)
    if config.apart and not window and rows <= MOST_TOKENS:
        attend_short(q, k_cache, v_cache, length, rows, scale, k_new, v_new, bits, offset, table, config, out,
                     mask is None, fresh is not None)  # fmt: skip
        return out
    parts = parts_of(config, batch * shared * tiles_of(q, shared, config), capacity + rows)
    join = joining(out, shared, parts, config)
    box = box_of(config, dim, page)
    k_tiles, v_tiles = (boxes(cache, box) for cache in (k_cache, v_cache))
    pdl, bulk = not interpreted(), k_tiles is not None and v_tiles is not None
    attention_split[(join.tiles * shared, join.parts, batch)](
        q, k_cache, v_cache, k_tiles or q, v_tiles or q, k_new, v_new, q if table is None else table, length, bits,
        q if positions is None else positions.contiguous(), out, join.partial, join.lse,
        scale * LOG2E, join.tiles, tokens, rows, capacity, offset, window, shared, join.parts,
        *strides_of(q, k_cache, v_cache, k_new, bits, table),
        G=group, D=dim, DP=padded, BM=config.rows, BN=config.bn, BT=config.bt, AHEAD=config.ahead, LEAST=config.least,
        CAUSAL=mask is None, WINDOW=window > 0, SEPARATE=fresh is not None, PAGE=page,
        TMA=bulk, EARLY=config.early,
        SPLIT=join.parts > 1, BLOCK=fresh is None and tokens > MOST_TOKENS,
        STAGED=config.staged, PDL=pdl,
        num_warps=config.warps, num_stages=stages_of(config, bulk), **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
    join.finish(out, length, rows, shared, config)
    return out


def tree_attention_cached(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    mask: Tensor,
    positions: Tensor,
    scale: float,
    window: int,
    fused: bool = True,
) -> Tensor:
    """Attention of q [B,M,Hq,D] over cache rows [0, length[b]) and the tail rows length[b] + r with mask[b,m,r].

    `window` > 0: of the committed rows only the last `window` before positions int64 [B,M].
    """
    return attend(q, k_cache, v_cache, length, mask.shape[-1], scale, window, mask=mask, positions=positions)


def causal_attention_cached(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    positions: Tensor,
    offset: int,
    scale: float,
    window: int,
    fused: bool = True,
) -> Tensor:
    """As `tree_attention_cached` for a chain: row m of q sees the tail rows [0, offset + m]."""
    rows = offset + q.shape[1]
    return attend(q, k_cache, v_cache, length, rows, scale, window, positions=positions, offset=offset)


def tree_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    mask: Tensor,
    positions: Tensor,
    scale: float,
    window: int,
    fused: bool = True,
) -> Tensor:
    """As `tree_attention_cached` where the new rows are k_new, v_new [B,R,Hkv,D]."""
    return attend(
        q, k_cache, v_cache, length, k_new.shape[1], scale, window,
        fresh=(k_new, v_new), mask=mask, positions=positions,
    )  # fmt: skip


def causal_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    positions: Tensor,
    offset: int,
    scale: float,
    window: int,
    fused: bool = True,
) -> Tensor:
    """As `causal_attention_cached` where the new rows are k_new, v_new [B,R,Hkv,D]."""
    return attend(
        q, k_cache, v_cache, length, k_new.shape[1], scale, window,
        fresh=(k_new, v_new), positions=positions, offset=offset,
    )  # fmt: skip


def ancestor_mask(parent_row: Tensor, valid: Tensor) -> Tensor:
    """Ancestor-or-self closure bool [B,N,N] of parent rows int64 [B,N] (0: the root) and valid bool [B,N]."""
    batch, nodes = parent_row.shape
    mask = torch.empty(batch, nodes, nodes, dtype=torch.bool, device=parent_row.device)
    rows = min(CLIMBING, power_of_two(nodes))
    close_ancestors[(batch, -(-nodes // rows))](
        parent_row.contiguous(), valid.contiguous().view(torch.uint8), mask.view(torch.uint8), nodes,
        NP=power_of_two(nodes), ROWS=rows, num_warps=1,
    )  # fmt: skip
    return mask


def rope_tables(
    positions: Tensor, dim: int, theta: float, scaling: list[float], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos, sin [B,M,dim/2] of the rotary angles at positions int64 [B,M], computed in float32 and rounded once.

    The frequencies are worked out on the CPU, as torch does it there, and are constants of the kernel.
    """
    frequencies = rope_frequencies(dim, theta, scaling, torch.float32, torch.device("cpu"))
    cos, sin = (torch.empty(*positions.shape, dim // 2, dtype=dtype, device=positions.device) for _ in range(2))
    rope_angles[(positions.numel(),)](
        positions.contiguous(), cos, sin,
        FREQUENCIES=tuple(frequencies.tolist()), HALF=dim // 2, HP=power_of_two(dim // 2), num_warps=1,
    )  # fmt: skip
    return cos, sin


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B,M,H,D] rotated in halves by cos, sin [B,M,D/2]."""
    x = rows_contiguous(x)
    batch, tokens, heads, dim = x.shape
    out = torch.empty(batch, tokens, heads, dim, dtype=x.dtype, device=x.device)
    block = min(HEAD_BLOCK, power_of_two(heads))
    rotate_halves[(batch * tokens, -(-heads // block))](
        x, cos.contiguous(), sin.contiguous(), out, tokens, heads, *x.stride()[:3],
        HALF=dim // 2, HP=power_of_two(dim // 2), HEADS=block, num_warps=4 if block * dim >= 1024 else 1,
    )  # fmt: skip
    return out
