"""Small float64 programs of recurrent and hybrid targets, their stages through passes 1 to 3, steps and inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st

from specc.ir.interpreter import init_state, run_step
from specc.lower.assemble import lower
from specc.manager import Pipeline, PipelineResult
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table
from specc.passes.insert_tree_masks import InsertTreeMasks
from specc.passes.layer_major import LayerMajor
from specc.passes.rewrite_negative_indices import RewriteNegativeIndices
from specc.program import DecodeProgram
from specc.spec import LoadedSpec, from_mapping
from specc.testing import DraftBatch, chain_trees, draft_trees, prefix_lengths

VOCABULARY = 13
LONGEST = 24
TOLERANCE = 1e-12
PASSES = (RewriteNegativeIndices(), InsertTreeMasks(), LayerMajor())
STAGES = tuple(item.name for item in PASSES)
STEPS = ("prefill", "decode", "verify", "commit")

_DELTA = {"num_hidden_layers": 2, "hidden_size": 16, "head_dim": 4, "intermediate_size": 24, "vocab_size": VOCABULARY}
_HYBRID = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "partial_rotary_factor": 0.5,
    "full_attention_interval": 2,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 4,
    "num_experts": 0,
    "intermediate_size": 24,
    "vocab_size": VOCABULARY,
}
_EXPERTS = {
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "decoder_sparse_step": 2,
    "norm_topk_prob": True,
}
_LLAMA = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 16,
    "vocab_size": VOCABULARY,
}
TARGETS: Mapping[str, dict[str, Any]] = {
    "delta": {"family": "gated_deltanet", "config": _DELTA | {"num_heads": 2, "expand_v": 2}},
    "shared heads": {
        "family": "gated_deltanet",
        "config": _DELTA
        | {"num_hidden_layers": 1, "num_heads": 1, "num_v_heads": 3, "expand_v": 1, "conv_size": 3}
        | {"allow_neg_eigval": True, "use_gate": False, "conv_bias": True},
    },
    "hybrid": {"family": "qwen3_next", "config": _HYBRID},
    "two periods": {"family": "qwen3_next", "config": _HYBRID | {"num_hidden_layers": 4}},
    "experts": {
        "family": "qwen3_next",
        "config": _HYBRID | _EXPERTS | {"full_attention_interval": 3} | {"num_hidden_layers": 3},
    },
}
TREES: Mapping[str, dict[str, Any]] = {
    "dynamic": {
        "method": "prompt_lookup",
        "tree": "dynamic",
        "num_speculative_tokens": 5,
        "num_steps": 3,
        "top_k": 2,
    },
    "static": {
        "method": "draft_model",
        "tree": "static",
        "choices": [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]],
        "family": "llama",
        "config": _LLAMA,
    },
    "chain": {"method": "prompt_lookup", "tree": "chain", "num_speculative_tokens": 4},
}
COMMITS = ("factors", "replay", "snapshots")


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A variation of a spec by its parts."""

    target: str = "delta"
    tree: str = "dynamic"
    commit: str = "factors"

    @property
    def chain(self) -> bool:
        """No tree."""
        return self.tree == "chain"


ALL = tuple(Recurrent(target, tree, commit) for target in TARGETS for tree in TREES for commit in COMMITS)
PAIRS = tuple(
    small
    for small in ALL
    if (list(TARGETS).index(small.target) + list(TREES).index(small.tree) + list(COMMITS).index(small.commit)) % 3 == 0
)
"""Of those, a third: every target with every tree, every target with every commit, every tree with every commit."""
QUICK = (
    Recurrent("delta", "dynamic", "factors"),
    Recurrent("delta", "chain", "snapshots"),
    Recurrent("shared heads", "static", "snapshots"),
    Recurrent("shared heads", "chain", "replay"),
    Recurrent("two periods", "dynamic", "replay"),
    Recurrent("experts", "static", "factors"),
)
"""Every tree and commit twice, one and two periods, experts or not."""


@cache
def loaded(small: Recurrent) -> LoadedSpec:
    """The spec."""
    return from_mapping(
        {
            "specc": 1,
            "name": "small",
            "target": TARGETS[small.target],
            "draft": TREES[small.tree],
            "accept": {"method": "greedy"},
            "commit": {"state": small.commit, "update": "immediate"},
            "runtime": {
                "max_batch_size": 4,
                "max_sequence_length": LONGEST + 16,
                "dtype": "float64",
                "state_dtype": "float64",
            },
        }
    )


@cache
def naive_program(small: Recurrent) -> DecodeProgram:
    """The steps of the target in token-major form."""
    program = lower(loaded(small).spec)
    return replace(program, graphs={name: program.graphs[name] for name in STEPS})


@cache
def staged(small: Recurrent) -> Mapping[str, PipelineResult]:
    """The program after each of the first three passes, verifier and predicates on."""
    program, results = naive_program(small), {}
    for item in PASSES:
        results[item.name] = Pipeline((item,)).run(program)
        program = results[item.name].program
    return results


def program_at(small: Recurrent, stage: str) -> DecodeProgram:
    """The program after a pass."""
    return staged(small)[stage].program


def nodes_of(small: Recurrent) -> int:
    """N."""
    return int(naive_program(small).attributes["nodes"])


def path_of(small: Recurrent) -> int:
    """P, the width of an accepted path."""
    return int(naive_program(small).attributes["max_path"])


@cache
def weights_of(small: Recurrent) -> Mapping[str, Any]:
    """Random weights, the drafter's too."""
    spec = loaded(small).spec
    geometry = spec.target.geometry
    weights: dict[str, Any] = dict(random_weights(weight_table(geometry), geometry, 0, torch.float64))
    if spec.draft_geometry is not None:
        drawn = random_weights(weight_table(spec.draft_geometry), spec.draft_geometry, 1, torch.float64)
        weights |= {f"draft_{name}": value for name, value in drawn.items()}
    return weights


def state_of(program: DecodeProgram, lengths: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random committed rows, states and windows; candidates of an earlier step hold garbage of the same size."""
    generator = torch.Generator().manual_seed(seed)
    state = init_state(program, len(lengths))
    for name, value in state.items():
        if value.is_floating_point():
            state[name] = torch.randn(value.shape, dtype=value.dtype, generator=generator)
    state["root_token"] = torch.randint(0, VOCABULARY, (len(lengths),), generator=generator)
    state["length"] = torch.tensor(lengths)
    state["finished"] = torch.zeros(len(lengths), dtype=torch.bool)
    return state


def run(program: DecodeProgram, step: str, state: Any, small: Recurrent, inputs: Any, **options: Any) -> dict[str, Any]:
    """Slots and results of one step, keyed by name."""
    slots, results = run_step(program, step, state, weights_of(small), inputs, **options)
    assert not set(slots) & set(results)
    return {**slots, **results}


def tree_inputs(batch: DraftBatch, small: Recurrent) -> dict[str, torch.Tensor]:
    """The inputs of verify."""
    inputs = {"tokens": torch.tensor(batch.tokens)}
    if not small.chain:
        inputs |= {"parent": torch.tensor(batch.parent), "valid": torch.tensor(batch.valid)}
    return inputs


def verified(program: DecodeProgram, batch: DraftBatch, small: Recurrent, **options: Any) -> dict[str, Any]:
    """What verify gives for a batch of trees."""
    state = state_of(program, list(batch.prefix_lengths))
    return run(program, "verify", state, small, tree_inputs(batch, small), **options)


def path_to(batch: DraftBatch, row: int, node: int) -> list[int]:
    """Nodes from the root to `node`."""
    path = [node]
    while path[0] > 0:
        path.insert(0, batch.trees[row].parent[path[0]])
    return path


def commit_inputs(batch: DraftBatch, small: Recurrent, leaves: list[int | None]) -> dict[str, torch.Tensor]:
    """Accepting the paths to these nodes; None: nothing is emitted (a finished row)."""
    width = path_of(small)
    paths = [[] if leaf is None else path_to(batch, row, leaf) for row, leaf in enumerate(leaves)]
    rows = len(paths)
    return {
        "path": torch.tensor([path + [0] * (width - len(path)) for path in paths]),
        "emitted": torch.tensor([len(path) for path in paths]),
        "emitted_tokens": torch.zeros(rows, width, dtype=torch.int64),
        "bonus": torch.ones(rows, dtype=torch.int64),
        "stopped": torch.zeros(rows, dtype=torch.bool),
    }


@st.composite
def batches(draw: st.DrawFn, small: Recurrent) -> DraftBatch:
    """One to three trees (padding nodes among them) or chains, and prefixes from 0 on."""
    rows, nodes = draw(st.integers(1, 3)), nodes_of(small)
    tree = draft_trees(num_nodes=nodes, vocab_size=VOCABULARY, max_depth=path_of(small) - 1)
    one = chain_trees(nodes, VOCABULARY) if small.chain else tree
    trees = tuple(draw(one) for _ in range(rows))
    return DraftBatch(trees, tuple(draw(prefix_lengths(LONGEST)) for _ in range(rows)))


@st.composite
def accepted(draw: st.DrawFn, batch: DraftBatch) -> list[int | None]:
    """For each row the last accepted node, or None."""
    return [
        draw(st.one_of(st.none(), st.sampled_from([node for node, ok in enumerate(tree.valid) if ok])))
        for tree in batch.trees
    ]


def assert_same(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Integers equal; floats within 1e-12 of the largest magnitude."""
    assert left.keys() == right.keys()
    for name, one in left.items():
        other = right[name]
        assert (one.shape, one.dtype) == (other.shape, other.dtype), name
        if not one.is_floating_point():
            assert torch.equal(one, other), name
            continue
        assert bool(torch.isfinite(one).all() and torch.isfinite(other).all()), name
        bound = TOLERANCE * float(one.abs().max()) if one.numel() else 0.0
        worst = float((one - other).abs().max()) if one.numel() else 0.0
        assert worst <= bound, f"{name}: {worst} > {bound}"
