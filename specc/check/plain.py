"""A decoder in a few lines: the whole text at once, no cache, no tree. What every decoding step is judged by.

Attention layers are here, recurrent layers and mixtures of experts in `plain_delta`. Independent of the IR on purpose:
it shares only the names and shapes of weights with the compiler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specc.check.plain_delta import Named, delta_layer, mixture_of_experts, silu
from specc.models.geometry import Geometry, RopeScaling

Weights = Mapping[str, Tensor | Sequence[Tensor]]
NOTHING = torch.zeros(0)


@dataclass(frozen=True, slots=True)
class PlainOutput:
    """logits [R,T,V], and one entry per layer: hidden states before and after it [R,T,H]; of attention layers K (after
    rope) and V rows [R,T,Hkv,D]; of recurrent layers the inputs of the convolution [R,T,C], the state after every
    token [R,T,HV,V,K] and what is read out of it [R,T,HV V]. What a layer does not have is an empty tensor."""

    logits: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    mixed: tuple[Tensor, ...] = ()
    states: tuple[Tensor, ...] = ()
    readouts: tuple[Tensor, ...] = ()


def _frequency(number: int, rotary_dim: int, theta: float, scaling: RopeScaling | None) -> float:
    """Inverse frequency of rotary pair `number` (RoFormer; llama3 scaling as published with Llama 3.1)."""
    frequency = theta ** (-2.0 * number / rotary_dim)
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
    """Rotary embedding of x [R,T,H,D]: of its first `rotary_dim` elements, i and i + half are the real and imaginary
    part of a pair; the others stay as they are."""
    rotary = geometry.rotary_dim or geometry.head_dim
    half = rotary // 2
    frequencies = [_frequency(i, rotary, geometry.rope_theta, geometry.rope_scaling) for i in range(half)]
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * torch.tensor(frequencies, dtype=x.dtype)
    pair = torch.complex(x[..., :half], x[..., half:rotary])
    turned = pair * torch.polar(torch.ones_like(angle), angle)[None, :, None]
    return torch.cat((turned.real, turned.imag, x[..., rotary:]), dim=-1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dim."""
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


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


@dataclass(slots=True)
class _Stack:
    """The layers under way: what each leaves behind."""

    geometry: Geometry
    window: int
    kept: dict[str, list[Tensor]] = field(default_factory=dict)

    def keep(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.kept.setdefault(name, []).append(value)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """A norm whose weight may be an offset (qwen3_next: from 1)."""
        return rms_norm(x, weight + self.geometry.norm_offset, self.geometry.rms_norm_eps)

    def attend(self, x: Tensor, w: Named) -> Tensor:
        """x [R,T,H] -> what softmax attention adds; a gate per head and element where the model has one."""
        geometry, shape = self.geometry, (*x.shape[:2], -1, self.geometry.head_dim)
        q, gate = w.project(x, "q_proj").reshape(shape), None
        if geometry.gated_attention:
            q, gate = q[:, :, 0::2], q[:, :, 1::2].flatten(2)
        k, v = (w.project(x, name).reshape(shape) for name in ("k_proj", "v_proj"))
        if geometry.qk_norm:
            q, k = self.norm(q, w["q_norm"]), self.norm(k, w["k_norm"])
        q, k = rotate(q, geometry), rotate(k, geometry)
        self.keep(keys=k, values=v, mixed=NOTHING, states=NOTHING, readouts=NOTHING)
        attended = attention(q, k, v, self.window)
        return w.project(attended if gate is None else attended / (1 + (-gate).exp()), "o_proj")

    def recur(self, x: Tensor, w: Named) -> Tensor:
        """x [R,T,H] -> what a Gated DeltaNet layer adds."""
        delta = self.geometry.delta
        assert delta is not None
        out, mixed, states, readouts = delta_layer(x, w, delta)
        self.keep(keys=NOTHING, values=NOTHING, mixed=mixed, states=states, readouts=readouts)
        return out

    def layer(self, x: Tensor, w: Named, number: int) -> Tensor:
        """One decoder layer."""
        kind = self.geometry.layers[number]
        normed = self.norm(x, w["input_layernorm"])
        middle = x + (self.recur(normed, w) if kind.mixer == "delta" else self.attend(normed, w))
        normed = self.norm(middle, w["post_attention_layernorm"])
        moe = self.geometry.moe if kind.moe else None
        if moe is not None:
            out = middle + mixture_of_experts(normed, w, moe)
        else:
            out = middle + w.project(silu(w.project(normed, "gate_proj")) * w.project(normed, "up_proj"), "down_proj")
        self.keep(inputs=x, outputs=out)
        return out


def plain_forward(geometry: Geometry, weights: Weights, ids: Tensor, prefix: str = "", window: int = 0) -> PlainOutput:
    """The model on texts ids int64 [R,T], in the weights' dtype. `prefix` is that of the weights' names."""
    embedding, final = weights[prefix + "embed_tokens"], weights[prefix + "norm"]
    head = embedding if geometry.tie_word_embeddings else weights[prefix + "lm_head"]
    assert isinstance(embedding, Tensor)
    assert isinstance(final, Tensor)
    assert isinstance(head, Tensor)
    stack, x, period = _Stack(geometry, window), embedding[ids], geometry.period
    for number in range(geometry.num_hidden_layers):
        place = f"l{number % period}_" if period > 1 else ""
        x = stack.layer(x, Named(weights, prefix + place, number // period), number)
    kept = {name: tuple(values) for name, values in stack.kept.items()}
    return PlainOutput(stack.norm(x, final) @ head.T, **kept)
