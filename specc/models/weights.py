"""The weights of each target family and of the EAGLE-3 head: logical names, shapes, checkpoint names.

The logical names are what the IR, the generated modules and the tests use; the checkpoint names are those of
public checkpoints. `lm_head` is absent when the embeddings are tied: the head then reads `embed_tokens`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from specc.models.geometry import Geometry

Kind = Literal["float", "float32", "int64", "bool"]
Shape = tuple[int, ...]

_POSITION = re.compile(r"^l\d+_")


class StoredPart(NamedTuple):
    """One checkpoint tensor of a weight: its name, the other names it may have, and its shape."""

    name: str
    aliases: tuple[str, ...]
    shape: Shape


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """One logical weight.

    `shape` is the shape of one tensor, [out_features, in_features] for a linear layer. `sources` are the checkpoint
    tensors that it is made of, concatenated along dim 0; `rows` says how many rows each has (empty: one source).
    Where `per_layer` is true they hold `{layer}`, and there is one tensor for each of the decoder layers first_layer,
    first_layer + layer_step, …. With `experts` > 0 they hold `{expert}` too, and a tensor is the sources of expert 0,
    then those of expert 1, and so on. `aliases` are other names of a weight with one source. `optional` weights may be
    absent from a checkpoint. `kind` other than `float` is a table that keeps its type, whatever the
    model computes in.
    """

    name: str
    shape: Shape
    sources: tuple[str, ...]
    per_layer: bool
    aliases: tuple[str, ...] = ()
    optional: bool = False
    kind: Kind = "float"
    rows: tuple[int, ...] = ()
    first_layer: int = 0
    layer_step: int = 1
    experts: int = 0

    @property
    def checkpoint_name(self) -> str:
        """The name, or template, of the first tensor."""
        return self.sources[0]

    @property
    def role(self) -> str:
        """The name without the position in the period: `q_proj` of `l3_q_proj`."""
        return _POSITION.sub("", self.name)

    def layers(self, num_layers: int) -> range:
        """The decoder layers, of `num_layers`, that have a tensor; 0 stands for all where there is only one."""
        return range(self.first_layer, num_layers, self.layer_step) if self.per_layer else range(1)

    def parts(self, layer: int) -> tuple[StoredPart, ...]:
        """What the tensor of one decoder layer is concatenated from, in order."""

        def named(template: str, expert: int) -> str:
            return template.replace("{layer}", str(layer)).replace("{expert}", str(expert))

        rows = self.rows or (self.shape[0],)
        return tuple(
            StoredPart(named(source, expert), tuple(named(alias, expert) for alias in self.aliases), (count, *rest))
            for rest in (self.shape[1:],)
            for expert in range(max(self.experts, 1))
            for source, count in zip(self.sources, rows, strict=True)
        )

    def checkpoint_names(self, num_layers: int) -> tuple[str, ...]:
        """All its tensors in the checkpoint of a model of `num_layers` decoder layers."""
        return tuple(part.name for layer in self.layers(num_layers) for part in self.parts(layer))


@dataclass(frozen=True, slots=True)
class Naming:
    """Where a checkpoint layout keeps things: module names within a decoder layer, and the embeddings."""

    embed_tokens: str
    input_norm: str
    mlp_norm: str
    attention: str
    delta: str


HUGGING_FACE = Naming(
    "model.embed_tokens.weight", "input_layernorm", "post_attention_layernorm", "self_attn", "linear_attn"
)
FLASH_LINEAR_ATTENTION = Naming("model.embeddings.weight", "attn_norm", "mlp_norm", "attn", "attn")


def weight_table(geometry: Geometry) -> tuple[WeightEntry, ...]:
    """The weights of a target, in the order in which a forward pass reads them.

    The layouts are those of the Hugging Face classes LlamaForCausalLM, Qwen3ForCausalLM and Qwen3NextForCausalLM
    (experts one by one, as `save_pretrained` writes them), and of flash-linear-attention's GatedDeltaNetForCausalLM;
    openPangu-Embedded checkpoints have the names of llama with attention biases. A stack that repeats with period
    P > 1 has its weights once per position j, named `l{j}_…`.
    """
    hidden, vocab = geometry.hidden_size, geometry.vocab_size
    naming = FLASH_LINEAR_ATTENTION if geometry.family == "gated_deltanet" else HUGGING_FACE
    entries = [WeightEntry("embed_tokens", (vocab, hidden), (naming.embed_tokens,), per_layer=False)]
    period = geometry.period
    for position in range(period):
        place = _Place(f"l{position}_" if period > 1 else "", "model.layers.{layer}.", position, period, naming)
        entries += _decoder_layer(geometry, place, hidden, position)
    entries.append(WeightEntry("norm", (hidden,), ("model.norm.weight",), per_layer=False))
    if not geometry.tie_word_embeddings:
        entries.append(WeightEntry("lm_head", (vocab, hidden), ("lm_head.weight",), per_layer=False))
    return tuple(entries)


def eagle3_weight_table(
    geometry: Geometry,
    *,
    draft_vocab_size: int,
    target_vocab_size: int | None = None,
    features: int | None = None,
) -> tuple[WeightEntry, ...]:
    """The weights of a public EAGLE-3 head (arXiv:2503.01840, section 3; layout of the authors' checkpoints).

    `geometry` is the head's own (its decoder layer and norms). The target's aux features [features] pass through
    `fc` (None: three of the head's hidden_size, as published heads have them); `input_layernorm`
    norms the token embedding and `hidden_norm` the feature, and q, k and v read the two concatenated **in that order**
    (2 * hidden_size). `lm_head` covers the draft vocabulary. `d2t` is an offset table (target id = draft id +
    d2t[draft id]), `t2d` a boolean mask over the target's ids; both are absent when the vocabularies are the same, as
    is `embed_tokens` when the head uses the target's embeddings.
    """
    hidden, head_vocab = geometry.hidden_size, draft_vocab_size
    target_vocab = target_vocab_size or geometry.vocab_size
    width = 3 * hidden if features is None else features
    same = head_vocab == target_vocab
    entries = [
        WeightEntry("embed_tokens", (target_vocab, hidden), ("embed_tokens.weight",), per_layer=False, optional=True),
        WeightEntry("fc", (hidden, width), ("fc.weight",), per_layer=False),
        _eagle3_entry("hidden_norm", (hidden,), "hidden_norm.weight"),
    ]
    for entry in _decoder_layer(geometry, _Place("", "", 0, 0, HUGGING_FACE), 2 * hidden, 0):
        entries.append(_eagle3_entry(entry.name, entry.shape, entry.checkpoint_name))
    entries += [
        WeightEntry("norm", (hidden,), ("norm.weight",), per_layer=False),
        WeightEntry("lm_head", (head_vocab, hidden), ("lm_head.weight",), per_layer=False),
        WeightEntry("d2t", (head_vocab,), ("d2t",), per_layer=False, optional=same, kind="int64"),
        WeightEntry("t2d", (target_vocab,), ("t2d",), per_layer=False, optional=same, kind="bool"),
    ]
    return tuple(entries)


def _eagle3_entry(name: str, shape: Shape, suffix: str) -> WeightEntry:
    """A weight of the head's only layer: `midlayer.` in the authors' files, `layers.0.` in some others."""
    return WeightEntry(name, shape, (f"midlayer.{suffix}",), per_layer=False, aliases=(f"layers.0.{suffix}",))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the weights of one position of the period go; step 0: a single layer, not numbered."""

    prefix: str
    source: str
    first_layer: int
    layer_step: int
    naming: Naming

    def entry(
        self, name: str, shape: Shape, *suffixes: str, rows: tuple[int, ...] = (), experts: int = 0
    ) -> WeightEntry:
        return WeightEntry(
            self.prefix + name,
            shape,
            tuple(self.source + suffix for suffix in suffixes),
            per_layer=self.layer_step > 0,
            rows=rows,
            first_layer=self.first_layer,
            layer_step=self.layer_step or 1,
            experts=experts,
        )

    def linear(self, name: str, out_size: int, in_size: int, module: str, bias: bool = False) -> Iterator[WeightEntry]:
        """A linear layer whose checkpoint module is `module`."""
        yield self.entry(name, (out_size, in_size), f"{module}.weight")
        if bias:
            yield self.entry(f"{name}_bias", (out_size,), f"{module}.bias")


def _decoder_layer(g: Geometry, place: _Place, qkv_input: int, layer: int) -> Iterator[WeightEntry]:
    """The weights of one decoder layer; `qkv_input` is the width that q, k and v read."""
    kind = g.layers[layer]
    yield place.entry("input_layernorm", (g.hidden_size,), f"{place.naming.input_norm}.weight")
    yield from _delta(g, place) if kind.mixer == "delta" else _attention(g, place, qkv_input)
    yield place.entry("post_attention_layernorm", (g.hidden_size,), f"{place.naming.mlp_norm}.weight")
    if kind.moe:
        yield from _mixture_of_experts(g, place)
        return
    yield from place.linear("gate_proj", g.intermediate_size, g.hidden_size, "mlp.gate_proj", g.mlp_bias)
    yield from place.linear("up_proj", g.intermediate_size, g.hidden_size, "mlp.up_proj", g.mlp_bias)
    yield from place.linear("down_proj", g.hidden_size, g.intermediate_size, "mlp.down_proj", g.mlp_bias)


def _attention(g: Geometry, place: _Place, qkv_input: int) -> Iterator[WeightEntry]:
    """Softmax attention. With a gate, q_proj has [q, gate] of 2 * head_dim rows for every head."""
    module = place.naming.attention
    query, key = g.num_attention_heads * g.head_dim, g.num_key_value_heads * g.head_dim
    yield from place.linear("q_proj", query * (1 + g.gated_attention), qkv_input, f"{module}.q_proj", g.qkv_bias)
    yield from place.linear("k_proj", key, qkv_input, f"{module}.k_proj", g.qkv_bias)
    yield from place.linear("v_proj", key, qkv_input, f"{module}.v_proj", g.qkv_bias)
    if g.qk_norm:
        yield place.entry("q_norm", (g.head_dim,), f"{module}.q_norm.weight")
        yield place.entry("k_norm", (g.head_dim,), f"{module}.k_norm.weight")
    yield from place.linear("o_proj", g.hidden_size, query, f"{module}.o_proj", g.o_bias)


def _delta(g: Geometry, place: _Place) -> Iterator[WeightEntry]:
    """Gated DeltaNet, grouped (qwen3_next: two interleaved input projections) or not (flash-linear-attention)."""
    d, module = g.delta, place.naming.delta
    if d is None:
        raise ValueError("a geometry with delta layers needs `delta`")
    key, value, heads = d.num_key_heads * d.key_dim, d.num_value_heads * d.value_dim, d.num_value_heads
    if d.grouped:
        yield from place.linear("in_proj_qkvz", 2 * key + 2 * value, g.hidden_size, f"{module}.in_proj_qkvz")
        yield from place.linear("in_proj_ba", 2 * heads, g.hidden_size, f"{module}.in_proj_ba")
    else:
        sizes = {"q": key, "k": key, "v": value, "a": heads, "b": heads} | ({"g": value} if d.use_gate else {})
        for letter, size in sizes.items():
            yield from place.linear(f"{letter}_proj", size, g.hidden_size, f"{module}.{letter}_proj")
    convolutions = ("conv1d",) if d.grouped else ("q_conv1d", "k_conv1d", "v_conv1d")
    rows = (d.conv_channels,) if d.grouped else (key, key, value)
    for name, suffix, shape in (
        ("conv", "weight", (d.conv_channels, 1, d.conv_size)),
        ("conv_bias", "bias", (d.conv_channels,)),
    ):
        if d.conv_size and (name == "conv" or d.conv_bias):
            yield place.entry(name, shape, *(f"{module}.{item}.{suffix}" for item in convolutions), rows=rows)
    yield place.entry("a_log", (heads,), f"{module}.A_log")
    yield place.entry("dt_bias", (heads,), f"{module}.dt_bias")
    yield place.entry("o_norm", (d.value_dim,), f"{module}.{'norm' if d.grouped else 'o_norm'}.weight")
    yield from place.linear("o_proj", g.hidden_size, value, f"{module}.{'out_proj' if d.grouped else 'o_proj'}")


def _mixture_of_experts(g: Geometry, place: _Place) -> Iterator[WeightEntry]:
    """Router, experts (all in one matrix, expert after expert) and the gated shared expert."""
    moe, hidden = g.moe, g.hidden_size
    if moe is None:
        raise ValueError("a geometry with mixtures of experts needs `moe`")
    count, width, shared = moe.num_experts, moe.intermediate_size, moe.shared_intermediate_size
    expert = "mlp.experts.{expert}."
    yield from place.linear("router", count, hidden, "mlp.gate")
    yield place.entry(
        "experts_gate_up",
        (count * 2 * width, hidden),
        f"{expert}gate_proj.weight",
        f"{expert}up_proj.weight",
        rows=(width, width),
        experts=count,
    )
    yield place.entry(
        "experts_down", (count * hidden, width), f"{expert}down_proj.weight", rows=(hidden,), experts=count
    )
    yield from place.linear("shared_gate_proj", shared, hidden, "mlp.shared_expert.gate_proj")
    yield from place.linear("shared_up_proj", shared, hidden, "mlp.shared_expert.up_proj")
    yield from place.linear("shared_down_proj", hidden, shared, "mlp.shared_expert.down_proj")
    yield from place.linear("shared_expert_gate", 1, hidden, "mlp.shared_expert_gate")
