"""A frozen target of the llama layout (llama, qwen3, pangu): whole sequences, and decoding over a static cache.

The arithmetic is that of transformers' LlamaForCausalLM and Qwen3ForCausalLM. Rotation and norms are computed in
float32 whatever the type of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from specc.models.geometry import AuxFeature, Geometry, RopeScaling

ATTENDED_STEP = 128
"""Columns of context that a step reads are a multiple of this, or the whole cache."""
CAPACITY_STEP = 16
# Not cuDNN's: it plans anew for every shape, and prompts have many.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Weights = Mapping[str, Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer; q, k, v and gate, up in one matrix each. Biases and head norms may be absent."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


def one(weights: Weights, name: str) -> Tensor:
    """A weight that the model has once."""
    value = weights[name]
    if isinstance(value, tuple):
        raise ValueError(f"`{name}` is a weight of every layer")
    return value


def of_layer(weights: Weights, name: str, layer: int) -> Tensor | None:
    """A layer's weight, or None where the model has no such weight."""
    value = weights.get(name)
    return value[layer] if isinstance(value, tuple) else value


def _joined(weights: Weights, names: Sequence[str], layer: int) -> Tensor | None:
    """The layer's weights one below the other, or None where the model has none of them."""
    parts = [part for name in names if (part := of_layer(weights, name, layer)) is not None]
    return torch.cat(parts) if parts else None


def _layer(weights: Weights, layer: int) -> _Layer:
    def needed(*names: str) -> Tensor:
        joined = _joined(weights, names, layer)
        if joined is None:
            raise KeyError(names[0])
        return joined

    return _Layer(
        input_norm=needed("input_layernorm"),
        qkv=needed("q_proj", "k_proj", "v_proj"),
        qkv_bias=_joined(weights, ("q_proj_bias", "k_proj_bias", "v_proj_bias"), layer),
        q_norm=of_layer(weights, "q_norm", layer),
        k_norm=of_layer(weights, "k_norm", layer),
        o=needed("o_proj"),
        o_bias=of_layer(weights, "o_proj_bias", layer),
        mlp_norm=needed("post_attention_layernorm"),
        gate_up=needed("gate_proj", "up_proj"),
        gate_up_bias=_joined(weights, ("gate_proj_bias", "up_proj_bias"), layer),
        down=needed("down_proj"),
        down_bias=of_layer(weights, "down_proj_bias", layer),
    )


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / rms(x) * weight over the last dimension."""
    return F.rms_norm(x, weight.shape, weight, epsilon)


def wide_logits(hidden: Tensor, head: Tensor) -> Tensor:
    """hidden [..,H] times head [V,H], in float32: rounded logits have ties, and a greedy text must not depend on them.

    On a GPU the product of half-precision factors is accumulated and returned in float32.
    """
    if hidden.dtype == torch.float32 and head.dtype == torch.float32:
        return F.linear(hidden, head)
    if hidden.is_cuda:
        flat = torch.mm(hidden.reshape(-1, hidden.shape[-1]), head.t(), out_dtype=torch.float32)
        return flat.unflatten(0, hidden.shape[:-1])
    return F.linear(hidden.float(), head.float())


def inverse_frequencies(dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Angles per position [dim/2], float32, with llama 3's scaling where given (long waves slower by `factor`)."""
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if scaling is None:
        return frequencies
    original = scaling.original_max_position_embeddings
    waves = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((original / waves - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


def rotation(positions: int, geometry: Geometry, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and signed sin [positions, D] of rope: x rotated is x * cos + (x with its halves swapped) * sin."""
    inverse = inverse_frequencies(geometry.head_dim, geometry.rope_theta, geometry.rope_scaling)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * inverse
    cos = torch.cat([angles.cos(), angles.cos()], -1)
    sin = torch.cat([-angles.sin(), angles.sin()], -1)
    return cos.to(device), sin.to(device)


class LlamaTarget:
    """See `FrozenTarget`. `weights` by the names of `weight_table`, all on one device and of one type."""

    def __init__(self, geometry: Geometry, weights: Weights) -> None:
        self.geometry = geometry
        self.vocab_size, self.hidden_size = geometry.vocab_size, geometry.hidden_size
        self.num_layers = geometry.num_hidden_layers
        self.embedding = one(weights, "embed_tokens")
        self.head = self.embedding if geometry.tie_word_embeddings else one(weights, "lm_head")
        self.norm = one(weights, "norm")
        self.layers = [_layer(weights, layer) for layer in range(geometry.num_hidden_layers)]
        self._tables = rotation(0, geometry, self.embedding.device)

    def tables(self, positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin of at least that many positions."""
        if self._tables[0].shape[0] < positions:
            self._tables = rotation(positions, self.geometry, self.embedding.device)
        return self._tables

    @torch.no_grad()
    def states(self, ids: Tensor, shown: Sequence[AuxFeature]) -> tuple[Tensor, Tensor]:
        """Features and final hidden states. ValueError for a feature that the model does not have."""
        for feature in shown:
            if feature.of not in ("output", "input"):
                raise ValueError(f"attention layers have no `{feature.of}`: output and input are what they can show")
        seen: dict[AuxFeature, Tensor] = {}

        def look(layer: int, before: Tensor, after: Tensor) -> None:
            for kind, value in (("input", before), ("output", after)):
                if AuxFeature(layer, kind) in shown:
                    seen[AuxFeature(layer, kind)] = value.unflatten(0, ids.shape)

        hidden = self.forward(ids, lambda layer, k, v: None, look)
        features = torch.cat([seen[one] for one in shown], -1) if shown else hidden.new_empty(*ids.shape, 0)
        return features, self.normed(hidden).unflatten(0, ids.shape)

    @sdpa_kernel(BACKENDS)
    def forward(
        self,
        ids: Tensor,
        keep: Callable[[int, Tensor, Tensor], None],
        look: Callable[[int, Tensor, Tensor], None] = lambda layer, before, after: None,
    ) -> Tensor:
        """Hidden states before the final norm [B*T,H] of ids [B,T], from position 0. `keep` gets every layer's k and v
        [B,T,Hkv,D], `look` the residual stream before and behind it [B*T,H].
        """
        batch, length = ids.shape
        cos, sin = (table[:length, None] for table in self.tables(length))
        groups = self.geometry.num_attention_heads // self.geometry.num_key_value_heads
        x = F.embedding(ids.flatten(), self.embedding)
        for number, layer in enumerate(self.layers):

            def attend(q: Tensor, k: Tensor, v: Tensor, number: int = number) -> Tensor:
                keep(number, k, v)
                # Keys are spread over the query heads: the fast kernels for float32 know no grouped heads.
                heads = [q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)]
                q, k, v = (part.transpose(1, 2) for part in heads)
                return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

            before = x
            x = self.block(layer, x, (batch, length), (cos, sin), attend)
            look(number, before, x)
        return x

    def block(
        self, layer: _Layer, x: Tensor, shape: tuple[int, int], tables: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """One decoder layer, x [B*T,H]; `attend` maps q [B,T,Hq,D], k, v [B,T,Hkv,D] to [B,T,Hq,D]."""
        g = self.geometry
        heads, kv_heads = g.num_attention_heads, g.num_key_value_heads
        qkv = F.linear(rms_norm(x, layer.input_norm, g.rms_norm_eps), layer.qkv, layer.qkv_bias)
        parts = qkv.view(*shape, heads + 2 * kv_heads, g.head_dim)
        qk, v = parts.split([heads + kv_heads, kv_heads], 2)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split([heads, kv_heads], 2)
            normed = [rms_norm(q, layer.q_norm, g.rms_norm_eps), rms_norm(k, layer.k_norm, g.rms_norm_eps)]
            qk = torch.cat(normed, 2)
        cos, sin = tables
        qk = (qk * cos + qk.roll(g.head_dim // 2, -1) * sin).to(x.dtype)
        q, k = qk.split([heads, kv_heads], 2)
        x = _added(x, attend(q, k, v).reshape(x.shape[0], -1), layer.o, layer.o_bias)
        inner = F.linear(rms_norm(x, layer.mlp_norm, g.rms_norm_eps), layer.gate_up, layer.gate_up_bias)
        gate, up = inner.chunk(2, -1)
        return _added(x, F.silu(gate) * up, layer.down, layer.down_bias)

    def normed(self, hidden: Tensor) -> Tensor:
        """The final norm."""
        return rms_norm(hidden, self.norm, self.geometry.rms_norm_eps)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """[..,H] behind the final norm -> [..,V] in float32."""
        return wide_logits(hidden, self.head)

    def open(self, batch: int, capacity: int) -> LlamaDecoding:
        """Room for texts of at most `capacity` tokens."""
        return LlamaDecoding(self, batch, capacity)


def _added(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x + y W^T + bias."""
    total = torch.addmm(x, y, weight.t())
    return total if bias is None else total + bias


class LlamaDecoding:
    """See `Decoding`. The cache is [layers, 2, B, capacity, Hkv, D]; row b, column c holds position c of text b."""

    def __init__(self, target: LlamaTarget, batch: int, capacity: int) -> None:
        g, like = target.geometry, target.embedding
        # Kernels want masks whose rows are aligned.
        capacity = -(-capacity // CAPACITY_STEP) * CAPACITY_STEP
        # Zeros, not memory as it comes: columns that are not written yet are read, with weight 0.
        shape = (g.num_hidden_layers, 2, batch, capacity, g.num_key_value_heads, g.head_dim)
        self.cache = like.new_zeros(shape)
        self.target, self.attended = target, capacity
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=like.device)
        self.rows = torch.arange(batch, device=like.device)
        self.columns = torch.arange(capacity, device=like.device)
        self.tables = target.tables(capacity)

    @property
    def attended_sizes(self) -> tuple[int, ...]:
        """Columns that a step may read."""
        capacity = self.cache.shape[3]
        return (*range(ATTENDED_STEP, capacity, ATTENDED_STEP), capacity)

    @torch.no_grad()
    def prefill(self, ids: Tensor, lengths: Tensor, rows: Tensor | None = None) -> Tensor:
        """Begin texts anew; logits [n,V] behind each."""
        rows = self.rows if rows is None else rows
        width = ids.shape[1]

        def keep(layer: int, k: Tensor, v: Tensor) -> None:
            self.cache[layer, 0, :, :width].index_copy_(0, rows, k)
            self.cache[layer, 1, :, :width].index_copy_(0, rows, v)

        hidden = self.target.forward(ids, keep).unflatten(0, ids.shape)
        self.lengths.index_copy_(0, rows, lengths)
        last = hidden[torch.arange(len(lengths), device=ids.device), lengths - 1]
        return self.target.logits(self.target.normed(last))

    @torch.no_grad()
    @sdpa_kernel(BACKENDS)
    def step(self, tokens: Tensor, active: Tensor | None = None) -> Tensor:
        """Append tokens [B]; logits [B,V]."""
        g, batch = self.target.geometry, len(tokens)
        kv_heads, seen = g.num_key_value_heads, self.attended
        cos, sin = (table[self.lengths][:, None, None] for table in self.tables)
        visible = (self.columns[:seen] <= self.lengths[:, None])[:, None, None]
        bias = torch.zeros_like(visible, dtype=self.cache.dtype).masked_fill(~visible, -torch.inf)
        x = F.embedding(tokens, self.target.embedding)
        for number, layer in enumerate(self.target.layers):

            def attend(q: Tensor, k: Tensor, v: Tensor, number: int = number) -> Tensor:
                keys, values = self.cache[number]
                keys.index_put_((self.rows, self.lengths), k[:, 0])
                values.index_put_((self.rows, self.lengths), v[:, 0])
                # The query heads of one key head are the rows of one small problem.
                grouped = q.view(batch, kv_heads, -1, g.head_dim)
                k, v = (part[:, :seen].transpose(1, 2) for part in (keys, values))
                return F.scaled_dot_product_attention(grouped, k, v, attn_mask=bias)

            x = self.target.block(layer, x, (batch, 1), (cos, sin), attend)
        self.lengths += 1 if active is None else active
        return self.target.logits(self.target.normed(x))
