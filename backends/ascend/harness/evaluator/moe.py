"""Mixture of experts: gating, routing, grouped products, the way back."""

from __future__ import annotations

import torch

from specc.backends.ascend.harness.evaluator.node import Node, documented, operator
from specc.backends.ascend.semantics import moe

EMPTY_LISTS = ("bias", "scale", "offset", "antiquant_scale", "antiquant_offset")


@operator("MoeGatingTopKSoftmax", inputs=("x",), attributes={"k": None})
def gating_top_k_softmax(node: Node) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(weights, experts, rows)."""
    return documented(node, moe.gating_top_k_softmax, node.tensor("x"), node.attribute("k"))


@operator("MoeInitRouting", inputs=("x", "row_idx", "expert_idx"), attributes={"active_num": None})
def init_routing(node: Node) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(expanded x, where each row went, sorted experts)."""
    parts = (node.tensor("x"), node.tensor("row_idx"), node.tensor("expert_idx"))
    return documented(node, moe.init_routing, *parts, node.attribute("active_num"))


@operator(
    "MoeInitRoutingV3",
    inputs=("x", "expert_idx"),
    attributes={
        "active_num": (-1, 0),
        "expert_capacity": None,
        "expert_num": None,
        "drop_pad_mode": (0,),
        "expert_tokens_num_type": (1,),
        "expert_tokens_num_flag": (True,),
        "quant_mode": (-1,),
        "active_expert_range": None,
        "row_idx_type": (0, 1),
    },
)
def init_routing_v3(node: Node) -> tuple[torch.Tensor, ...]:
    """(expanded x, row index, rows for each expert, scale)."""
    number = node.attribute("expert_num")
    active = node.attribute("active_expert_range") or [0, number]
    parts = (node.tensor("x"), node.tensor("expert_idx"), number, (active[0], active[1]))
    return documented(node, moe.init_routing_v2, *parts, node.attribute("row_idx_type", 0))


@operator(
    "GroupedMatmul",
    inputs=("group_list",),
    dynamic=("x", "weight", *EMPTY_LISTS),
    attributes={
        "split_item": (2, 3),
        "dtype": (-1, 0),
        "transpose_weight": (False,),
        "transpose_x": (False,),
        "group_type": (0,),
        "group_list_type": (0, 1),
        "act_type": (0,),
        "tuning_config": None,
    },
)
def grouped_matmul(node: Node) -> torch.Tensor:
    """One product for each group of rows."""
    for name in EMPTY_LISTS:
        if any(part.numel() for part in node.tensors(name)):
            raise node.unmodelled(f"{name} of a grouped product")
    xs, weights = node.tensors("x"), node.tensors("weight")
    if len(xs) != 1 or len(weights) != 1:
        raise node.unmodelled("several tensors of one grouped product")
    groups = node.tensor("group_list")
    return documented(node, moe.grouped_matmul, xs[0], weights[0], groups, node.attribute("group_list_type", 0))


@operator(
    "MoeFinalizeRoutingV2",
    "MoeFinalizeRouting",
    inputs=(
        "expanded_x",
        "expanded_row_idx",
        "x1",
        "x2",
        "bias",
        "scales",
        "expert_idx",
        "expanded_permuted_rows",
        "skip1",
        "skip2",
        "expanded_src_to_dst_row",
        "export_for_source_row",
    ),
    attributes={"drop_pad_mode": (0,), "k": None, "K": None},
)
def finalize_routing(node: Node) -> torch.Tensor:
    """Rows back in the order of the tokens, weighted and added."""
    newer = node.op.type == "MoeFinalizeRoutingV2"
    rows = node.tensor("expanded_x" if newer else "expanded_permuted_rows")
    where = node.tensor("expanded_row_idx" if newer else "expanded_src_to_dst_row")
    experts = node.optional("expert_idx" if newer else "export_for_source_row")
    found = [node.optional(name) for name in (("x1", "x2") if newer else ("skip1", "skip2"))]
    skips = [skip for skip in found if skip is not None]
    scales = node.optional("scales")
    k = scales.shape[1] if scales is not None else node.attribute("k", node.attribute("K", 1))
    return documented(node, moe.finalize_routing, rows, skips, node.optional("bias"), scales, where, experts, k)


@operator("MoeComputeExpertTokens", inputs=("sorted_experts",), attributes={"num_experts": None})
def compute_expert_tokens(node: Node) -> torch.Tensor:
    """Where each expert's rows end."""
    experts = node.tensor("sorted_experts")
    return documented(node, moe.compute_expert_tokens, experts, node.attribute("num_experts"))
