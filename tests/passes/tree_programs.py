"""Small float64 programs, their stages through the pipeline, inputs and comparisons for the tests of passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st

from specc.ir.interpreter import init_state, run_step
from specc.lower.config import AcceptConfig, DraftConfig
from specc.lower.context import LowerContext
from specc.lower.declare import cache_slots, candidate_slots, control_slots, target_weights, value_ranges
from specc.lower.prefill import lower_prefill
from specc.lower.transformer import ModelInfo
from specc.lower.verify import lower_verify
from specc.manager import Pipeline, PipelineResult
from specc.models.geometry import AuxFeature, transformer_geometry
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table
from specc.passes.fuse_projections import FuseProjections
from specc.passes.insert_tree_masks import InsertTreeMasks
from specc.passes.layer_major import LayerMajor
from specc.passes.rewrite_negative_indices import RewriteNegativeIndices
from specc.program import DecodeProgram
from specc.testing import DraftBatch, draft_trees, prefix_lengths

VOCABULARY = 13
LONGEST = 24
# Results of one step are sums of at most 64 terms through at most 3 layers; 9 ulps of the largest were seen.
ULPS = 64


@dataclass(frozen=True, slots=True)
class Small:
    """A small model and the nodes that it verifies."""

    nodes: int = 5
    chain: bool = False
    family: str = "llama"
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    features: str = ""
    tied: bool = False

    @property
    def max_path(self) -> int:
        """The longest path, root included: what the tests' trees are drawn within."""
        return min(self.nodes, 4)


TREES = (
    Small(),
    Small(nodes=1),
    Small(nodes=8, layers=3, family="qwen3"),
    Small(nodes=5, family="pangu", kv_heads=4, features="input"),
    Small(nodes=8, layers=1, kv_heads=1, features="output", tied=True),
)
CHAINS = tuple(
    Small(nodes=small.nodes, chain=True, family=small.family, layers=small.layers, features=small.features)
    for small in TREES
)


@cache
def geometry_of(small: Small) -> Any:
    """The model's geometry."""
    config = {
        "num_hidden_layers": small.layers,
        "hidden_size": 24,
        "num_attention_heads": small.heads,
        "num_key_value_heads": small.kv_heads,
        "head_dim": 6,
        "intermediate_size": 32,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 128,
        "tie_word_embeddings": small.tied,
    }
    return transformer_geometry(small.family, config)


@cache
def naive_program(small: Small) -> DecodeProgram:
    """verify and prefill in token-major form."""
    geometry, dtype = geometry_of(small), torch.float64
    weights = target_weights(geometry, dtype)
    capacity = LONGEST + small.nodes
    slots = control_slots() | cache_slots(geometry, capacity, dtype) | candidate_slots(geometry, small.nodes, dtype)
    ctx = LowerContext(
        slots=slots,
        weights=weights,
        target=ModelInfo(geometry, "", dtype, weights),
        drafter=None,
        nodes=small.nodes,
        max_path=small.max_path,
        chain=small.chain,
        capacity=capacity,
        max_sequence_length=LONGEST,
        dtype=dtype,
        aux=tuple(AuxFeature(layer, small.features) for layer in range(small.layers)) if small.features else (),
    )
    graphs = {"verify": lower_verify(ctx), "prefill": lower_prefill(ctx, AcceptConfig(), DraftConfig())}
    ranges = value_ranges(VOCABULARY, small.nodes, LONGEST, small.max_path)
    return DecodeProgram("small", slots, weights, graphs, ranges={k: v for k, v in ranges.items() if _known(k, slots)})


def _known(key: str, slots: Mapping[str, Any]) -> bool:
    kind, _, name = key.partition(":")
    return kind != "slot" or name in slots


@cache
def staged(small: Small) -> Mapping[str, PipelineResult]:
    """The program after each pass, verifier and predicates on."""
    program, results = naive_program(small), {}
    for item in (RewriteNegativeIndices(), InsertTreeMasks(), LayerMajor(), FuseProjections()):
        results[item.name] = Pipeline((item,)).run(program)
        program = results[item.name].program
    return results


@cache
def weights_of(small: Small, seed: int = 0) -> Mapping[str, Any]:
    """Random weights with sharp attention."""
    geometry = geometry_of(small)
    return random_weights(weight_table(geometry), geometry, seed, torch.float64)


def fused_weights(program: DecodeProgram, small: Small) -> dict[str, Any]:
    """The weights of a program with fused ones: its sources' tensors, concatenated along dim 0."""
    by_source = {source: name for name, weight in naive_program(small).weights.items() for source in weight.sources}
    plain, out = weights_of(small), {}
    for name, weight in program.weights.items():
        parts = [plain[by_source[source]] for source in weight.sources]
        layers = weight.layers
        if layers is None:
            out[name] = torch.cat(parts)
        else:
            out[name] = tuple(torch.cat([part[layer] for part in parts]) for layer in range(layers))
    return out


def state_of(program: DecodeProgram, lengths: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
    """A state with random committed rows; rows beyond `lengths` hold garbage of the same size."""
    generator = torch.Generator().manual_seed(seed)
    state = init_state(program, len(lengths))
    for name, value in state.items():
        if value.is_floating_point():
            state[name] = torch.randn(value.shape, dtype=value.dtype, generator=generator)
    state["length"] = torch.tensor(lengths)
    return state


def run(program: DecodeProgram, step: str, state: Any, weights: Any, inputs: Any, **options: Any) -> dict[str, Any]:
    """Slots and results of one step, keyed by name."""
    slots, results = run_step(program, step, state, weights, inputs, **options)
    assert not set(slots) & set(results)
    return {**slots, **results}


def tree_inputs(batch: DraftBatch, small: Small) -> dict[str, torch.Tensor]:
    """The inputs of verify for a batch of trees."""
    inputs = {"tokens": torch.tensor(batch.tokens)}
    if not small.chain:
        inputs |= {"parent": torch.tensor(batch.parent), "valid": torch.tensor(batch.valid)}
    return inputs


def verified(program: DecodeProgram, batch: DraftBatch, small: Small, weights: Any, **options: Any) -> dict[str, Any]:
    """What verify gives for a batch of trees."""
    state = state_of(program, list(batch.prefix_lengths))
    return run(program, "verify", state, weights, tree_inputs(batch, small), **options)


@st.composite
def batches(draw: st.DrawFn, small: Small) -> DraftBatch:
    """One to three trees with `small.nodes` nodes, padding among them, and prefixes from 0 on."""
    rows = draw(st.integers(1, 3))
    one = draft_trees(num_nodes=small.nodes, vocab_size=VOCABULARY, max_depth=small.max_path - 1)
    trees = tuple(draw(one) for _ in range(rows))
    return DraftBatch(trees, tuple(draw(prefix_lengths(LONGEST - 8)) for _ in range(rows)))


def assert_same(left: Mapping[str, Any], right: Mapping[str, Any], ulps: int = ULPS) -> None:
    """Integers equal; floats within `ulps` units in the last place of the largest magnitude."""
    assert left.keys() == right.keys()
    for name, one in left.items():
        other = right[name]
        assert one.shape == other.shape, name
        assert one.dtype == other.dtype, name
        if not one.is_floating_point():
            assert torch.equal(one, other), name
            continue
        assert bool(torch.isfinite(one).all() and torch.isfinite(other).all()), name
        bound = ulps * torch.finfo(one.dtype).eps * float(one.abs().max())
        assert float((one - other).abs().max()) <= bound, (name, float((one - other).abs().max()), bound)
