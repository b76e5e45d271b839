"""Small specs of every family, and their modules: Triton's and the reference's in float32, the reference's in float64.

All three get the same random weights. The float64 module says how far float32 itself is off (see `lockstep`).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from specc.check.machines import Generated
from specc.check.weights import Value, logical_weights, program_weights
from specc.driver import Compilation, compile_spec
from specc.program import DecodeProgram
from specc.runtime.module import import_source
from specc.spec import LoadedSpec, from_mapping

VOCABULARY = 23
LONGEST = 28
_TRANSFORMER = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
}
_DELTA = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_heads": 2,
    "head_dim": 8,
    "expand_v": 1,
    "conv_size": 4,
    "intermediate_size": 24,
    "vocab_size": VOCABULARY,
}
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
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 4,
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
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}
TARGETS: Mapping[str, dict[str, Any]] = {
    "llama": {"family": "llama", "config": _TRANSFORMER},
    "qwen3": {
        "family": "qwen3",
        "config": _TRANSFORMER | {"num_key_value_heads": 1, "hidden_size": 24, "tie_word_embeddings": True},
    },
    "pangu": {"family": "pangu", "config": _TRANSFORMER | {"num_attention_heads": 3, "num_key_value_heads": 1}},
    "narrow heads": {"family": "llama", "config": _TRANSFORMER | {"head_dim": 2}},
    "delta": {"family": "gated_deltanet", "config": _DELTA},
    "shared heads": {
        "family": "gated_deltanet",
        "config": _DELTA
        | {"num_heads": 1, "num_v_heads": 3, "conv_size": 3, "allow_neg_eigval": True, "use_gate": False}
        | {"conv_bias": True},
    },
    "hybrid": {"family": "qwen3_next", "config": _HYBRID},
    "experts": {"family": "qwen3_next", "config": _HYBRID | _EXPERTS},
}
DRAFTS: Mapping[str, dict[str, Any]] = {
    "plain": {"method": "none"},
    "chain": {"method": "prompt_lookup", "tree": "chain", "num_speculative_tokens": 3},
    "lookup tree": {
        "method": "prompt_lookup",
        "tree": "dynamic",
        "num_speculative_tokens": 4,
        "num_steps": 3,
        "top_k": 2,
    },
    "static tree": {
        "method": "draft_model",
        "tree": "static",
        "choices": [[0], [1], [0, 1], [1, 0], [0, 1, 0]],
    },
    "dynamic tree": {
        "method": "draft_model",
        "tree": "dynamic",
        "num_speculative_tokens": 5,
        "num_steps": 3,
        "top_k": 2,
        "prune": {"path_log_prob_margin": 8.0},
    },
    "model chain": {"method": "draft_model", "tree": "chain", "num_speculative_tokens": 3},
    "bigram": {
        "method": "bigram",
        "tree": "dynamic",
        "num_speculative_tokens": 6,
        "num_steps": 3,
        "top_k": 2,
        "config": {"candidates_per_token": 4},
    },
    "bigram chain": {"method": "bigram", "tree": "chain", "num_speculative_tokens": 3},
    "bigram static": {"method": "bigram", "tree": "static", "choices": [[0], [2], [0, 1], [2, 0], [0, 1, 0]]},
    "eagle": {
        "method": "eagle3",
        "tree": "dynamic",
        "num_speculative_tokens": 4,
        "num_steps": 2,
        "top_k": 2,
        "config": {"draft_vocab_size": 17},
        "aux_hidden_state_layer_ids": [0, 1],
        "aux_hidden_state_of": "output",
    },
}
ACCEPTS: Mapping[str, dict[str, Any]] = {
    "greedy": {"accept": {"method": "greedy", "stop_tokens": [5]}},
    "true_q": {
        "accept": {"method": "rejection", "rule": "true_q", "stop_tokens": [5]},
        "sampling": {"temperature": 0.8, "top_k": 9, "top_p": 0.95, "seed": 3},
    },
    "target_only": {
        "accept": {"method": "rejection", "rule": "target_only", "stop_tokens": [5]},
        "sampling": {"temperature": 1.0, "seed": 3},
    },
    "typical": {
        "accept": {"method": "typical", "typical": {"epsilon": 0.3, "alpha": 0.09}, "lossless": False},
        "sampling": {"temperature": 0.7, "seed": 3},
    },
}
COMMITS: Mapping[str, dict[str, Any]] = {
    "length": {"kv": "length", "update": "immediate"},
    "path": {"kv": "path_index", "update": "immediate"},
    "slow path": {"kv": "path_index", "update": "immediate", "fast_reorder": False},
    "path, deferred": {"kv": "path_index", "update": "deferred"},
    "snapshots": {"state": "snapshots", "update": "immediate"},
    "replay": {"state": "replay", "update": "immediate"},
    "factors": {"state": "factors", "update": "immediate"},
    "deferred": {"state": "factors", "update": "deferred"},
    "windowed": {"state": "factors", "update": "deferred", "window": 6},
}
RECURRENT = frozenset({"delta", "shared heads", "hybrid", "experts"})


@dataclass(frozen=True, slots=True)
class Cell:
    """One spec of the matrix by the names of its parts; `schedule` of the recurrence, where there is one; `page`: rows
    of a page of the target's caches, 0 where they are in one piece."""

    target: str = "llama"
    draft: str = "lookup tree"
    commit: str = "path"
    accept: str = "greedy"
    schedule: str = "tree"
    page: int = 0

    def __str__(self) -> str:
        parts = [self.target, self.draft, self.commit, self.accept, *([f"pages of {self.page}"] if self.page else [])]
        return ", ".join([*parts, self.schedule] if self.target in RECURRENT else parts)

    @property
    def longest(self) -> int:
        """The capacity; a llama has enough that attention reads it in two parts."""
        return LONGEST + 12 if self.target == "llama" else LONGEST

    def _drafter(self) -> dict[str, Any]:
        """A draft model of one layer: a noisy copy of a transformer's first, or a model of its own."""
        own = TARGETS["llama"] if self.target in RECURRENT else TARGETS[self.target]
        return {"family": own["family"], "config": own["config"] | {"num_hidden_layers": 1}}

    def loaded(self, dtype: str = "float32") -> LoadedSpec:
        """The spec, computing in `dtype`."""
        mapping: dict[str, Any] = {
            "specc": 1,
            "name": "small",
            "target": TARGETS[self.target],
            "draft": DRAFTS[self.draft] | (self._drafter() if DRAFTS[self.draft]["method"] == "draft_model" else {}),
            "commit": COMMITS[self.commit],
            "runtime": {"max_batch_size": 8, "max_sequence_length": self.longest, "dtype": dtype},
            **ACCEPTS[self.accept],
        }
        if self.page:
            mapping["runtime"] |= {"kv_layout": "paged", "kv_block_size": self.page}
        if self.target in RECURRENT:
            mapping["verify"] = {"recurrence": self.schedule}
            mapping["runtime"]["state_dtype"] = "float64" if dtype == "float64" else "float32"
        return from_mapping(mapping)


def cast(value: Value, like: torch.dtype) -> Value:
    """The same weight in another floating-point type; tables of integers stay."""
    if not isinstance(value, torch.Tensor):
        return tuple(part.to(like) for part in value)
    return value.to(like) if value.is_floating_point() else value


def built(compilation: Compilation, name: str, program: DecodeProgram | None = None, source: str = "") -> Generated:
    """The module of a compilation (or of another program with its source) with the spec's random weights."""
    spec, program = compilation.loaded.spec, program or compilation.program
    module = import_source(source or compilation.source, f"specc_{name.replace(' ', '_')}")
    own, declared = getattr(torch, spec.runtime.dtype), compilation.naive.weights
    drawn = {
        name: cast(value, declared[name].dtype if name in declared else own)
        for name, value in logical_weights(spec, 1).items()
    }
    wanted = program_weights(program.weights, compilation.naive, drawn)
    slots = {name: slot for name, slot in program.slots.items() if slot.alias is None}
    return Generated(name, module, slots, module.Weights(**wanted))


@dataclass(frozen=True)
class Modules:
    """The three modules of a cell; `seen` is for what tests keep of it."""

    cell: Cell
    seen: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def compilation(self) -> Compilation:
        """What the Triton module was generated from."""
        return compile_spec(self.cell.loaded(), "triton", verify=False)

    @cached_property
    def triton(self) -> Generated:
        """The Triton module in float32."""
        return built(self.compilation, "triton module")

    @cached_property
    def reference(self) -> Generated:
        """The reference module in float32."""
        return built(compile_spec(self.cell.loaded(), verify=False), "reference module")

    @cached_property
    def exact(self) -> Generated:
        """The reference module in float64."""
        return built(compile_spec(self.cell.loaded("float64"), verify=False), "float64 module")

    @property
    def eagle(self) -> bool:
        """Whether the drafter is a head."""
        return self.cell.draft == "eagle"

    @property
    def chain(self) -> bool:
        """Whether drafts have no parents."""
        return self.cell.loaded().spec.is_chain


@cache
def modules(cell: Cell) -> Modules:
    """The modules of a cell, compiled once per process, when they are first asked for."""
    return Modules(cell)


def clean(sources: Sequence[str], folder: Path) -> None:
    """Fails where ruff finds anything in modules' texts, or would write them in another way."""
    for number, text in enumerate(sources):
        (folder / f"module_{number}.py").write_text(text)
    for command in (["check"], ["format", "--check"]):
        whole = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", str(folder)]
        done = subprocess.run(whole, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
