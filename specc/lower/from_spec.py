"""The resolved spec as the small plain records that lowering takes."""

from __future__ import annotations

from typing import Any

from specc.lower.commit import CommitConfig
from specc.lower.config import AcceptConfig, DraftConfig
from specc.lower.stack import StateCommit
from specc.spec.model import Spec


def accept_config(spec: Spec) -> AcceptConfig:
    """Acceptance and the sampling law."""
    accept, sampling = spec.accept, spec.sampling
    typical = accept.typical
    return AcceptConfig(
        method=accept.method,
        rule=accept.rule or "target_only",
        epsilon=typical.epsilon if typical else 0.3,
        alpha=typical.alpha if typical else 0.09,
        stop_tokens=accept.stop_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
    )


def commit_config(spec: Spec) -> CommitConfig:
    """How accepted rows are committed."""
    chain = spec.is_chain and spec.commit.update == "immediate"
    kv = spec.commit.kv or ("length" if chain else "path_index")
    return CommitConfig(kv=kv, fast_reorder=spec.commit.fast_reorder)


def state_commit_of(spec: Spec) -> StateCommit | None:
    """`commit.state`; None for a target without recurrent layers."""
    if not spec.target.geometry.recurrent:
        return None
    return spec.commit.state or "factors"


def draft_config(spec: Spec) -> DraftConfig:
    """The drafter; chains have top_k 1."""
    draft = spec.draft
    ngram, prune = draft.ngram, draft.prune
    draws = accept_config(spec).uses_draft_law
    return DraftConfig(
        method=draft.method,
        tree="chain" if spec.is_chain else draft.tree,
        num_speculative_tokens=draft.num_speculative_tokens,
        num_steps=spec.depth,
        top_k=1 if spec.is_chain else draft.top_k,
        choices=draft.choices or (),
        ngram_min=ngram.min if ngram else 1,
        ngram_max=ngram.max if ngram else 4,
        margin=prune.path_log_prob_margin if prune else None,
        min_log_prob=prune.min_path_log_prob if prune else None,
        window=draft.window,
        draws=draws,
        temperature=spec.sampling.temperature or 1.0,
        geometry=spec.draft_geometry,
        eagle=spec.eagle_geometry,
        bigram=spec.bigram_geometry,
    )


def program_attributes(spec: Spec) -> dict[str, Any]:
    """Plain numbers of the spec that backends and checks read; never a path."""
    return {
        "nodes": spec.num_nodes,
        "num_steps": spec.depth,
        "max_path": spec.max_path,
        "chain": spec.is_chain,
        "vocab_size": spec.target.geometry.vocab_size,
        "max_sequence_length": spec.runtime.max_sequence_length,
        "max_batch_size": spec.runtime.max_batch_size,
        "draft_method": spec.draft.method,
        "accept_method": spec.accept.method,
        "stop_tokens": list(spec.accept.stop_tokens),
        "temperature": spec.sampling.temperature,
        "seed": spec.sampling.seed,
        "update": spec.commit.update,
        "flush_first": [],
    }
