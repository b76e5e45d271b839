"""Small float64 programs and a plain forward pass to judge them by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specc.ir.interpreter import init_state, run_step
from specc.lower.assemble import lower
from specc.models.random_weights import random_weights
from specc.models.weights import eagle3_weight_table, weight_table
from specc.program import DecodeProgram
from specc.spec import from_mapping
from specc.spec.model import Spec

Tensors = dict[str, Any]
VOCABULARY = 31
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
}


def small_spec(draft: Mapping[str, Any], **sections: Any) -> Spec:
    """A float64 spec of the small llama with this `draft` section."""
    mapping: dict[str, Any] = {
        "specc": 1,
        "name": "small",
        "target": {"family": "llama", "config": SIZES},
        "draft": dict(draft),
        "runtime": {"max_batch_size": 4, "max_sequence_length": 64, "dtype": "float64"},
    }
    return from_mapping(mapping | sections).spec


def prefixed(weights: Mapping[str, Any]) -> Tensors:
    """A model's weights under the names of the drafter."""
    return {f"draft_{name}": value for name, value in weights.items()}


def target_weights(spec: Spec, seed: int = 0) -> Tensors:
    """Random weights of the target."""
    geometry = spec.target.geometry
    return dict(random_weights(weight_table(geometry), geometry, seed, torch.float64))


def perturbed(weights: Mapping[str, Any], size: float, seed: int = 1) -> Tensors:
    """Weights with relative noise: a drafter that often agrees."""
    generator = torch.Generator().manual_seed(seed)

    def noisy(w: torch.Tensor) -> torch.Tensor:
        return w + size * w.std(correction=0) * torch.randn(w.shape, generator=generator, dtype=w.dtype)

    return {k: tuple(noisy(x) for x in v) if isinstance(v, tuple) else noisy(v) for k, v in weights.items()}


def head_weights(spec: Spec, seed: int = 3) -> Tensors:
    """Random weights of the EAGLE-3 head, unprefixed."""
    head = spec.eagle_geometry
    assert head is not None
    table = eagle3_weight_table(
        spec.target.geometry, draft_vocab_size=head.draft_vocab_size, features=head.features_width
    )
    optional = head.draft_vocab_size != head.vocab_size
    return dict(random_weights(table, spec.target.geometry, seed, torch.float64, include_optional=optional))


@dataclass
class Decoding:
    """A program with weights and a running state."""

    program: DecodeProgram
    weights: Tensors
    state: Tensors = field(default_factory=dict)
    texts: list[list[int]] = field(default_factory=list)

    @classmethod
    def start(cls, spec: Spec, weights: Tensors, prompts: Sequence[Sequence[int]], **slots: torch.Tensor) -> Decoding:
        """Prefilled with these prompts; the texts end with the root."""
        program = lower(spec)
        made = cls(program, weights, init_state(program, len(prompts)) | slots, [list(p) for p in prompts])
        made.prefill(prompts)
        for row, text in enumerate(made.texts):
            text.append(int(made.state["root_token"][row]))
        return made

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """One chunk per row, ragged."""
        width = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts])
        self.run("prefill", input_ids=ids, lengths=torch.tensor([len(prompt) for prompt in prompts]))

    def run(self, step: str, **inputs: torch.Tensor) -> Tensors:
        """One step graph; its slots go into the state, its results are returned.

        No index out of range, except where the naive target reads the committed context as -1.
        """
        strict = step in ("draft", "accept", "commit")
        slots, results = run_step(self.program, step, self.state, self.weights, inputs, strict=strict)
        self.state = {**self.state, **slots}
        return results

    def step(self, draft: Tensors | None = None) -> tuple[Tensors, Tensors]:
        """draft, verify, accept, commit; returns the draft and what was accepted."""
        draft = self.run("draft") if draft is None else draft
        inputs = {name: draft[name] for name in ("tokens", "parent", "valid") if name in draft}
        verified = self.run("verify", **{k: v for k, v in inputs.items() if k != "valid" or "parent" in inputs})
        extra = {"q_probs": draft["q_probs"]} if "q_probs" in draft else {}
        accepted = self.run("accept", **inputs, logits=verified["logits"], **extra)
        names = ("path", "emitted_tokens", "emitted", "bonus", "stopped")
        extra = {"features": verified["features"]} if "features" in verified else {}
        self.run("commit", **{name: accepted[name] for name in names}, **extra)
        for row, text in enumerate(self.texts):
            text.extend(accepted["emitted_tokens"][row, : accepted["emitted"][row]].tolist())
        return draft, accepted


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def _rotate(x: torch.Tensor, theta: float) -> torch.Tensor:
    """x [T,H,D] rotated by its row number."""
    half = x.shape[-1] // 2
    angle = torch.arange(len(x), dtype=x.dtype)[:, None] / theta ** (torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat((x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin), -1)


def plain_layer(x: torch.Tensor, inputs: torch.Tensor, w: Mapping[str, torch.Tensor], geometry: Any) -> torch.Tensor:
    """One decoder layer on a whole text [T,H]; `inputs` [T,·] is what attention reads. Plain causal attention."""
    size = geometry.head_dim

    def heads(name: str) -> torch.Tensor:
        return (inputs @ w[name].T).unflatten(-1, (-1, size))

    q, k, v = (
        _rotate(heads("q_proj"), geometry.rope_theta),
        _rotate(heads("k_proj"), geometry.rope_theta),
        heads("v_proj"),
    )
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    scores = torch.einsum("thd,shd->hts", q, k) / math.sqrt(size)
    future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    attended = torch.einsum("hts,shd->thd", scores.masked_fill(future, -math.inf).softmax(-1), v).flatten(1)
    x = x + attended @ w["o_proj"].T
    hidden = _norm(x, w["post_attention_layernorm"], geometry.rms_norm_eps)
    return x + (torch.nn.functional.silu(hidden @ w["gate_proj"].T) * (hidden @ w["up_proj"].T)) @ w["down_proj"].T


def plain_forward(w: Mapping[str, Any], geometry: Any, text: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """logits [T,V] and every layer's output [T,H] of a llama over a whole text: no cache, no batch."""
    x = w["embed_tokens"][torch.tensor(text)]
    outputs = []
    for layer in range(geometry.num_hidden_layers):
        own = {name: value[layer] for name, value in w.items() if isinstance(value, tuple)}
        x = plain_layer(x, _norm(x, own["input_layernorm"], geometry.rms_norm_eps), own, geometry)
        outputs.append(x)
    table = w["embed_tokens"] if geometry.tie_word_embeddings else w["lm_head"]
    return _norm(x, w["norm"], geometry.rms_norm_eps) @ table.T, outputs


def plain_greedy(w: Mapping[str, Any], geometry: Any, prompt: Sequence[int], count: int) -> list[int]:
    """The prompt with `count` more tokens, each the argmax."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(plain_forward(w, geometry, text)[0][-1].argmax()))
    return text
