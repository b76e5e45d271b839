"""Small programs, modules generated from them, and the comparison of both, for the reference backend's tests."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any

import torch

from specc.backends.base import ModuleInfo
from specc.backends.reference.backend import REFERENCE
from specc.check.pages import contiguous
from specc.ir.interpreter import init_state, run_step
from specc.lower.assemble import lower
from specc.manager import Pass, PassContext, Pipeline
from specc.passes.canonicalize import Canonicalize
from specc.passes.cse import CommonSubexpressions
from specc.passes.dce import DeadCode
from specc.passes.fuse_deferred_state_update import FuseDeferredStateUpdate
from specc.passes.fuse_projections import FuseProjections
from specc.passes.insert_tree_masks import InsertTreeMasks
from specc.passes.layer_major import LayerMajor
from specc.passes.page_caches import PageCaches
from specc.passes.plan_buffers import PlanBuffers
from specc.passes.rewrite_negative_indices import RewriteNegativeIndices
from specc.program import DecodeProgram
from specc.spec.load import loads

DRAFTS = {
    "plain": "{method: none}",
    "chain": "{method: prompt_lookup, tree: chain, num_speculative_tokens: 4, ngram: {min: 1, max: 3}}",
    "tree": "{method: prompt_lookup, tree: dynamic, num_speculative_tokens: 5, num_steps: 3, top_k: 2, "
    "ngram: {min: 1, max: 3}}",
}
VOCABULARY = 23
DRAFTS["model"] = (
    "{method: draft_model, tree: dynamic, num_speculative_tokens: 5, num_steps: 3, top_k: 2, family: llama, config: "
    "{num_hidden_layers: 2, hidden_size: 16, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8, "
    f"intermediate_size: 24, vocab_size: {VOCABULARY}, max_position_embeddings: 512}}}}"
)


def spec_text(
    draft: str, *, update: str = "immediate", accept: str = "{stop_tokens: [5]}", kv: str = "path_index"
) -> str:
    """A spec of a two-layer llama; `draft` is a key of DRAFTS."""
    return f"""specc: 1
name: tiny
target: {{family: llama, config: {{num_hidden_layers: 2, hidden_size: 32, num_attention_heads: 4,
  num_key_value_heads: 2, head_dim: 8, intermediate_size: 48, vocab_size: {VOCABULARY}, max_position_embeddings: 512}}}}
draft: {DRAFTS[draft]}
runtime: {{max_batch_size: 4, max_sequence_length: 48, dtype: float64}}
accept: {accept}
commit: {{kv: {kv}, update: {update}}}
"""


def program_of(draft: str, **options: str) -> DecodeProgram:
    """The naive program."""
    return lower(loads(spec_text(draft, **options)).spec)


def planned(program: DecodeProgram, *, deferred: bool = False, buffers: bool = True, page: int = 0) -> DecodeProgram:
    """The program after all passes (without plan-buffers: at value level); with pages of `page` rows, if not 0."""
    passes: list[Pass] = [RewriteNegativeIndices(), InsertTreeMasks(), LayerMajor()]
    passes += [FuseDeferredStateUpdate()] if deferred else []
    passes += [FuseProjections(), Canonicalize(), CommonSubexpressions(), DeadCode()]
    passes += [PlanBuffers()] if buffers else []
    passes += [PageCaches(page=page)] if page else []
    return Pipeline(tuple(passes)).run(program, PassContext(verify=False)).program


def fused_weights(naive: DecodeProgram, program: DecodeProgram, seed: int = 0) -> dict[str, Any]:
    """The naive program's random weights as the program wants them: fused projections are concatenations."""
    own = weights_of(naive, seed)
    by_source = {(naive.weights[name].model, *naive.weights[name].sources): value for name, value in own.items()}
    made: dict[str, Any] = {}
    for name, weight in program.weights.items():
        parts = [by_source[(weight.model, source)] for source in weight.sources]
        if weight.layers is None:
            made[name] = torch.cat(parts) if len(parts) > 1 else parts[0]
        else:
            made[name] = tuple(torch.cat(rows) if len(rows) > 1 else rows[0] for rows in zip(*parts, strict=True))
    return made


def weights_of(program: DecodeProgram, seed: int = 0) -> dict[str, Any]:
    """Random weights for every weight the program declares; sharp enough that text depends on its context."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if not dtype.is_floating_point:
            return torch.zeros(shape, dtype=dtype)
        value = torch.randn(shape, generator=generator, dtype=dtype)
        return value * 0.3 + 1 if "norm" in name else value / shape[-1] ** 0.5 * 2

    made: dict[str, Any] = {}
    for name, weight in program.weights.items():
        layers = [draw(name, weight.shape, weight.dtype) for _ in range(weight.layers or 1)]
        made[name] = layers[0] if weight.layers is None else tuple(layers)
    return made


def load_text(text: str) -> types.ModuleType:
    """A generated module imported from its text."""
    module = types.ModuleType("generated_module")
    # NamedTuple and typing look their module up by name.
    sys.modules["generated_module"] = module
    exec(compile(text, "generated_module.py", "exec"), module.__dict__)
    return module


def generate(program: DecodeProgram, **info: Any) -> str:
    """The module's text with a plain header."""
    return REFERENCE.generate(program, ModuleInfo(**({"spec": {"name": program.name}} | info)))


class Lockstep:
    """Runs interpreter and generated module side by side and compares every slot and result after every step."""

    def __init__(
        self, program: DecodeProgram, batch: int, weights: dict[str, Any] | None = None, *, edge: bool = True
    ) -> None:
        self.program = program
        # Without the edge, mutated programs may hand on what a check would stop.
        self.prefix = "" if edge else "run_"
        self.module = load_text(generate(program))
        self.weights = weights_of(program) if weights is None else weights
        self.module_weights = self.module.Weights(**self.weights)
        self.interpreted: dict[str, torch.Tensor] = init_state(program, batch)
        self.state: Any = self.module.init_state(batch)
        self.compare_state("init_state")

    def function(self, step: str) -> Any:
        """The module's function for a step: public, or the printed one behind the edge."""
        return getattr(self.module, self.prefix + step)

    def compare(self, where: str, ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
        """Integers equal, floats within rounding of differently grouped sums."""
        assert set(ours) == set(theirs), (where, set(ours) ^ set(theirs))
        for name, value in ours.items():
            other = theirs[name]
            assert value.dtype == other.dtype, (where, name)
            assert value.shape == other.shape, (where, name)
            if value.dtype.is_floating_point:
                torch.testing.assert_close(
                    other, value, rtol=1e-9, atol=1e-9, msg=lambda text, n=name: f"{where} {n}: {text}"
                )
            else:
                assert torch.equal(value, other), (where, name, value, other)

    def compare_state(self, where: str) -> None:
        """All stored slots; rows of caches at or behind `length` are not part of the state."""
        ours, theirs = (dict(contiguous(dict(state))) for state in (self.interpreted, self.state._asdict()))
        live = torch.arange(ours["k_cache"].shape[2]) < self.interpreted["length"].unsqueeze(1)
        for name in ours:
            if name.endswith("_cache") and not name.startswith("draft_"):
                shown = live.view(1, *live.shape, 1, 1)
                ours[name], theirs[name] = ours[name] * shown, theirs[name] * shown
        self.compare(where, ours, theirs)

    def step(self, name: str, inputs: Mapping[str, torch.Tensor], call: Any) -> dict[str, torch.Tensor]:
        """One step in both; `call(module, weights, state)` returns the module's (state, results)."""
        if name in self.program.attributes.get("flush_first", ()):
            self.interpreted |= run_step(self.program, "flush", self.interpreted, self.weights, {})[0]
        updates, results = run_step(self.program, name, self.interpreted, self.weights, inputs)
        self.interpreted |= updates
        if not self.prefix or name not in self.program.attributes.get("flush_first", ()):
            self.state, given = call(self.module, self.module_weights, self.state)
        else:
            self.state, given = call(self.module, self.module_weights, self.module.flush(self.state))
        self.compare(name, results, given)
        self.compare_state(name)
        return results

    def prefill(self, ids: torch.Tensor, lengths: torch.Tensor) -> None:
        """Prefill both, then allow as many tokens as fit."""

        def call(module: Any, weights: Any, state: Any) -> Any:
            state, logits = self.function("prefill")(weights, state, ids.clone(), lengths.clone())
            return state, {"logits": logits}

        self.step("prefill", {"input_ids": ids, "lengths": lengths}, call)

    def decode(self) -> None:
        """One plain step in both."""

        def call(module: Any, weights: Any, state: Any) -> Any:
            state, decoded = self.function("decode")(weights, state)
            return state, decoded._asdict()

        self.step("decode", {}, call)

    def speculate(self) -> dict[str, torch.Tensor]:
        """draft, verify, accept, commit in both; returns accept's results."""
        kept: dict[str, Any] = {}

        def draft(module: Any, weights: Any, state: Any) -> Any:
            state, kept["draft"] = self.function("draft")(weights, state)
            return state, _fields(kept["draft"])

        def verify(module: Any, weights: Any, state: Any) -> Any:
            given = kept["draft"]
            state, kept["verified"] = self.function("verify")(weights, state, given.tokens, given.parent, given.valid)
            return state, _fields(kept["verified"])

        def accept(module: Any, weights: Any, state: Any) -> Any:
            state, kept["accepted"] = self.function("accept")(state, kept["verified"], kept["draft"])
            return state, _fields(kept["accepted"])

        def commit(module: Any, weights: Any, state: Any) -> Any:
            return self.function("commit")(state, kept["verified"], kept["accepted"]), {}

        drafted = self.step("draft", {}, draft)
        verified = self.step("verify", drafted, verify)
        accepted = self.step("accept", drafted | verified, accept)
        self.step("commit", accepted | verified, commit)
        return accepted


def _fields(record: Any) -> dict[str, torch.Tensor]:
    return {name: value for name, value in record._asdict().items() if value is not None}
