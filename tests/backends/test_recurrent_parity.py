"""Generated modules of recurrent and hybrid targets against transformers' Qwen3-Next and the Gated DeltaNet judge.

Checkpoints are written under public names and read back by each side's own loader.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specc.driver import compile_spec
from specc.models.geometry import Geometry
from specc.spec import from_mapping, load
from tests.backends import fla_reference
from tests.backends.hf_reference import hf_greedy, hf_logits, in_float64, qwen3_next_model
from tests.backends.recurrent_models import RECURRENT_MODELS, write_model
from tests.backends.reference_support import load_text

BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}
NAMES = list(RECURRENT_MODELS)
TREE = {"method": "prompt_lookup", "tree": "dynamic", "top_k": 2, "num_steps": 3, "num_speculative_tokens": 6}
COMMITS = {
    "snapshots": {"state": "snapshots", "update": "immediate"},
    "windowed factors": {"state": "factors", "update": "deferred", "window": 4},
}
SPECS = Path(__file__).resolve().parents[2] / "specs"
STOP = ["accept.stop_tokens=[]"]
Logits = Callable[[torch.Tensor], torch.Tensor]
Greedy = Callable[[torch.Tensor, int], torch.Tensor]


def module_of(family: str, folder: Path, dtype: str, commit: str, schedule: str) -> types.ModuleType:
    loaded = from_mapping(
        {
            "specc": 1,
            "name": "parity",
            "target": {"family": family, "checkpoint": str(folder)},
            "draft": TREE,
            "verify": {"recurrence": schedule},
            "commit": COMMITS[commit],
            "runtime": {"max_batch_size": 2, "max_sequence_length": 256, "dtype": dtype, "state_dtype": dtype},
        }
    )
    return load_text(compile_spec(loaded).source)


def judge(geometry: Geometry, folder: Path, dtype: torch.dtype) -> tuple[Logits, Greedy]:
    """logits(ids [B,T]) and greedy(ids, count) of the peer, which loads the same folder."""
    if geometry.family == "qwen3_next":
        model = qwen3_next_model(folder, dtype)
        model = in_float64(model) if dtype == torch.float64 else model
        return lambda ids: hf_logits(model, ids), lambda ids, count: hf_greedy(model, ids, count)
    other = fla_reference.load(folder).to(dtype)
    return lambda ids: other(ids).detach(), lambda ids, count: other.greedy(ids, count)


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """max|a - b| / max|b|."""
    return float((ours - theirs).abs().max()) / float(theirs.abs().max())


@pytest.mark.parametrize("dtype", BOUNDS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_greedy_text_equal_the_peer(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    geometry, place = RECURRENT_MODELS[name], NAMES.index(name)
    write_model(geometry, tmp_path, dtype=dtype)
    logits_of, greedy_of = judge(geometry, tmp_path, dtype)
    commit, schedule = list(COMMITS)[place % 2], ("tree", "serial", "hybrid", "replay")[place % 4]
    module = module_of(geometry.family, tmp_path, str(dtype).removeprefix("torch."), commit, schedule)
    ours, bound = module.load_weights(tmp_path), BOUNDS[dtype]
    ids = torch.randint(0, geometry.vocab_size, (2, 130), generator=torch.Generator().manual_seed(1))
    wanted = logits_of(ids)
    # The prompt in two chunks (the first longer than a chunk of the recurrence), then a tree along the text.
    state, logits = module.prefill(ours, module.init_state(2), ids[:, :90], torch.tensor([90, 90]))
    assert distance(logits, wanted[:, 89]) <= bound
    state, logits = module.prefill(ours, state, ids[:, 90:120], torch.tensor([30, 30]))
    assert distance(logits, wanted[:, 119]) <= bound
    tokens = torch.cat((ids[:, 120:124], (ids[:, 123:124] + 1) % 61, (ids[:, 122:123] + 1) % 61, ids[:, :1]), dim=1)
    parent = torch.tensor([[-1, 0, 1, 2, 2, 1, 0]]).expand(2, -1)
    _, verified = module.verify(ours, state, tokens, parent, torch.ones(2, 7, dtype=torch.bool))
    assert distance(verified.logits[:, :4], wanted[:, 120:124]) <= bound
    branch = torch.cat((ids[:, :123], tokens[:, 4:5]), dim=1)
    assert distance(verified.logits[:, 4], logits_of(branch)[:, -1]) <= bound
    text = module.Decoder(ours).generate(ids[:, :20].tolist(), 40)
    assert text.tokens == greedy_of(ids[:, :20], 40).tolist()
    assert any(len(row) > 1 for step in text.steps for row in step.emitted)


@pytest.mark.slow
def test_the_shipped_hybrid_config_equals_transformers(tmp_path: Path) -> None:
    """specs/qwen3-next-hybrid.yaml at its own widths and heads, with fewer layers, experts and tokens."""
    shipped = load(SPECS / "qwen3-next-hybrid.yaml")
    smaller = ("num_hidden_layers=4", "num_experts=12", "vocab_size=1000")
    loaded = load(SPECS / "qwen3-next-hybrid.yaml", [f"target.config.{change}" for change in smaller] + STOP)
    geometry = loaded.spec.target.geometry
    assert replace(
        geometry, num_hidden_layers=48, layer_types=(), moe_layers=(), moe=None, vocab_size=151936
    ) == replace(shipped.spec.target.geometry, layer_types=(), moe_layers=(), moe=None)
    write_model(geometry, tmp_path, dtype=torch.float32)
    logits_of, greedy_of = judge(geometry, tmp_path, torch.float32)
    module = load_text(compile_spec(loaded).source)
    ours = module.load_weights(tmp_path)
    ids = torch.randint(0, 1000, (1, 80), generator=torch.Generator().manual_seed(1))
    _, logits = module.prefill(ours, module.init_state(1), ids, torch.tensor([80]))
    assert distance(logits, logits_of(ids)[:, -1]) <= BOUNDS[torch.float32]
    assert module.Decoder(ours).generate(ids.tolist(), 16).tokens == greedy_of(ids, 16).tolist()
