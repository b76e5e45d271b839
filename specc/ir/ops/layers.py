"""Ops that only a device backend makes: row ops of all layers at once, and ops that write their own cache or window."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specc.ir.op import IndexOperand, op
from specc.ir.ops.attention import rope
from specc.ir.ops.buffer import append_rows_, causal_attention_cached, commit_path_, tree_attention_cached
from specc.ir.ops.conv import conv_commit, short_conv
from specc.ir.ops.delta_buffer import delta_rule_commit_
from specc.ir.ops.linear import fused_linear

_BUFFER = ("buffer",)


@op(
    "commit_path_layers_(Tensor(a!)[] caches, Tensor path, Tensor start, Tensor count, bool fast_reorder) -> ()",
    fake=lambda caches, path, start, count, fast_reorder: None,
    levels=_BUFFER,
)
def commit_path_layers_(
    caches: Sequence[torch.Tensor], path: torch.Tensor, start: torch.Tensor, count: torch.Tensor, fast_reorder: bool
) -> None:
    """`commit_path_` for every layer of each of `caches` [L,B,C,…]."""
    for cache in caches:
        for layer in cache.unbind(0):
            commit_path_(layer, path, start, count, fast_reorder)


@op(
    "append_path_layers_(Tensor(a!)[] caches, Tensor[] rows, Tensor? path, Tensor start, Tensor? count=None) -> ()",
    fake=lambda caches, rows, path, start, count=None: None,
    levels=_BUFFER,
)
def append_path_layers_(
    caches: Sequence[torch.Tensor],
    rows: Sequence[torch.Tensor],
    path: torch.Tensor | None,
    start: torch.Tensor,
    count: torch.Tensor | None = None,
) -> None:
    """cache[l, b, start[b] + j] = rows[l, b, path[b, j]] for j < count[b], for each cache [L,B,C,…] and its rows.

    rows [L,B,M,…]; path int64 [B,P] (None: j itself); start, count int64 [B] (None: all).
    """
    for cache, source in zip(caches, rows, strict=True):
        for layer, part in zip(cache.unbind(0), source.unbind(0), strict=True):
            batch = torch.arange(part.shape[0], device=part.device).unsqueeze(1)
            append_rows_(layer, part if path is None else part[batch, path], start, count)


@op(
    "conv_commit_layers_(Tensor(a!)[] windows, Tensor[] rows, Tensor path, Tensor count) -> ()",
    fake=lambda windows, rows, path, count: None,
    levels=_BUFFER,
)
def conv_commit_layers_(
    windows: Sequence[torch.Tensor], rows: Sequence[torch.Tensor], path: torch.Tensor, count: torch.Tensor
) -> None:
    """`conv_commit` in place for every layer of each of `windows` [L,B,W-1,C] and its rows [L,B,N,C]."""
    for window, source in zip(windows, rows, strict=True):
        for layer, part in zip(window.unbind(0), source.unbind(0), strict=True):
            layer.copy_(conv_commit(layer, part, path, count))


@op(
    "delta_rule_commit_layers_(Tensor(a!) state, Tensor k, Tensor u, Tensor g, Tensor path, Tensor count, str form) "
    "-> ()",
    fake=lambda state, *_: None,
    levels=_BUFFER,
)
def delta_rule_commit_layers_(
    state: torch.Tensor,
    k: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor,
    path: torch.Tensor,
    count: torch.Tensor,
    form: str,
) -> None:
    """`delta_rule_commit_` for every layer of state [L,B,HV,V,K] and factors [L,B,N,…]."""
    for layer, *factors in zip(state.unbind(0), k.unbind(0), u.unbind(0), g.unbind(0), strict=True):
        delta_rule_commit_(layer, *factors, path, count, form)


@op(
    "short_conv_(Tensor(a!) window, Tensor x, Tensor weight, Tensor? bias=None, Tensor? live=None) -> Tensor",
    fake=lambda window, x, weight, bias=None, live=None: torch.empty_like(x, memory_format=torch.contiguous_format),
    levels=_BUFFER,
)
def short_conv_(
    window: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    live: torch.Tensor | None = None,
) -> torch.Tensor:
    """`short_conv` whose next window takes the place of `window` [B,W-1,C]; returns y [B,T,C]."""
    y, after = short_conv(window, x, weight, bias, live)
    window.copy_(after)
    return y


@op(
    "rope_attention_(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor(a!) k_cache, Tensor(b!) v_cache, "
    "Tensor length, Tensor? count, Tensor? mask, float scale, bool fused=True) -> Tensor",
    fake=lambda q, *_: torch.empty_like(q, memory_format=torch.contiguous_format),
    levels=_BUFFER,
    indices=(IndexOperand("length", "k_cache", 1),),
    meta={"reads_written": True},
)
def rope_attention_(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    length: torch.Tensor,
    count: torch.Tensor | None,
    mask: torch.Tensor | None,
    scale: float,
    fused: bool = True,
) -> torch.Tensor:
    """`rope` of q [B,M,Hq,D] and k [B,M,Hkv,D], `append_rows_` of k and v at `length`, and `tree_attention_cached`
    with `mask` bool [B,M,M] (None: `causal_attention_cached`), without a window.
    """
    append_rows_(k_cache, rope(k, cos, sin), length, count)
    append_rows_(v_cache, v, length, count)
    turned, positions = rope(q, cos, sin), length.unsqueeze(1).expand(-1, q.shape[1])
    if mask is None:
        return causal_attention_cached(turned, k_cache, v_cache, length, positions, 0, scale, 0, fused)
    return tree_attention_cached(turned, k_cache, v_cache, length, mask, positions, scale, 0, fused)


@op(
    "rope_attention_linear_(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor(a!) k_cache, "
    "Tensor(b!) v_cache, Tensor length, Tensor? count, Tensor? mask, float scale, bool fused, Tensor weight, "
    "Tensor? bias, Tensor? residual) -> Tensor",
    fake=lambda q, *rest: q.new_empty((*q.shape[:2], rest[11].shape[0])),
    levels=_BUFFER,
    indices=(IndexOperand("length", "k_cache", 1),),
    meta={"reads_written": True},
)
def rope_attention_linear_(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    length: torch.Tensor,
    count: torch.Tensor | None,
    mask: torch.Tensor | None,
    scale: float,
    fused: bool,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """`fused_linear` of the heads of `rope_attention_` side by side: [B,M,F] of weight [F,Hq*D], bias [F] and residual
    [B,M,F].
    """
    o = rope_attention_(q, k, v, cos, sin, k_cache, v_cache, length, count, mask, scale, fused)
    return fused_linear(o.flatten(-2), weight, bias, None, 0.0, "none", residual)
