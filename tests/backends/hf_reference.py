"""Hugging Face models built from our geometry and weights: the outside reference for parity tests.

transformers computes RMSNorm and rotary angles in float32 whatever the model's type is, so that a float64
model agrees with a float64 program only to about 1e-7. `float64_model` replaces exactly these two: the norm
by the same formula without the cast, the rotary tables by transformers' own frequency functions evaluated
in float64. All else (projections, attention, masks, cache, tied head) is transformers' code unchanged, with
eager attention's float32 softmax avoided by `sdpa`. `tests/unit/test_checkpoint_parity.py` checks that the
patched model equals the unpatched one to float32 accuracy.

Qwen3-Next names float32 in many more places (norms, delta rule, decays, router). There the code stays as it is and
the names change: `computing_in_float64` makes `torch.float32`, `torch.float` and `Tensor.float` of its module mean
float64 while the model runs. `tests/unit/test_families_recurrent.py` compares with the unpatched model.
"""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.qwen3_next import modeling_qwen3_next

from specc.models.checkpoint import save_checkpoint, stored_tensors
from specc.models.families import hugging_face_config
from specc.models.geometry import Geometry
from specc.models.weights import weight_table

LogicalWeights = Mapping[str, torch.Tensor | tuple[torch.Tensor, ...]]


class Float64RMSNorm(nn.Module):
    """x * rsqrt(mean(x^2) + eps) * weight, in the type of x."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.epsilon = epsilon

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        variance = hidden_states.square().mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.epsilon))


class Float64Rotary(nn.Module):
    """cos and sin [B, T, head_dim] in float64; frequencies by transformers' functions."""

    def __init__(self, rotary: Any) -> None:
        super().__init__()
        kind = rotary.rope_type
        frequencies = rotary.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
        # Both functions name their working type `torch.float`.
        with mock.patch.object(torch, "float", torch.float64):
            inv_freq, self.scaling = frequencies(rotary.config)
        assert inv_freq.dtype == torch.float64
        torch.testing.assert_close(inv_freq.float(), rotary.inv_freq.float(), rtol=1e-6, atol=0.0)
        self.inv_freq = inv_freq

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * self.inv_freq.to(x.device)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * self.scaling, angles.sin() * self.scaling


def hf_model(geometry: Geometry, weights: LogicalWeights, dtype: torch.dtype) -> PreTrainedModel:
    """The transformers model with our weights, unpatched. `pangu` is llama with attention biases."""
    if geometry.family == "qwen3_next":
        with tempfile.TemporaryDirectory() as folder:
            table = weight_table(geometry)
            save_checkpoint(Path(folder), weights, table, hugging_face_config(geometry, str(dtype)[len("torch.") :]))
            return qwen3_next_model(Path(folder), dtype)
    raw = hugging_face_config(geometry)
    biases = {"attention_bias": geometry.qkv_bias, "use_cache": True}
    if geometry.family == "qwen3":
        config, model_class = Qwen3Config(**(raw | biases)), Qwen3ForCausalLM
    else:
        config, model_class = LlamaConfig(**(raw | biases | {"model_type": "llama"})), LlamaForCausalLM
    config._attn_implementation = "sdpa"
    model = model_class(config).to(dtype).eval()
    state = {name: tensor.to(dtype) for name, tensor in stored_tensors(weights, weight_table(geometry)).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= ({"lm_head.weight"} if geometry.tie_word_embeddings else set()), missing
    model.tie_weights()
    return model


def float64_model(geometry: Geometry, weights: LogicalWeights) -> PreTrainedModel:
    """`hf_model` in float64 throughout (see the module's docstring)."""
    model = hf_model(geometry, weights, torch.float64)
    if geometry.family == "qwen3_next":
        return in_float64(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, (LlamaRMSNorm, Qwen3RMSNorm)):
                setattr(parent, name, Float64RMSNorm(child.weight, child.variance_epsilon))
    model.model.rotary_emb = Float64Rotary(model.model.rotary_emb)
    return model


def qwen3_next_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """transformers' own loading of a checkpoint folder, which joins the experts; every tensor must be found."""
    model, report = Qwen3NextForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa", experts_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval()


class _Widened:
    """A module as another one sees it, its float32 being float64."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def computing_in_float64(module: Any) -> Iterator[None]:
    """Let the code of `module`, which casts to float32 by name, compute in float64."""
    with mock.patch.object(module, "torch", _Widened()), mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


def in_float64(model: PreTrainedModel) -> PreTrainedModel:
    """A Qwen3-Next model of float64 weights that computes in float64 throughout."""
    with computing_in_float64(modeling_qwen3_next):
        model.model.rotary_emb = modeling_qwen3_next.Qwen3NextRotaryEmbedding(model.config)
    assert model.model.rotary_emb.inv_freq.dtype == torch.float64
    forward = model.forward

    @functools.wraps(forward)
    def widened(*args: Any, **keywords: Any) -> Any:
        with computing_in_float64(modeling_qwen3_next):
            return forward(*args, **keywords)

    model.forward = widened
    return model


@torch.no_grad()
def hf_logits(model: PreTrainedModel, input_ids: torch.Tensor) -> torch.Tensor:
    """Logits [B, T, vocab_size] of `input_ids` [B, T], all rows of full length."""
    return model(input_ids=input_ids, use_cache=False).logits


@torch.no_grad()
def hf_greedy(model: PreTrainedModel, input_ids: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """`num_tokens` greedy tokens [B, num_tokens] after `input_ids` [B, T], stop tokens ignored."""
    # Transformers 5.24 renamed the argument.
    keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    # A cache that knows the config has the states of recurrent layers too.
    cache = {keyword: DynamicCache(config=model.config)}
    step_ids, out = input_ids, []
    for _ in range(num_tokens):
        step_ids = model(input_ids=step_ids, use_cache=True, **cache).logits[:, -1:].argmax(-1)
        out.append(step_ids)
    return torch.cat(out, dim=1)
