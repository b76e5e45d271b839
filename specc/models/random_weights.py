"""Deterministic random weights for small models whose output is varied enough to test decoding with."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import torch

from specc.models.checkpoint import Weights
from specc.models.geometry import Geometry
from specc.models.weights import WeightEntry

GAIN: Mapping[str, float] = {
    "q_proj": 2.0,
    "k_proj": 2.0,
    "q_norm": 2.0,
    "k_norm": 2.0,
    "down_proj": 2.0,
    "shared_down_proj": 2.0,
    "experts_down": 2.0,
    "router": 2.0,
}
BIAS_DEVIATION = 0.1
DECAY_RATE = (0.05, 16.0)
"""Range of A = exp(a_log), drawn log-uniformly per value head."""
TIME_STEP = (0.003, 0.3)
"""Range of softplus(dt_bias), drawn log-uniformly: with A it gives decays per token from about 0.9999 to 0.01."""


def random_weights(
    table: Sequence[WeightEntry],
    geometry: Geometry,
    seed: int,
    dtype: torch.dtype,
    *,
    scale: float = 1.0,
    logit_scale: float = 3.0,
    include_optional: bool = False,
    device: torch.device | str = "cpu",
) -> Weights:
    """Weights for every entry of `table`, the same for the same seed whatever else the table holds.

    They are drawn on `device`: another kind of device draws other numbers.

    Each tensor is drawn in float64 from its own generator, keyed by (seed, role, decoder layer), and rounded to
    `dtype`. Linear layers have standard deviation scale * GAIN / sqrt(in_features), embeddings 1, norms lie
    near their gain, biases have 0.1. The gains make attention sharp, so that the next token depends on the
    whole context: with gains of 1 one text in twelve gets stuck on three tokens. The final norm has random
    signs and is sized so that logits have a standard deviation of about `logit_scale`: without the signs a
    tied head would favour the token just read, and greedy text would repeat it for ever. `d2t` and `t2d`
    describe one random draft vocabulary. Optional weights are left out unless `include_optional`.

    Recurrent layers: the heads of a layer decay from slowly to fast, convolutions weigh all their taps, and norms whose
    weights are offsets (`norm_offset`) get what is left of their gain.
    """
    tied = all(entry.name != "lm_head" for entry in table)
    weights: Weights = {}
    for entry in table:
        if entry.optional and not include_optional:
            continue
        if entry.kind != "float":
            weights[entry.name] = _vocabulary_table(entry, table, seed)
            continue
        layers = tuple(
            _draw(entry, layer, seed, scale, logit_scale, tied, geometry.norm_offset, device).to(dtype)
            for layer in entry.layers(geometry.num_hidden_layers)
        )
        weights[entry.name] = layers if entry.per_layer else layers[0]
    return weights


def _generator(seed: int, name: str, layer: int, device: torch.device | str = "cpu") -> torch.Generator:
    key = hashlib.blake2b(f"{seed}:{name}:{layer}".encode(), digest_size=7).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(key, "little"))


def _draw(
    entry: WeightEntry, layer: int, seed: int, scale: float, logit_scale: float, tied: bool, norm_offset: float,
    device: torch.device | str,
) -> torch.Tensor:  # fmt: skip
    role = entry.role
    generator = _generator(seed, role, layer, device)
    if role in ("a_log", "dt_bias"):
        return _decay(role, torch.rand(entry.shape, generator=generator, dtype=torch.float64, device=device))
    noise = torch.randn(entry.shape, generator=generator, dtype=torch.float64, device=device)
    if role == "embed_tokens":
        return noise
    if len(entry.shape) >= 2:
        factor = 1.0 if role == "lm_head" else scale * GAIN.get(role, 1.0)
        return noise * factor / math.sqrt(entry.shape[-1])
    if role.endswith("_bias"):
        return BIAS_DEVIATION * noise
    if role == "norm":
        size = logit_scale / math.sqrt(entry.shape[0]) if tied else logit_scale
        return size * torch.sign(noise) * (1.0 + 0.1 * noise.abs()) - norm_offset
    gain = GAIN.get(role, 1.0) * (1.0 + 0.1 * noise)
    return gain if role == "o_norm" else gain - norm_offset


def _decay(role: str, uniform: torch.Tensor) -> torch.Tensor:
    """`a_log` or `dt_bias` [HV] from uniform numbers, log-uniform in the ranges above.

    A token's decay is exp(-A * softplus(a + dt_bias)); softplus^-1(t) = log(exp(t) - 1). The heads' decay rates are
    spread over the range, one in each of HV equal parts, so that few heads have slow and fast ones too.
    """
    low, high = DECAY_RATE if role == "a_log" else TIME_STEP
    if role == "a_log":
        uniform = (torch.arange(len(uniform), dtype=uniform.dtype, device=uniform.device) + uniform) / len(uniform)
    logarithm = math.log(low) + uniform * (math.log(high) - math.log(low))
    return logarithm if role == "a_log" else logarithm.exp().expm1().log()


def _vocabulary_table(entry: WeightEntry, table: Sequence[WeightEntry], seed: int) -> torch.Tensor:
    """`d2t` (offsets, int64) or `t2d` (mask, bool) of the random draft vocabulary of `seed`."""
    sizes = {item.name: item.shape[0] for item in table if item.kind != "float"}
    target_size, draft_size = sizes["t2d"], sizes["d2t"]
    order = torch.randperm(target_size, generator=_generator(seed, "draft_vocabulary", 0))
    ids = order[:draft_size].sort().values
    if entry.name == "d2t":
        return ids - torch.arange(draft_size)
    mask = torch.zeros(target_size, dtype=torch.bool)
    mask[ids] = True
    return mask
