"""The sampler's law and draws from it."""

from __future__ import annotations

import torch

from specc.backends.ascend.ops.aten import argmax, first_of_best


def sampling_probs(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, dtype: torch.dtype
) -> torch.Tensor:
    """softmax(logits / temperature), then top_k (0: off; ties with the k-th stay), then top_p (1: off), in `dtype`.

    Over the last dim of logits [B,M,V]. Of tokens that tie at the threshold of top_p those of lower index stay.
    """
    scaled = logits.to(dtype) / temperature
    if 0 < top_k < logits.shape[-1]:
        least = torch.topk(scaled, top_k, dim=-1).values.narrow(-1, top_k - 1, 1)
        scaled = scaled.masked_fill(scaled < least, float("-inf"))
    probs = torch.softmax(scaled, dim=-1)
    if top_p < 1.0:
        # Ties have one value: which of them comes first changes none of the sorted values.
        ordered = torch.sort(probs, dim=-1, descending=True).values
        before = ordered.cumsum(dim=-1) - ordered
        kept = (before < top_p) | (before == 0.0)
        count = kept.to(torch.float32).sum(-1, keepdim=True).clamp(min=1.0)
        least = torch.gather(ordered, -1, count.to(torch.int64) - 1)
        probs = torch.where(first_of_best(probs, least, count), probs, torch.zeros_like(probs))
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs


def sample_index(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """int64 [B]: where the running sum of weights [B,V] first exceeds uniform[b] * total (inverse CDF).

    A token of weight 0 is never returned unless all weights are 0; rounding at the upper end falls back to the largest.
    """
    last = weights.shape[-1] - 1
    cumulative = weights.to(torch.float64).cumsum(dim=-1)
    reached = cumulative <= uniform.unsqueeze(-1) * cumulative.narrow(1, last, 1)
    index = reached.to(torch.float32).sum(-1, keepdim=True).to(torch.int64).clamp(max=last)
    weight = torch.gather(weights, 1, index)
    return torch.where(weight > 0, index, argmax(weights, -1, True)).squeeze(-1)
