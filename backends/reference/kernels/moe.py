"""Routed experts: tokens are sorted by expert once, each chosen expert's weights read once."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specc.backends.reference.kernels.pointwise import silu


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
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    logits = F.linear(flat, router)
    probabilities = torch.softmax(logits, dim=-1, dtype=wide)
    weight, chosen = torch.topk(probabilities, experts_per_token, dim=-1)
    if norm_topk_prob:
        weight = weight / weight.sum(-1, keepdim=True)
    weight = weight.to(x.dtype).flatten()
    gates = gate_up.view(router.shape[0], -1, x.shape[-1])
    downs = down.view(router.shape[0], x.shape[-1], -1)
    # Pairs of token and place, ordered by expert, then by token.
    order = torch.argsort(chosen.flatten(), stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=router.shape[0]).tolist()
    out = torch.zeros_like(flat)
    for expert, pairs in enumerate(torch.split(order, counts)):
        if pairs.numel() > 0:
            token = pairs // experts_per_token
            gate, up = F.linear(flat[token], gates[expert]).chunk(2, dim=-1)
            inner = F.linear(silu(gate) * up, downs[expert])
            out.index_add_(0, token, inner * weight[pairs].unsqueeze(-1))
    return out.view(x.shape)
