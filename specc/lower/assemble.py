"""Spec -> token-major DecodeProgram: the plainest form, run by the interpreter as the oracle of everything later."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from specc.lower import declare
from specc.lower.accept import lower_accept
from specc.lower.commit import CommitConfig, lower_commit, lower_flush
from specc.lower.config import AcceptConfig, DraftConfig
from specc.lower.context import LowerContext
from specc.lower.drafts import draft_info, draft_slots, draft_weights, lower_draft
from specc.lower.from_spec import accept_config, commit_config, draft_config, program_attributes, state_commit_of
from specc.lower.prefill import lower_decode, lower_prefill
from specc.lower.transformer import ModelInfo
from specc.lower.verify import lower_verify
from specc.program import DecodeProgram, Slot, Weight
from specc.spec.model import Spec

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def _context(spec: Spec, draft: DraftConfig) -> LowerContext:
    """Numbers and declarations; slots and weights of the drafter included."""
    dtype = DTYPES[spec.runtime.dtype]
    geometry = spec.target.geometry
    nodes, longest = spec.num_nodes, spec.runtime.max_sequence_length
    capacity = longest + nodes
    target_weights = declare.target_weights(geometry, dtype)
    weights: dict[str, Weight] = target_weights | draft_weights(draft, dtype)
    slots: dict[str, Slot] = declare.control_slots()
    slots |= declare.cache_slots(geometry, capacity, dtype)
    slots |= declare.candidate_slots(geometry, nodes, dtype)
    state_dtype, state_commit = DTYPES[spec.runtime.state_dtype], state_commit_of(spec)
    slots |= declare.recurrent_slots(geometry, nodes, dtype, state_dtype, state_commit)
    slots |= draft_slots(draft, capacity, spec.max_path, dtype)
    return LowerContext(
        slots=slots,
        weights=weights,
        target=ModelInfo(geometry, "", dtype, target_weights),
        drafter=draft_info(draft, dtype),
        nodes=nodes,
        max_path=spec.max_path,
        chain=spec.is_chain,
        capacity=capacity,
        max_sequence_length=longest,
        dtype=dtype,
        aux=spec.draft.aux_features if draft.method == "eagle3" else (),
        fused_attention=spec.verify.attention == "fused",
        state_dtype=state_dtype,
        state_commit=state_commit,
    )


def _graphs(
    ctx: LowerContext, accept: AcceptConfig, commit: CommitConfig, draft: DraftConfig
) -> dict[str, GraphModule]:
    return {
        "prefill": lower_prefill(ctx, accept, draft),
        "decode": lower_decode(ctx, accept),
        "draft": lower_draft(ctx, draft),
        "verify": lower_verify(ctx),
        "accept": lower_accept(ctx, accept, draft),
        "commit": lower_commit(ctx, commit, draft),
        "flush": lower_flush(ctx),
    }


def lower(spec: Spec) -> DecodeProgram:
    """The naive program of a resolved spec.

    Keys whose machinery is missing must have been refused before (`specc.spec.unsupported`).
    """
    draft = draft_config(spec)
    ctx = _context(spec, draft)
    ranges = declare.value_ranges(ctx.target.geometry.vocab_size, ctx.nodes, ctx.max_sequence_length, ctx.max_path)
    ranges |= declare.weight_ranges(ctx.target.geometry.vocab_size, ctx.weights)
    return DecodeProgram(
        name=spec.name,
        slots=ctx.slots,
        weights=ctx.weights,
        graphs=_graphs(ctx, accept_config(spec), commit_config(spec), draft),
        attributes=program_attributes(spec),
        ranges=declare.restrict(ranges, ctx.slots),
    )
