"""Sizes that must fit each other: heads, vocabularies, positions, feature layers."""

from __future__ import annotations

from collections.abc import Iterator

from specc.diagnostics import Diagnostic
from specc.spec.checks.view import View
from specc.spec.config import (
    BigramConfig,
    EagleConfig,
    GatedDeltaNetConfig,
    ModelConfig,
    Qwen3NextConfig,
    TransformerConfig,
)
from specc.spec.defaults import position_limits


def heads(view: View) -> Iterator[Diagnostic]:
    """Head counts divide; rotated head dims are even (SPC104, SPC105)."""
    for section, owner in (("target", view.target), ("draft", view.draft)):
        config = None if owner is None else owner.config
        if isinstance(config, TransformerConfig | Qwen3NextConfig | EagleConfig):
            yield from _attention_heads(view, section, config)
        if isinstance(config, Qwen3NextConfig):
            yield from _divides(
                view, section, "linear_num_key_heads", config.linear_num_key_heads,
                "linear_num_value_heads", config.linear_num_value_heads,
            )  # fmt: skip
            rotated = int(config.head_dim * config.partial_rotary_factor)
            if config.head_dim % 2 == 0 and (rotated % 2 or not rotated):
                yield view.error(
                    "SPC105",
                    f"partial_rotary_factor {config.partial_rotary_factor} of head_dim {config.head_dim} "
                    f"rotates {rotated} values, but rotary embeddings rotate pairs",
                    section, "config", "partial_rotary_factor",
                    label="must leave an even number",
                    help="rotate an even number of each head's dims, such as 0.5 of them",
                )  # fmt: skip
        if isinstance(config, GatedDeltaNetConfig):
            yield from _divides(view, section, "num_heads", config.num_heads, "num_v_heads", config.num_v_heads)
            if config.head_dim * config.expand_v % 1:
                yield view.error(
                    "SPC104",
                    f"head_dim x expand_v = {config.head_dim * config.expand_v} is not a whole number",
                    section, "config", "expand_v", label="the value head dim",
                    help="change expand_v or head_dim so that their product is a whole number",
                )  # fmt: skip


def layer_lists(view: View) -> Iterator[Diagnostic]:
    """`layer_types` has an entry per layer, `mlp_only_layers` names layers that exist (SPC106)."""
    config = None if view.target is None else view.target.config
    if not isinstance(config, Qwen3NextConfig):
        return
    layers = config.num_hidden_layers
    if len(config.layer_types) != layers:
        yield view.error(
            "SPC106",
            f"layer_types has {len(config.layer_types)} entries for {layers} layers",
            "target", "config", "layer_types",
            label=f"must have {layers}",
            help="leave it out: full_attention_interval says the same in one number",
        )  # fmt: skip
    for index, layer in enumerate(config.mlp_only_layers):
        if layer >= layers:
            yield view.error(
                "SPC106",
                f"mlp_only_layers names layer {layer} of {layers} layers",
                "target", "config", "mlp_only_layers", index,
                label=f"layers are 0 to {layers - 1}",
                help="name layers that exist: the first one is layer 0",
            )  # fmt: skip


def experts(view: View) -> Iterator[Diagnostic]:
    """A token has at most as many experts as there are (SPC107)."""
    config = None if view.target is None else view.target.config
    if not isinstance(config, Qwen3NextConfig) or config.num_experts == 0:
        return
    if config.num_experts_per_tok > config.num_experts:
        yield view.error(
            "SPC107",
            f"{config.num_experts_per_tok} experts per token are more than the {config.num_experts} that there are",
            "target", "config", "num_experts_per_tok",
            label=f"at most {config.num_experts}",
            help="write `num_experts: 0` for dense MLPs in all layers",
        )  # fmt: skip


def vocabularies(view: View) -> Iterator[Diagnostic]:
    """Draft and target speak the same tokens; token ids exist (SPC121, SPC126, SPC135, SPC136)."""
    target = None if view.target is None else view.target.config
    if target is None:
        return
    draft = view.draft
    width = target.vocab_size
    if draft is not None and isinstance(draft.config, TransformerConfig):
        width = draft.config.vocab_size
        if width != target.vocab_size:
            yield view.error(
                "SPC121",
                f"the draft model has {width} tokens, the target {target.vocab_size}",
                "draft", "config", "vocab_size",
                label="must be the target's vocabulary",
                help="use a draft model with the target's tokenizer",
            )  # fmt: skip
    if draft is not None and isinstance(draft.config, EagleConfig):
        width = draft.config.draft_vocab_size
        if width > target.vocab_size:
            yield view.error(
                "SPC121",
                f"draft_vocab_size {width} is more than the target's {target.vocab_size} tokens",
                "draft", "config", "draft_vocab_size",
                label=f"at most {target.vocab_size}",
                help="the drafter's tokens are some of the target's: leave it out if they are all of them",
            )  # fmt: skip
    if draft is not None and isinstance(draft.config, BigramConfig):
        yield from _bigram_vocabulary(view, draft.config, target.vocab_size)
        width = min(draft.config.candidates_per_token, width)
    if draft is not None and draft.method in ("eagle3", "draft_model", "bigram") and draft.top_k > width:
        yield view.error(
            "SPC126",
            f"`draft.top_k` {draft.top_k} is more than the drafter's {width} tokens",
            "draft", "top_k",
            label=f"at most {width}",
            help=f"a node has at most one child per token: write {width} or less",
        )  # fmt: skip


def _bigram_vocabulary(view: View, config: BigramConfig, vocabulary: int) -> Iterator[Diagnostic]:
    """A row for every token of the target, and distinct tokens in it (SPC121)."""
    if config.vocab_size != vocabulary:
        yield view.error(
            "SPC121",
            f"the bigram drafter has {config.vocab_size} tokens, the target {vocabulary}",
            "draft", "config", "vocab_size",
            label="must be the target's vocabulary",
            help="leave it out, and build the tables from the target's own text",
        )  # fmt: skip
    if config.candidates_per_token > vocabulary:
        yield view.error(
            "SPC121",
            f"candidates_per_token {config.candidates_per_token} is more than the target's {vocabulary} tokens",
            "draft", "config", "candidates_per_token",
            label=f"at most {vocabulary}",
            help=f"a token is followed by at most every other one: write {vocabulary} or less",
        )  # fmt: skip


def stop_tokens(view: View) -> Iterator[Diagnostic]:
    """Stop tokens are distinct ids of the target's vocabulary (SPC135, SPC136)."""
    if view.accept is None:
        return
    size = None if view.target is None or view.target.config is None else view.target.config.vocab_size
    seen: set[int] = set()
    for index, token in enumerate(view.accept.stop_tokens):
        if size is not None and token >= size:
            yield view.error(
                "SPC135",
                f"stop token {token} is outside the vocabulary of {size} tokens",
                "accept", "stop_tokens", index,
                label=f"ids are 0 to {size - 1}",
                help="give the id of the end-of-text token in the model's tokenizer, or `[]` for none",
            )  # fmt: skip
        if token in seen:
            yield view.error(
                "SPC136",
                f"stop token {token} is listed twice",
                "accept", "stop_tokens", index,
                label="again here",
                help="remove one",
            )  # fmt: skip
        seen.add(token)


def aux_layers(view: View) -> Iterator[Diagnostic]:
    """EAGLE-3 features: existing layers, each once, and of what is said (SPC122, SPC123, SPC129, SPC138)."""
    draft = view.draft
    if draft is None or draft.method != "eagle3":
        return
    ids, of = draft.aux_hidden_state_layer_ids, draft.aux_hidden_state_of
    if bool(ids) != (of is not None):
        present = "aux_hidden_state_layer_ids" if ids else "aux_hidden_state_of"
        absent = "aux_hidden_state_of" if ids else "aux_hidden_state_layer_ids"
        yield view.error(
            "SPC123",
            f"`draft.{present}` needs `draft.{absent}` beside it",
            "draft", present,
            label="ambiguous alone",
            help="projects number these layers differently by one: say `input` or `output` of which layers",
        )  # fmt: skip
    elif isinstance(of, tuple) and len(of) != len(ids):
        yield view.error(
            "SPC138",
            f"{len(of)} {'kinds' if len(of) > 1 else 'kind'} of features for {len(ids)} layers",
            "draft", "aux_hidden_state_of",
            label=f"must have {len(ids)}",
            help="give `output`, `input` or `readout` of each layer in `draft.aux_hidden_state_layer_ids`, or one word "
            "for all of them",
        )  # fmt: skip
        return
    if view.target is None or view.target.config is None:
        return
    kinds = (of,) * len(ids) if not isinstance(of, tuple) else of
    yield from _readouts(view, ids, kinds, view.target.config)
    layers = view.target.config.num_hidden_layers
    for index, layer in enumerate(ids):
        if layer >= layers:
            yield view.error(
                "SPC122",
                f"the target has no layer {layer}: it has {layers}",
                "draft", "aux_hidden_state_layer_ids", index,
                label=f"layers are 0 to {layers - 1}",
                help="name layers that exist: the first one is layer 0",
            )  # fmt: skip
        elif (layer, kinds[index]) in tuple(zip(ids, kinds, strict=True))[:index]:
            yield view.error(
                "SPC122",
                f"layer {layer} is listed twice" + (f" with its {kinds[index]}" if isinstance(of, tuple) else ""),
                "draft", "aux_hidden_state_layer_ids", index,
                label="again here",
                help="remove one",
            )  # fmt: skip


def _readouts(
    view: View, ids: tuple[int, ...], kinds: tuple[str | None, ...], config: ModelConfig
) -> Iterator[Diagnostic]:
    """Only recurrent layers have a state to read (SPC129)."""
    if isinstance(config, TransformerConfig) and "readout" in kinds:
        listed = view.draft is not None and isinstance(view.draft.aux_hidden_state_of, tuple)
        yield view.error(
            "SPC129",
            "the target has no recurrent layers: nothing is read out of a state",
            "draft", "aux_hidden_state_of", *((kinds.index("readout"),) if listed else ()),
            label="only of recurrent layers",
            help="write `output` or `input`: the hidden state after or before a layer",
        )  # fmt: skip
    if not isinstance(config, Qwen3NextConfig):
        return
    recurrent = [layer for layer, kind in enumerate(config.layer_types) if kind == "linear_attention"]
    for index, (layer, kind) in enumerate(zip(ids, kinds, strict=True)):
        if kind == "readout" and layer < len(config.layer_types) and layer not in recurrent:
            nearest = sorted(recurrent, key=lambda other: (abs(other - layer), other))[:1]
            yield view.error(
                "SPC129",
                f"layer {layer} attends: it has no state to read out",
                "draft", "aux_hidden_state_layer_ids", index,
                label="an attention layer",
                help="write `output` or `input`" + "".join(f", or name recurrent layer {near}" for near in nearest),
            )  # fmt: skip


def positions(view: View) -> Iterator[Diagnostic]:
    """The longest sequence and a tree below it fit the positions of both models (SPC150, SPC151)."""
    if view.target is None or view.draft is None or view.runtime is None:
        return
    length = view.runtime.max_sequence_length
    for owner, limit in position_limits(view.target, view.draft).items():
        if length <= limit:
            continue
        config = view.target.config if owner == "target" else view.draft.config
        assert config is not None
        assert not isinstance(config, BigramConfig)  # a table has no positions
        table = config.max_position_embeddings
        depth = table - limit - 1
        name = "the target" if owner == "target" else "the drafter"
        remedy = f"set runtime.max_sequence_length to at most {limit}" if limit >= 2 else "draft fewer steps"
        yield view.error(
            "SPC150" if owner == "target" else "SPC151",
            f"max_sequence_length {length} and a path of {depth + 1} tokens exceed "
            f"{name}'s {table} positions",
            "runtime", "max_sequence_length",
            label=f"{length} + {depth + 1} > {table}",
            help=remedy,
        )  # fmt: skip


def _attention_heads(
    view: View, section: str, config: TransformerConfig | Qwen3NextConfig | EagleConfig
) -> Iterator[Diagnostic]:
    yield from _divides(
        view, section, "num_key_value_heads", config.num_key_value_heads,
        "num_attention_heads", config.num_attention_heads,
    )  # fmt: skip
    heads, hidden = config.num_attention_heads, config.hidden_size
    given = view.written(section, "config", "head_dim")
    derived = isinstance(config, TransformerConfig) and config.head_dim == max(2, hidden // heads)
    if derived and given is None and hidden % heads:
        yield view.error(
            "SPC104",
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}",
            section, "config", "num_attention_heads",
            label="does not divide",
            help="give head_dim if the heads do not share hidden_size evenly",
        )  # fmt: skip
    if config.head_dim % 2:
        yield view.error(
            "SPC105",
            f"head_dim {config.head_dim} is odd, but rotary embeddings rotate pairs",
            section, "config", "head_dim",
            label="must be even",
            help=f"write {config.head_dim - 1} or {config.head_dim + 1}: as in the model's config.json",
        )  # fmt: skip


def _divides(view: View, section: str, small_key: str, small: int, big_key: str, big: int) -> Iterator[Diagnostic]:
    if big % small:
        yield view.error(
            "SPC104",
            f"{big_key} {big} is not a multiple of {small_key} {small}",
            section, "config", small_key,
            label="does not divide",
            help=f"all groups of heads are of one size: change {small_key} or {big_key}",
        )  # fmt: skip
