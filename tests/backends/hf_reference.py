"""Hugging Face models built from our geometry and weights: the outside reference for parity tests.

transformers computes RMSNorm and rotary angles in float32 whatever the model's type is, so that a float64
model agrees with a float64 program only to about 1e-7. `float64_model` replaces exactly these two: the norm
by the same formula without the cast, the rotary tables by transformers' own frequency functions evaluated
in float64. All else (projections, attention, masks, cache, tied head) is transformers' code unchanged, with
eager attention's float32 softmax avoided by `sdpa`. `tests/unit/test_checkpoint_parity.py` checks that the
patched model equals the unpatched one to float32 accuracy.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
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
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from specc.models.checkpoint import stored_tensors
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
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, (LlamaRMSNorm, Qwen3RMSNorm)):
                setattr(parent, name, Float64RMSNorm(child.weight, child.variance_epsilon))
    model.model.rotary_emb = Float64Rotary(model.model.rotary_emb)
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
    cache = {keyword: DynamicCache()}
    step_ids, out = input_ids, []
    for _ in range(num_tokens):
        step_ids = model(input_ids=step_ids, use_cache=True, **cache).logits[:, -1:].argmax(-1)
        out.append(step_ids)
    return torch.cat(out, dim=1)
