"""Mixture of experts: gating, routing of rows to experts, grouped matrix products, and the way back."""

from __future__ import annotations

import torch

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})


def gating_top_k_softmax(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(weights, experts int32, rows int32), each [..., k]: softmax over all experts, then the k largest.

    rows[i, j] = j * number of rows + i. Of equal probabilities the last expert comes first: no order is promised.
    """
    if x.dtype not in FLOATS or x.dim() not in (2, 3) or not 0 < k <= min(x.shape[-1], 1024):
        raise ValueError(f"npu_moe_gating_top_k_softmax of {x.dtype} {list(x.shape)} with k = {k}")
    if bool(x.isnan().any()):
        raise ValueError("npu_moe_gating_top_k_softmax over NaN: undefined")
    probabilities = x.float().softmax(-1)
    ordered, places = torch.sort(probabilities.flip(-1), dim=-1, descending=True, stable=True)
    experts = (x.shape[-1] - 1 - places)[..., :k].to(torch.int32)
    count = x[..., 0].numel()
    rows = torch.arange(count * k, dtype=torch.int32).reshape(k, count).T.reshape(*x.shape[:-1], k)
    return ordered[..., :k].to(x.dtype), experts, rows.contiguous()


def init_routing(
    x: torch.Tensor, row_idx: torch.Tensor, expert_idx: torch.Tensor, active_num: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rows of x sorted by expert [min(rows, active_num) * k, H], where each of row_idx went, the sorted experts).

    Rows of one expert come in no promised order; here the last first. row_idx must be 0 .. rows * k - 1, each once.
    """
    count, k = expert_idx.shape
    if row_idx.dtype != torch.int32 or expert_idx.dtype != torch.int32 or row_idx.shape != expert_idx.shape:
        raise ValueError("npu_moe_init_routing needs int32 row_idx and expert_idx of one shape")
    flat_rows, flat_experts = row_idx.reshape(-1).long(), expert_idx.reshape(-1).long()
    if not torch.equal(flat_rows.sort().values, torch.arange(count * k)):
        raise IndexError("row_idx is not a permutation of the rows: undefined")
    if flat_experts.numel() and int(flat_experts.min()) < 0:
        raise IndexError("an expert below 0: undefined")
    experts, order = _by_expert(flat_experts)
    sources = flat_rows[order]
    where = torch.empty_like(sources)
    where[sources] = torch.arange(count * k)
    expanded = x[sources % count][: min(count, active_num) * k]
    return expanded, where.to(torch.int32), experts.to(torch.int32)


def init_routing_v2(
    x: torch.Tensor, expert_idx: torch.Tensor, expert_num: int, expert_range: tuple[int, int], row_idx_type: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rows sorted by expert [rows * k, H], row index int32 [rows * k], rows for each expert int64, scale float32).

    Pair j of row i has number i * k + j. row_idx_type 0: where each pair went; 1: which pair stands there. Every
    expert must lie in the active range (rows outside are not modelled). The scale is undefined without an input
    scale: zeros here.
    """
    count, k = expert_idx.shape
    if expert_idx.dtype != torch.int32 or x.dim() != 2 or len(x) != count:
        raise ValueError("npu_moe_init_routing_v2 needs x [rows, H] and int32 expert_idx [rows, k]")
    flat = expert_idx.reshape(-1).long()
    start, end = expert_range
    if not 0 <= start < end <= expert_num:
        raise ValueError(f"experts {start} to {end} of {expert_num}")
    if flat.numel() and (int(flat.min()) < start or int(flat.max()) >= end):
        raise IndexError(f"an expert outside {start} to {end - 1}: undefined rows")
    _, order = _by_expert(flat)
    where = torch.empty_like(order)
    where[order] = torch.arange(count * k)
    counts = torch.bincount(flat - start, minlength=end - start)
    rows = (order if row_idx_type else where).to(torch.int32)
    return x[order // k], rows, counts, torch.zeros(count * k)


def _by_expert(experts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted experts and their places; within one expert the last place first."""
    values, places = torch.sort(experts.flip(0), stable=True)
    return values, len(experts) - 1 - places


def grouped_matmul(x: torch.Tensor, weight: torch.Tensor, groups: torch.Tensor, list_type: int) -> torch.Tensor:
    """Rows of x [M, K] times the weight [G, K, N] of their group; groups int64 [G]: ends (list_type 0) or sizes (1).

    The groups must cover all M rows: what lies behind the last group is undefined.
    """
    if x.dim() != 2 or weight.dim() != 3 or x.dtype != weight.dtype or x.dtype not in FLOATS:
        raise ValueError(f"npu_grouped_matmul of {x.dtype} {list(x.shape)} and {weight.dtype} {list(weight.shape)}")
    if groups.dtype != torch.int64 or groups.shape != weight.shape[:1]:
        raise ValueError(f"group_list of {groups.dtype} {list(groups.shape)} for {len(weight)} groups")
    if x.shape[1] != weight.shape[1]:
        raise ValueError(f"npu_grouped_matmul of {list(x.shape)} and {list(weight.shape)}")
    ends = (groups.cumsum(0) if list_type == 1 else groups).tolist()
    starts = [0, *ends[:-1]]
    if any(end < start for start, end in zip(starts, ends, strict=True)) or ends[-1] != len(x):
        raise IndexError(f"groups that end at {ends} do not cover {len(x)} rows: undefined")
    parts = [x[a:b].float() @ weight[group].float() for group, (a, b) in enumerate(zip(starts, ends, strict=True))]
    return torch.cat(parts).to(x.dtype)


def finalize_routing(
    rows: torch.Tensor,
    skips: list[torch.Tensor],
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    where: torch.Tensor,
    experts: torch.Tensor | None,
    k: int,
) -> torch.Tensor:
    """out[i] = skips[i] + sum over j of scales[i, j] (rows[where[i + j * count]] + bias[experts[i, j]]), in float32."""
    if where.dtype != torch.int32 or where.numel() % k:
        raise ValueError(f"expanded_src_to_dst_row of {where.dtype} {list(where.shape)} for k = {k}")
    index = where.long()
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= len(rows)):
        raise IndexError("expanded_src_to_dst_row outside the rows: undefined")
    count = where.numel() // k
    picked = rows.float()[index].reshape(k, count, -1).transpose(0, 1)
    if bias is not None:
        if experts is None:
            raise ValueError("a bias needs export_for_source_row")
        picked = picked + bias.float()[experts.long()]
    if scales is not None:
        picked = picked * scales.float()[..., None]
    total = picked.sum(1)
    for skip in skips:
        total = total + skip.float()
    return total.to(rows.dtype)


def compute_expert_tokens(experts: torch.Tensor, expert_num: int) -> torch.Tensor:
    """The number of entries <= e of the sorted experts, for each expert e, int32 [expert_num]."""
    flat = experts.reshape(-1).long()
    if experts.dtype != torch.int32 or bool((flat[1:] < flat[:-1]).any()):
        raise ValueError("npu_moe_compute_expert_tokens needs sorted int32 experts")
    if flat.numel() and (int(flat[0]) < 0 or int(flat[-1]) >= expert_num):
        raise IndexError(f"an expert outside 0 to {expert_num - 1}: undefined")
    return torch.bincount(flat, minlength=expert_num).cumsum(0).to(torch.int32)
