"""Counter-based randomness and the sampler's law."""

from __future__ import annotations

import torch

from specc.ir.op import op

# splitmix64 (Steele, Lea, Flood 2014): the golden gamma and the finaliser's two multipliers, as signed int64.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX_2 = 0x94D049BB133111EB - 2**64


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of int64 (torch's >> keeps the sign)."""
    shifted: torch.Tensor = (x >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def mix(x: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64 on int64 with wrap-around: a bijection, every input bit moves every output bit."""
    x = (x ^ _shift(x, 30)) * MIX_1
    x = (x ^ _shift(x, 27)) * MIX_2
    return x ^ _shift(x, 31)


def counter_hash(rng: torch.Tensor, position: torch.Tensor, draw: torch.Tensor) -> torch.Tensor:
    """int64 hash of three int64 counters (broadcast): each is absorbed by an addition and a `mix`."""
    state = mix(rng + GOLDEN)
    state = mix(state + (position + 1) * GOLDEN)
    return mix(state + (draw + 1) * GOLDEN)


def unit_interval(x: torch.Tensor) -> torch.Tensor:
    """float64 in [0, 1) from the upper 53 bits."""
    return _shift(x, 11).to(torch.float64) * 2.0**-53


@op(
    "counter_uniform(Tensor rng, Tensor position, int draw) -> Tensor",
    fake=lambda rng, position, draw: rng.new_empty(rng.shape, dtype=torch.float64),
)
def counter_uniform(rng: torch.Tensor, position: torch.Tensor, draw: int) -> torch.Tensor:
    """float64 [B] uniform in [0, 1), a function of (rng[b], position[b], draw) alone; rng, position int64 [B].

    No state and no dependence on the batch, so that a batch equals its rows (design 00, I13).
    """
    return unit_interval(counter_hash(rng, position, torch.full_like(rng, draw)))


@op(
    "counter_uniform_rows(Tensor rng, Tensor position, Tensor draw, int size) -> Tensor",
    fake=lambda rng, position, draw, size: position.new_empty((*position.shape, size), dtype=torch.float64),
    rows=("position", "draw"),
)
def counter_uniform_rows(rng: torch.Tensor, position: torch.Tensor, draw: torch.Tensor, size: int) -> torch.Tensor:
    """float64 [B,M,size] uniform in [0, 1): element j depends on (rng[b], position[b,m], draw[b,m], j) alone.

    rng int64 [B]; position, draw int64 [B,M]. The column is a fourth counter, so no draws overlap those of
    `counter_uniform`.
    """
    column = torch.arange(size, device=rng.device)
    base = counter_hash(rng.unsqueeze(1), position, draw).unsqueeze(-1)
    return unit_interval(mix(base + (column + 1) * GOLDEN))


@op(
    "sampling_probs(Tensor logits, float temperature, int top_k, float top_p, ScalarType dtype) -> Tensor",
    fake=lambda logits, temperature, top_k, top_p, dtype: logits.new_empty(logits.shape, dtype=dtype),
    rows=("logits",),
)
def sampling_probs(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, dtype: torch.dtype
) -> torch.Tensor:
    """The law that a standard sampler draws from, over the last dim of logits [B,M,V]: same shape, in `dtype`.

    softmax(logits / temperature), then top_k (0: off; tokens that tie with the k-th stay), then top_p (1: off; in
    order of falling probability a token stays while the mass before it is below top_p, so the first token over
    the threshold stays), then scaled to sum 1. temperature > 0.
    """
    scaled = logits.to(dtype) / temperature
    vocabulary = logits.shape[-1]
    if 0 < top_k < vocabulary:
        least = torch.topk(scaled, top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < least, float("-inf"))
    probs = torch.softmax(scaled, dim=-1)
    if top_p < 1.0:
        ordered, order = torch.sort(probs, dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        before[..., 0] = 0.0
        kept = torch.where((before < top_p) | (before == 0.0), ordered, torch.zeros_like(ordered))
        probs = torch.zeros_like(probs).scatter(-1, order, kept)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs


@op(
    "sample_index(Tensor weights, Tensor uniform) -> Tensor",
    fake=lambda weights, uniform: uniform.new_empty(uniform.shape, dtype=torch.int64),
)
def sample_index(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """int64 [B]: the token at which the running sum of weights [B,V] first exceeds uniform[b] * total (inverse CDF).

    Weights need not sum to 1. A token of weight 0 is never returned unless all weights are 0: rounding at the
    upper end falls back to the largest weight.
    """
    cumulative = weights.to(torch.float64).cumsum(dim=-1)
    reached = cumulative <= (uniform * cumulative[:, -1]).unsqueeze(-1)
    index = reached.sum(dim=-1).clamp(max=weights.shape[-1] - 1)
    weight = torch.gather(weights, 1, index.unsqueeze(-1)).squeeze(-1)
    return torch.where(weight > 0, index, weights.argmax(dim=-1))
