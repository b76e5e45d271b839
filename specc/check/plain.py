"""A transformer in twenty lines: the whole text at once, no cache, no tree. What every decoding step is judged by.

Independent of the IR on purpose: it shares only the names and shapes of weights with the compiler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specc.models.geometry import Geometry, RopeScaling

Weights = Mapping[str, Tensor | Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class PlainOutput:
    """logits [R,T,V]; K (after rope) and V rows per layer [R,T,Hkv,D]; hidden states before and after each layer."""

    logits: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def _frequency(number: int, head_dim: int, theta: float, scaling: RopeScaling | None) -> float:
    """Inverse frequency of rotary pair `number` (RoFormer; llama3 scaling as published with Llama 3.1)."""
    frequency = theta ** (-2.0 * number / head_dim)
    if scaling is None:
        return frequency
    wavelength = 2 * math.pi / frequency
    original = scaling.original_max_position_embeddings
    if wavelength < original / scaling.high_freq_factor:
        return frequency
    if wavelength > original / scaling.low_freq_factor:
        return frequency / scaling.factor
    smooth = (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def rotate(x: Tensor, geometry: Geometry) -> Tensor:
    """Rotary embedding of x [R,T,H,D]: element i and element i + D/2 are the real and imaginary part of a pair."""
    half = geometry.head_dim // 2
    scaling, theta = geometry.rope_scaling, geometry.rope_theta
    frequencies = [_frequency(i, geometry.head_dim, theta, scaling) for i in range(half)]
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * torch.tensor(frequencies, dtype=x.dtype)
    pair = torch.complex(x[..., :half], x[..., half:])
    turned = pair * torch.polar(torch.ones_like(angle), angle)[None, :, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dim."""
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _at(weights: Weights, prefix: str, name: str, layer: int) -> Tensor:
    value = weights[prefix + name]
    return value if isinstance(value, Tensor) else value[layer]


def _project(x: Tensor, weights: Weights, prefix: str, name: str, layer: int) -> Tensor:
    out = x @ _at(weights, prefix, name, layer).T
    return out + _at(weights, prefix, f"{name}_bias", layer) if f"{prefix}{name}_bias" in weights else out


def attention(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Causal attention; q [R,T,Hq,D] over k, v [R,T,Hkv,D]; position p sees p - window + 1 … p (0: all)."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("rthd,rshd->rhts", q, k) / math.sqrt(q.shape[-1])
    step = torch.arange(q.shape[1])
    distance = step[:, None] - step[None, :]
    hidden = (distance < 0) | (distance >= window if window else distance < 0)
    shares = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("rhts,rshd->rthd", shares, v).flatten(2)


def plain_forward(geometry: Geometry, weights: Weights, ids: Tensor, prefix: str = "", window: int = 0) -> PlainOutput:
    """The model on texts ids int64 [R,T], in the weights' dtype. `prefix` is that of the weights' names."""
    embedding = weights[prefix + "embed_tokens"]
    assert isinstance(embedding, Tensor)
    x = embedding[ids]
    shape, eps = (*ids.shape, -1, geometry.head_dim), geometry.rms_norm_eps
    keys, values, inputs, outputs = [], [], [], []
    for layer in range(geometry.num_hidden_layers):
        inputs.append(x)
        normed = rms_norm(x, _at(weights, prefix, "input_layernorm", layer), eps)
        q, k, v = (_project(normed, weights, prefix, f"{name}_proj", layer).reshape(shape) for name in "qkv")
        if geometry.qk_norm:
            q = rms_norm(q, _at(weights, prefix, "q_norm", layer), eps)
            k = rms_norm(k, _at(weights, prefix, "k_norm", layer), eps)
        q, k = rotate(q, geometry), rotate(k, geometry)
        x = x + _project(attention(q, k, v, window), weights, prefix, "o_proj", layer)
        normed = rms_norm(x, _at(weights, prefix, "post_attention_layernorm", layer), eps)
        gate = _project(normed, weights, prefix, "gate_proj", layer)
        up = _project(normed, weights, prefix, "up_proj", layer)
        x = x + _project(gate / (1 + (-gate).exp()) * up, weights, prefix, "down_proj", layer)
        keys.append(k)
        values.append(v)
        outputs.append(x)
    final = weights[prefix + "norm"]
    head = embedding if geometry.tie_word_embeddings else weights[prefix + "lm_head"]
    assert isinstance(final, Tensor)
    assert isinstance(head, Tensor)
    return PlainOutput(rms_norm(x, final, eps) @ head.T, tuple(keys), tuple(values), tuple(inputs), tuple(outputs))
