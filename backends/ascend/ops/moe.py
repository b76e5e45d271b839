"""Routed experts as batched matmuls over all of them: the shape of the work does not depend on the routing."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specc.backends.ascend.ops.aten import first_of_best


def expert_weights(x: torch.Tensor, router: torch.Tensor, experts_per_token: int, norm_topk_prob: bool) -> torch.Tensor:
    """[M,E] in x's dtype: the probability of each expert that a token of x [M,hid] goes through, 0 for the others.

    Of experts that tie for the last place the one of lower index is taken.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    probabilities = torch.softmax(F.linear(x, router).to(wide), dim=-1)
    best = torch.topk(probabilities, experts_per_token, dim=-1).values
    least = best.narrow(1, experts_per_token - 1, 1)
    chosen = first_of_best(probabilities, least, experts_per_token)
    weight = torch.where(chosen, probabilities, torch.zeros_like(probabilities))
    if norm_topk_prob:
        weight = weight / best.sum(-1, keepdim=True)
    return weight.to(x.dtype)


def moe(
    x: torch.Tensor,
    router: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    experts_per_token: int,
    norm_topk_prob: bool,
) -> torch.Tensor:
    """x [B,M,hid] through its most probable experts, weighted by their probabilities.

    router [E,hid], gate_up [E*2I,hid] (per expert: gate, then up), down [E*hid,I].
    """
    flat = x.reshape(-1, x.shape[-1])
    tokens, width = flat.shape
    experts = router.shape[0]
    weight = expert_weights(flat, router, experts_per_token, norm_topk_prob)
    inner = F.linear(flat, gate_up).reshape(tokens, experts, 2, -1)
    gate, up = inner.select(2, 0), inner.select(2, 1)
    hidden = F.silu(gate) * up
    out = torch.bmm(hidden.transpose(0, 1), down.reshape(experts, width, -1).transpose(1, 2))
    return (out * weight.t().unsqueeze(2)).sum(0).reshape(x.shape)
