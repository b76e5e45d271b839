"""A frozen Gated DeltaNet target: whole sequences in chunks, and decoding one position at a time.

    S_t = e^{g_t} S_{t-1} + u_t k_t^T,   u_t = beta_t (v_t - e^{g_t} S_{t-1} k_t),   o_t = S_t q_t

The state and all that changes it are float32. Conventions as in `specc.train.gated_delta`, with the sizes that the
family allows: more value heads than key heads, values of another width, no gate, no convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specc.models.geometry import AuxFeature, DeltaGeometry, Geometry
from specc.train.chunk import chunk_gated_delta_rule, l2_norm
from specc.train.draft.llama import Weights, of_layer, one, rms_norm, wide_logits


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer. `wide`: q, k, v and, with a gate, the gate; `narrow`: a and b, float32; `conv` [C,W]."""

    norm: Tensor
    wide: Tensor
    narrow: Tensor
    conv: Tensor | None
    conv_bias: Tensor | None
    a_log: Tensor
    dt_bias: Tensor
    o_norm: Tensor
    o: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What the delta rule reads: q, k [..,H,K] (normalised), v [..,HV,V], g and beta [..,HV], all float32."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


def _layer(weights: Weights, layer: int, delta: DeltaGeometry, dtype: torch.dtype) -> _Layer:
    def get(name: str) -> Tensor:
        found = of_layer(weights, name, layer)
        if found is None:
            raise KeyError(name)
        return found

    wide = [get(f"{letter}_proj") for letter in ("qkvg" if delta.use_gate else "qkv")]
    conv = of_layer(weights, "conv", layer)
    return _Layer(
        norm=get("input_layernorm"),
        wide=torch.cat(wide).to(dtype),
        narrow=torch.cat([get("a_proj"), get("b_proj")]).float(),
        conv=None if conv is None else conv[:, 0].float(),
        conv_bias=of_layer(weights, "conv_bias", layer),
        a_log=get("a_log").float(),
        dt_bias=get("dt_bias").float(),
        o_norm=get("o_norm"),
        o=get("o_proj").to(dtype),
        mlp_norm=get("post_attention_layernorm"),
        gate_up=torch.cat([get("gate_proj"), get("up_proj")]).to(dtype),
        down=get("down_proj").to(dtype),
    )


Recur = Callable[[int, _Inputs], Tensor]
"""Layer number and inputs -> outputs [..,HV,V] of the delta rule."""
Convolve = Callable[[int, _Layer, Tensor], Tensor]
"""Layer number, layer and q, k, v side by side [..,C] -> the same after convolution and SiLU, float32."""


class GatedDeltaTarget:
    """See `FrozenTarget`. `weights` in float32 by the names of `weight_table`; matrices are kept in `dtype`."""

    def __init__(self, geometry: Geometry, weights: Weights, dtype: torch.dtype) -> None:
        if geometry.delta is None or geometry.delta.grouped:
            raise ValueError("a Gated DeltaNet geometry with projections of their own is needed")
        self.geometry, self.delta, self.dtype = geometry, geometry.delta, dtype
        self.vocab_size, self.hidden_size = geometry.vocab_size, geometry.hidden_size
        self.num_layers = geometry.num_hidden_layers
        self.embedding = one(weights, "embed_tokens").to(dtype)
        tied = geometry.tie_word_embeddings
        self.head = self.embedding if tied else one(weights, "lm_head").to(dtype)
        self.norm = one(weights, "norm")
        self.layers = [_layer(weights, layer, self.delta, dtype) for layer in range(self.num_layers)]

    @torch.no_grad()
    def states(self, ids: Tensor, shown: Sequence[AuxFeature]) -> tuple[Tensor, Tensor]:
        """Features and final hidden states. ValueError for a feature that the model does not have."""
        for feature in shown:
            if feature.of not in ("output", "input", "readout"):
                known = "output, input and readout are what they can show"
                raise ValueError(f"recurrent layers have no `{feature.of}`: {known}")
        seen: dict[AuxFeature, Tensor] = {}

        def look(layer: int, before: Tensor, readout: Tensor, after: Tensor) -> None:
            for kind, value in (("input", before), ("readout", readout), ("output", after)):
                if AuxFeature(layer, kind) in shown:
                    seen[AuxFeature(layer, kind)] = value

        hidden = self.forward(ids, _convolved, _chunked, look)
        features = torch.cat([seen[one] for one in shown], -1) if shown else hidden.new_empty(*ids.shape, 0)
        return features, self.normed(hidden)

    def forward(
        self,
        ids: Tensor,
        convolve: Convolve,
        recur: Recur,
        look: Callable[[int, Tensor, Tensor, Tensor], None] = lambda layer, before, readout, after: None,
    ) -> Tensor:
        """Hidden states before the final norm [..,H] of ids [..]; `look` gets every layer's input, readout, output."""
        x = F.embedding(ids, self.embedding)
        for number, layer in enumerate(self.layers):
            before = x
            x, readout = self._mixed(number, layer, x, convolve, recur)
            inner = F.linear(self._rms(x, layer.mlp_norm), layer.gate_up)
            gate, up = inner.chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
            look(number, before, readout, x)
        return x

    def _mixed(self, number: int, layer: _Layer, x: Tensor, convolve: Convolve, recur: Recur) -> tuple[Tensor, Tensor]:
        """x [..,H] behind the recurrent part of a layer, and its readout [..,HV*V]."""
        d = self.delta
        key, value = d.num_key_heads * d.key_dim, d.num_value_heads * d.value_dim
        normed = self._rms(x, layer.norm)
        mixed = F.linear(normed, layer.wide)
        a, b = F.linear(normed.float(), layer.narrow).chunk(2, -1)
        g = -layer.a_log.exp() * F.softplus(a + layer.dt_bias)
        beta = b.sigmoid() * (2.0 if d.allow_neg_eigval else 1.0)
        q, k, v = convolve(number, layer, mixed[..., : 2 * key + value]).split([key, key, value], -1)
        q, k = (l2_norm(part.unflatten(-1, (d.num_key_heads, d.key_dim))) for part in (q, k))
        o = recur(number, _Inputs(q, k, v.unflatten(-1, (d.num_value_heads, d.value_dim)), g, beta))
        readout = rms_norm(o, layer.o_norm.float(), d.norm_eps).flatten(-2)
        if d.use_gate:
            readout = readout * F.silu(mixed[..., 2 * key + value :].float())
        readout = readout.to(x.dtype)
        return x + F.linear(readout, layer.o), readout

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x.float(), weight.float(), self.geometry.rms_norm_eps).to(x.dtype)

    def normed(self, hidden: Tensor) -> Tensor:
        """The final norm."""
        return self._rms(hidden, self.norm)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """[..,H] behind the final norm -> [..,V] in float32."""
        return wide_logits(hidden, self.head)

    def open(self, batch: int, capacity: int) -> GatedDeltaDecoding:
        """Room for `batch` texts; states have no limit of length, `capacity` is what the caller keeps to."""
        return GatedDeltaDecoding(self, batch, capacity)


def _convolved(number: int, layer: _Layer, mixed: Tensor) -> Tensor:
    """Causal depthwise convolution of [B,T,C] from position 0, then SiLU."""
    if layer.conv is None:
        return F.silu(mixed.float())
    width, length = layer.conv.shape[1], mixed.shape[1]
    padded = F.pad(mixed.float(), (0, 0, width - 1, 0))
    taps = [padded[:, tap : tap + length] * layer.conv[:, tap] for tap in range(width)]
    total = sum(taps[1:], taps[0])
    return F.silu(total if layer.conv_bias is None else total + layer.conv_bias)


def _chunked(number: int, i: _Inputs) -> Tensor:
    return chunk_gated_delta_rule(i.q, i.k, i.v, i.g, i.beta)[0]


class GatedDeltaDecoding:
    """See `Decoding`. `state` [layers,B,HV,V,K] and the convolutions' last inputs [layers,B,W-1,C], float32."""

    def __init__(self, target: GatedDeltaTarget, batch: int, capacity: int) -> None:
        d, device = target.delta, target.embedding.device
        self.target, self.attended = target, capacity
        shape = (target.num_layers, batch, d.num_value_heads, d.value_dim, d.key_dim)
        self.state = torch.zeros(shape, device=device)
        self.recent = torch.zeros(target.num_layers, batch, max(d.conv_size - 1, 0), d.conv_channels, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=device)
        self.rows = torch.arange(batch, device=device)

    @property
    def attended_sizes(self) -> tuple[int, ...]:
        """A state has one size."""
        return (self.attended,)

    @torch.no_grad()
    def prefill(self, ids: Tensor, lengths: Tensor, rows: Tensor | None = None) -> Tensor:
        """Begin texts anew; logits [n,V] behind each."""
        rows = self.rows if rows is None else rows
        columns = torch.arange(ids.shape[1], device=ids.device)
        padding = (columns >= lengths[:, None])[..., None]
        width = self.recent.shape[2]
        # Inputs of the last `width` positions of each text, zeros before its first one.
        wanted = (lengths[:, None] + torch.arange(width, device=ids.device))[..., None]

        def convolve(number: int, layer: _Layer, mixed: Tensor) -> Tensor:
            if width:
                padded = F.pad(mixed.float(), (0, 0, width, 0))
                recent = padded.gather(1, wanted.expand(-1, -1, padded.shape[-1]))
                self.recent[number].index_copy_(0, rows, recent)
            return _convolved(number, layer, mixed)

        def recur(number: int, i: _Inputs) -> Tensor:
            # A position that neither decays nor writes leaves the state as it is.
            g, beta = (part.masked_fill(padding, 0.0) for part in (i.g, i.beta))
            outputs, state = chunk_gated_delta_rule(i.q, i.k, i.v, g, beta)
            self.state[number].index_copy_(0, rows, state)
            return outputs

        hidden = self.target.forward(ids, convolve, recur)
        self.lengths.index_copy_(0, rows, lengths)
        last = hidden[torch.arange(len(lengths), device=ids.device), lengths - 1]
        return self.target.logits(self.target.normed(last))

    @torch.no_grad()
    def step(self, tokens: Tensor, active: Tensor | None = None) -> Tensor:
        """Append tokens [B]; logits [B,V]. A row that is not active goes on from its own waste until it begins anew."""
        hidden = self.target.forward(tokens, self._convolve, self._recur)
        self.lengths += 1 if active is None else active
        return self.target.logits(self.target.normed(hidden))

    def _convolve(self, number: int, layer: _Layer, mixed: Tensor) -> Tensor:
        if layer.conv is None:
            return F.silu(mixed.float())
        window = torch.cat([self.recent[number], mixed.float()[:, None]], 1)
        self.recent[number].copy_(window[:, 1:])
        total = (window * layer.conv.t()).sum(1)
        return F.silu(total if layer.conv_bias is None else total + layer.conv_bias)

    def _recur(self, number: int, i: _Inputs) -> Tensor:
        """One position. The state is read once, for k and q together: S q = e^g S' q + u (k . q)."""
        state = self.state[number]
        groups = state.shape[1] // i.k.shape[1]
        q, k = (part.repeat_interleave(groups, 1) for part in (i.q * i.q.shape[-1] ** -0.5, i.k))
        decay = i.g.exp()[..., None]
        read = state @ torch.stack([k, q], -1)
        u = i.beta[..., None] * (i.v - decay * read[..., 0])
        state.mul_(decay[..., None])
        state.flatten(0, 1).baddbmm_(u.flatten(0, 1)[..., None], k.flatten(0, 1)[:, None])
        return decay * read[..., 1] + u * (k * q).sum(-1, keepdim=True)
