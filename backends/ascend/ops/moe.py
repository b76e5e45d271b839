"""Routed experts as matmuls over all of them: the shape of the work does not depend on the routing.

Matrices of weights stand on the left, so that they are read as they are stored. The device's grouped matmul reads fewer
experts, but wants its weights [E,in,out]: it would have all of them transposed in every step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specc.backends.ascend.ops.aten import first_of_best


def expert_weights(logits: torch.Tensor, experts_per_token: int, norm_topk_prob: bool) -> torch.Tensor:
    """[M,E] in the dtype of logits [M,E]: the probability of the experts that a token goes through, 0 for the others.

    Of experts that tie for the last place those of lower index are taken.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    probabilities = torch.softmax(logits.to(wide), dim=-1)
    best = torch.topk(probabilities, experts_per_token, dim=-1).values
    least = best.narrow(1, experts_per_token - 1, 1)
    chosen = first_of_best(probabilities, least, experts_per_token)
    weight = probabilities.masked_fill(chosen.logical_not(), 0.0)
    if norm_topk_prob:
        weight = weight / best.sum(-1, keepdim=True)
    return weight.to(logits.dtype)


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
    width, experts = x.shape[-1], router.shape[0]
    tokens = x.reshape(-1, width).t()
    size = tokens.shape[1]
    weight = expert_weights(torch.mm(router, tokens).t(), experts_per_token, norm_topk_prob)
    weight = weight.t().unsqueeze(1)
    gate, up = torch.mm(gate_up, tokens).reshape(experts, 2, -1, size).unbind(1)
    # What an expert makes of a token that is not its own may overflow: it is cleared, not multiplied by 0.
    inner = (F.silu(gate) * up).masked_fill(weight == 0.0, 0.0)
    out = torch.bmm(down.reshape(experts, width, -1), inner) * weight
    return out.sum(0).t().reshape(x.shape)
