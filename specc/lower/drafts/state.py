"""The drafter's part of the state: declarations, and its updates in `prefill` and `commit`."""

from __future__ import annotations

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.dims import BATCH
from specc.lower.config import DraftConfig
from specc.lower.context import LowerContext
from specc.lower.declare import cache_slots, declare_weights
from specc.lower.drafts.catch_up import prefill_rows
from specc.lower.drafts.model import draft_model
from specc.lower.step import StepBuilder
from specc.lower.transformer import ModelInfo
from specc.models.bigram import bigram_weight_table
from specc.models.geometry import EagleGeometry, Geometry
from specc.models.weights import WeightEntry, eagle3_weight_table, weight_table
from specc.program import Slot, Weight

aten = torch.ops.aten
PREFIX = "draft_"


def head_geometry(eagle: EagleGeometry) -> Geometry:
    """An EAGLE-3 head's decoder layer as a geometry of one layer."""
    return Geometry(
        family="llama",
        num_hidden_layers=1,
        hidden_size=eagle.hidden_size,
        num_attention_heads=eagle.num_attention_heads,
        num_key_value_heads=eagle.num_key_value_heads,
        head_dim=eagle.head_dim,
        intermediate_size=eagle.intermediate_size,
        vocab_size=eagle.vocab_size,
        max_position_embeddings=eagle.max_position_embeddings,
        rope_theta=eagle.rope_theta,
        rope_scaling=eagle.rope_scaling,
        rms_norm_eps=eagle.rms_norm_eps,
        tie_word_embeddings=False,
        qkv_bias=eagle.attention_bias,
        o_bias=eagle.attention_bias,
        mlp_bias=eagle.mlp_bias,
        qk_norm=False,
    )


def head_weight_table(eagle: EagleGeometry) -> tuple[WeightEntry, ...]:
    """The weights of an EAGLE-3 head of these sizes, its vocabulary tables included."""
    return eagle3_weight_table(
        head_geometry(eagle),
        draft_vocab_size=eagle.draft_vocab_size,
        target_vocab_size=eagle.vocab_size,
        features=eagle.features_width,
    )


def drafter_geometry(draft: DraftConfig) -> Geometry | None:
    """The drafter's decoder layers; None for methods without weights. Raises ValueError if they are not given."""
    if not draft.has_weights:
        return None
    geometry = draft.geometry if draft.eagle is None else head_geometry(draft.eagle)
    if geometry is None or (draft.method == "eagle3") != (draft.eagle is not None):
        raise ValueError(f"draft method {draft.method} needs its drafter's geometry")
    return geometry


def draft_weights(draft: DraftConfig, dtype: torch.dtype) -> dict[str, Weight]:
    """The drafter's weights, named `draft_…`.

    A head of the target's width reads the target's embeddings, which published heads copy unchanged, so it declares
    none. `t2d` is not read; `d2t` is only where the vocabularies differ.
    """
    if draft.bigram is not None:
        return declare_weights(bigram_weight_table(draft.bigram), 1, dtype, prefix=PREFIX)
    geometry = drafter_geometry(draft)
    if geometry is None:
        return {}
    if draft.eagle is None:
        return declare_weights(weight_table(geometry), geometry.num_hidden_layers, dtype, prefix=PREFIX)
    head = draft.eagle
    unread = {"t2d"}
    if head.hidden_size == head.target_hidden_size:
        unread.add("embed_tokens")
    if head.draft_vocab_size == head.vocab_size:
        unread.add("d2t")
    read = tuple(entry for entry in head_weight_table(head) if entry.name not in unread)
    return declare_weights(read, 1, dtype, prefix=PREFIX)


def draft_info(draft: DraftConfig, dtype: torch.dtype) -> ModelInfo | None:
    """The drafter as a model of the program; None for methods without weights."""
    geometry = drafter_geometry(draft)
    return None if geometry is None else ModelInfo(geometry, PREFIX, dtype, draft_weights(draft, dtype))


def draft_slots(draft: DraftConfig, capacity: int, max_path: int, dtype: torch.dtype) -> dict[str, Slot]:
    """The slots that drafting adds. `capacity` is C cache rows, `max_path` P."""
    found: dict[str, Slot] = {}

    def add(name: str, shape: tuple[int, ...], kind: torch.dtype, doc: str) -> None:
        found[name] = Slot(name, (BATCH, *shape), kind, "control", doc)

    if draft.method == "prompt_lookup":
        add("history", (capacity + 1,), torch.int64, "the text so far; the root stands at index length")
    geometry = drafter_geometry(draft)
    if geometry is not None:
        found |= cache_slots(geometry, capacity, dtype, PREFIX)
        add("recent_tokens", (max_path,), torch.int64, "newest tokens without drafter rows; the root is the last")
        add("recent_count", (), torch.int64, "how many of recent_tokens count")
    if draft.eagle is not None:
        doc = "the target's features at the position before each recent token"
        add("recent_features", (max_path, draft.eagle.features_width), dtype, doc)
    return found


def commit_draft(
    b: StepBuilder,
    ctx: LowerContext,
    draft: DraftConfig,
    path: Node | None,
    emitted_tokens: Node,
    emitted: Node,
    features: Node | None = None,
) -> None:
    """The drafter's part of `commit`: path, emitted_tokens [B,P], emitted [B], features [B,N,F] (eagle3).

    Rows with emitted 0 do not change. The recent tokens become the emitted ones: emitted token j follows node
    path[j], so its feature is that node's.
    """
    if draft.method == "prompt_lookup":
        after_root = b.call(aten.add.Tensor, b.slot("length"), 1)
        b.update("history", b.call(ops.append_rows, b.slot("history"), emitted_tokens, after_root, emitted))
    if draft.has_weights:
        moved = b.call(aten.gt.Scalar, emitted, 0, name="moved")
        column = b.call(aten.unsqueeze.default, moved, 1)
        b.update("recent_tokens", b.call(aten.where.self, column, emitted_tokens, b.slot("recent_tokens")))
        b.update("recent_count", b.call(aten.where.self, moved, emitted, b.slot("recent_count")))
    if draft.method == "eagle3":
        if features is None or path is None:
            raise ValueError("eagle3 needs the accepted path and the features of the verified nodes")
        batch = b.call(ops.batch_index, path)
        along = b.call(aten.index.Tensor, features, [batch, path], name="path_features")
        wide = b.call(aten.unsqueeze.default, column, 2)
        b.update("recent_features", b.call(aten.where.self, wide, along, b.slot("recent_features")))


def draft_prefill(
    b: StepBuilder,
    ctx: LowerContext,
    draft: DraftConfig,
    ids: Node,
    lengths: Node,
    root: Node,
    features: Node | None,
    start: Node,
) -> None:
    """The drafter's part of `prefill`: ids [B,T], lengths [B], the new root [B], features [B,T,F] (eagle3).

    `start` [B] is the committed length before this chunk. Rows with lengths 0 do not change.
    """
    moved = b.call(aten.gt.Scalar, lengths, 0, name="has_tokens")
    if draft.method == "prompt_lookup":
        written = b.call(ops.append_rows, b.slot("history"), ids, start, lengths, name="history_with_chunk")
        # The module's edge refuses longer prompts; the clamp states it, so that index analysis can prove the address.
        end = b.call(aten.clamp_max.default, b.call(aten.add.Tensor, start, lengths), ctx.max_sequence_length)
        one = b.call(aten._to_copy.default, moved, dtype=torch.int64)
        b.update("history", b.call(ops.append_rows, written, b.call(aten.unsqueeze.default, root, 1), end, one))
    if draft.has_weights:
        prefill_rows(b, draft_model(ctx, draft), ids, lengths, features, start)
        _restart_recent(b, ctx, draft, lengths, root, features, moved)


def _restart_recent(
    b: StepBuilder, ctx: LowerContext, draft: DraftConfig, lengths: Node, root: Node, features: Node | None, moved: Node
) -> None:
    """After a chunk the root is the only recent token; its feature is that of the chunk's last token."""
    first = b.call(aten.eq.Scalar, b.call(ops.iota, root, ctx.max_path), 0)
    column = b.call(aten.unsqueeze.default, moved, 1)
    here = b.call(aten.logical_and.default, column, first, name="first_recent")
    wide_root = b.call(aten.unsqueeze.default, root, 1)
    b.update("recent_tokens", b.call(aten.where.self, here, wide_root, b.slot("recent_tokens")))
    one = b.call(aten.ones_like.default, lengths)
    b.update("recent_count", b.call(aten.where.self, moved, one, b.slot("recent_count")))
    if draft.method == "eagle3" and features is not None:
        last = b.call(aten.clamp_min.default, b.call(aten.sub.Tensor, lengths, 1), 0)
        batch = b.call(ops.batch_index, last)
        newest = b.call(aten.index.Tensor, features, [batch, b.call(aten.unsqueeze.default, last, 1)])
        wide = b.call(aten.unsqueeze.default, here, 2)
        b.update("recent_features", b.call(aten.where.self, wide, newest, b.slot("recent_features")))
