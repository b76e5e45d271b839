"""The routed part of a mixture of experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specc.ir.op import op


@op(
    "moe(Tensor x, Tensor router, Tensor gate_up, Tensor down, int experts_per_token, bool norm_topk_prob) -> Tensor",
    fake=lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format),
    rows=("x",),
)
def moe(
    x: torch.Tensor,
    router: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    experts_per_token: int,
    norm_topk_prob: bool,
) -> torch.Tensor:
    """x [B,M,hid] through the `experts_per_token` most probable of E experts, weighted by their probabilities.

    router [E,hid]; gate_up [E*2I,hid] (per expert: gate, then up); down [E*hid,I]. The softmax runs over all experts in
    float32 (float64 for a float64 model); `norm_topk_prob` renormalises the chosen (Qwen3-Next).
    """
    flat = x.reshape(-1, x.shape[-1])
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    probabilities = torch.softmax(F.linear(flat, router), dim=-1, dtype=wide)
    weight, chosen = torch.topk(probabilities, experts_per_token, dim=-1)
    if norm_topk_prob:
        weight = weight / weight.sum(-1, keepdim=True)
    weight = weight.to(x.dtype)
    experts = router.shape[0]
    gates, downs = gate_up.unflatten(0, (experts, -1)), down.unflatten(0, (experts, -1))
    out = torch.zeros_like(flat)
    for expert in torch.unique(chosen).tolist():
        token, place = torch.nonzero(chosen == expert, as_tuple=True)
        gate, up = F.linear(flat[token], gates[expert]).chunk(2, dim=-1)
        out.index_add_(0, token, F.linear(F.silu(gate) * up, downs[expert]) * weight[token, place].unsqueeze(-1))
    return out.reshape(x.shape)
