"""The weights of each target family and of the EAGLE-3 head: logical names, shapes, checkpoint names.

The logical names are what the IR, the generated modules and the tests use; the checkpoint names are those of
public checkpoints. `lm_head` is absent when the embeddings are tied: the head then reads `embed_tokens`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from specc.models.geometry import Geometry

Kind = Literal["float", "int64", "bool"]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """One logical weight.

    `shape` is the shape of one tensor, [out_features, in_features] for a linear layer. `checkpoint_name`
    holds `{layer}` when `per_layer` is true; there is then one tensor per decoder layer. `aliases` are other
    names that public checkpoints use. `optional` weights may be absent from a checkpoint. `kind` other than
    `float` is an integer or boolean table that keeps its type.
    """

    name: str
    shape: Shape
    checkpoint_name: str
    per_layer: bool
    aliases: tuple[str, ...] = ()
    optional: bool = False
    kind: Kind = "float"

    def checkpoint_names(self, num_layers: int) -> tuple[str, ...]:
        """The tensor names in the checkpoint: one, or one per layer."""
        if not self.per_layer:
            return (self.checkpoint_name,)
        return tuple(self.checkpoint_name.format(layer=layer) for layer in range(num_layers))

    def alias_names(self, num_layers: int) -> tuple[tuple[str, ...], ...]:
        """For each tensor of `checkpoint_names` the other names it may have."""
        layers = range(num_layers) if self.per_layer else range(1)
        return tuple(tuple(alias.format(layer=layer) for alias in self.aliases) for layer in layers)


def weight_table(geometry: Geometry) -> tuple[WeightEntry, ...]:
    """The weights of a `llama`, `qwen3` or `pangu` target, in the order in which a forward pass reads them.

    The layout is that of the Hugging Face classes LlamaForCausalLM and Qwen3ForCausalLM; openPangu-Embedded
    checkpoints have the names of llama with attention biases.
    """
    hidden, vocab = geometry.hidden_size, geometry.vocab_size
    entries = [WeightEntry("embed_tokens", (vocab, hidden), "model.embed_tokens.weight", per_layer=False)]
    entries += _decoder_layer(geometry, hidden, "model.layers.{layer}.", per_layer=True)
    entries.append(WeightEntry("norm", (hidden,), "model.norm.weight", per_layer=False))
    if not geometry.tie_word_embeddings:
        entries.append(WeightEntry("lm_head", (vocab, hidden), "lm_head.weight", per_layer=False))
    return tuple(entries)


def eagle3_weight_table(
    geometry: Geometry,
    *,
    draft_vocab_size: int,
    target_vocab_size: int | None = None,
    target_hidden_size: int | None = None,
    num_aux_layers: int = 3,
) -> tuple[WeightEntry, ...]:
    """The weights of a public EAGLE-3 head (arXiv:2503.01840, section 3; layout of the authors' checkpoints).

    `geometry` is the head's own (its decoder layer and norms). The target's aux features
    [num_aux_layers * target_hidden_size] pass through `fc`; `input_layernorm` norms the token embedding and
    `hidden_norm` the feature, and q, k and v read the two concatenated **in that order** (2 * hidden_size).
    `lm_head` covers the draft vocabulary. `d2t` is an offset table (target id = draft id + d2t[draft id]),
    `t2d` a boolean mask over the target's ids; both are absent when the vocabularies are the same, as is
    `embed_tokens` when the head uses the target's embeddings.
    """
    hidden, head_vocab = geometry.hidden_size, draft_vocab_size
    target_vocab = target_vocab_size or geometry.vocab_size
    feature = num_aux_layers * (target_hidden_size or hidden)
    same = head_vocab == target_vocab
    entries = [
        WeightEntry("embed_tokens", (target_vocab, hidden), "embed_tokens.weight", per_layer=False, optional=True),
        WeightEntry("fc", (hidden, feature), "fc.weight", per_layer=False),
        _eagle3_entry("hidden_norm", (hidden,), "hidden_norm.weight"),
    ]
    for entry in _decoder_layer(geometry, 2 * hidden, "", per_layer=False):
        entries.append(_eagle3_entry(entry.name, entry.shape, entry.checkpoint_name))
    entries += [
        WeightEntry("norm", (hidden,), "norm.weight", per_layer=False),
        WeightEntry("lm_head", (head_vocab, hidden), "lm_head.weight", per_layer=False),
        WeightEntry("d2t", (head_vocab,), "d2t", per_layer=False, optional=same, kind="int64"),
        WeightEntry("t2d", (target_vocab,), "t2d", per_layer=False, optional=same, kind="bool"),
    ]
    return tuple(entries)


def _eagle3_entry(name: str, shape: Shape, suffix: str) -> WeightEntry:
    """A weight of the head's only layer: `midlayer.` in the authors' files, `layers.0.` in some others."""
    return WeightEntry(name, shape, f"midlayer.{suffix}", per_layer=False, aliases=(f"layers.0.{suffix}",))


def _decoder_layer(g: Geometry, qkv_input: int, prefix: str, *, per_layer: bool) -> Iterator[WeightEntry]:
    """The weights of one decoder layer; `qkv_input` is the width that q, k and v read."""

    def entry(name: str, shape: Shape, suffix: str) -> WeightEntry:
        return WeightEntry(name, shape, prefix + suffix, per_layer=per_layer)

    def linear(name: str, out_size: int, in_size: int, module: str, bias: bool) -> Iterator[WeightEntry]:
        yield entry(name, (out_size, in_size), f"{module}.{name}.weight")
        if bias:
            yield entry(f"{name}_bias", (out_size,), f"{module}.{name}.bias")

    query, key = g.num_attention_heads * g.head_dim, g.num_key_value_heads * g.head_dim
    yield entry("input_layernorm", (g.hidden_size,), "input_layernorm.weight")
    yield from linear("q_proj", query, qkv_input, "self_attn", g.qkv_bias)
    yield from linear("k_proj", key, qkv_input, "self_attn", g.qkv_bias)
    yield from linear("v_proj", key, qkv_input, "self_attn", g.qkv_bias)
    if g.qk_norm:
        yield entry("q_norm", (g.head_dim,), "self_attn.q_norm.weight")
        yield entry("k_norm", (g.head_dim,), "self_attn.k_norm.weight")
    yield from linear("o_proj", g.hidden_size, query, "self_attn", g.o_bias)
    yield entry("post_attention_layernorm", (g.hidden_size,), "post_attention_layernorm.weight")
    yield from linear("gate_proj", g.intermediate_size, g.hidden_size, "mlp", g.mlp_bias)
    yield from linear("up_proj", g.intermediate_size, g.hidden_size, "mlp", g.mlp_bias)
    yield from linear("down_proj", g.hidden_size, g.intermediate_size, "mlp", g.mlp_bias)
