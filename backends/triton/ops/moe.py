"""A mixture of experts without a word from the host: four launches, whatever the router chose."""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.moe import expert_gates, expert_sums, route_rows
from specc.backends.triton.launch.core import power_of_two
from specc.backends.triton.ops.linear import fused_linear

Tensor = torch.Tensor

EXPERT_FEATURES = 16
EXPERT_COLUMNS = 256


def moe(
    x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, experts_per_token: int, norm_topk_prob: bool
) -> Tensor:
    """x [B,M,hid] through its most probable experts, weighted by their probabilities.

    router [E,hid], gate_up [E*2I,hid] (per expert: gate, then up), down [E*hid,I]. What lies between is float32, except
    the gated inner rows and the weights, which are rounded to the dtype of x once.
    """
    experts, hidden = router.shape
    width, count = down.shape[1], experts_per_token
    logits = fused_linear(x, router, None, None, 0.0, "none", None).view(-1, experts)
    tokens, device = logits.shape[0], x.device
    flat = x.reshape(tokens, hidden)
    chosen = torch.empty((tokens, count), dtype=torch.int32, device=device)
    weight = torch.empty((tokens, count), dtype=x.dtype, device=device)
    route_rows[(tokens,)](
        logits, chosen, weight, experts, count, EP=power_of_two(experts), KP=power_of_two(count), NORM=norm_topk_prob
    )
    inner = torch.empty((tokens, count, width), dtype=x.dtype, device=device)
    block = min(EXPERT_FEATURES, power_of_two(width))
    expert_gates[(-(-width // block), count, tokens)](
        flat,
        gate_up,
        chosen,
        inner,
        hidden,
        width,
        count,
        flat.stride(0),
        BI=block,
        BK=min(EXPERT_COLUMNS, power_of_two(hidden)),
    )
    y = torch.empty((tokens, hidden), dtype=x.dtype, device=device)
    block = min(EXPERT_FEATURES, power_of_two(hidden))
    expert_sums[(-(-hidden // block), tokens)](
        inner,
        down,
        chosen,
        weight,
        y,
        hidden,
        width,
        count,
        BH=block,
        BK=min(EXPERT_COLUMNS, power_of_two(width)),
    )
    return y.view(x.shape)
