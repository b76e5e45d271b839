"""A Gated DeltaNet language model in plain torch, in the parameter layout of flash-linear-attention: an outside judge.

It is written from the published formulas and shares nothing with the compiler: parameters have the names that
flash-linear-attention's `GatedDeltaNetForCausalLM` gives them, settings are read from its config keys, and every
token is one step of the recurrence in the matrix form of the paper (Yang, Kautz, Hatamizadeh, "Gated Delta Networks",
2024, equation 10; negative eigenvalues: Grazzi et al., 2024):

    S_t = S_{t-1} (alpha_t (I - beta_t k_t k_t^T)) + beta_t v_t k_t^T        o_t = S_t q_t

with alpha = exp(-exp(A_log) softplus(a + dt_bias)), beta = sigmoid(b) or twice that, q and k of unit length, and q
scaled by K^-1/2. All of it is float64. `tests/backends/test_fla_peer.py` compares it with flash-linear-attention's own
layer code where that is at hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

L2_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class FlaConfig:
    """The keys of flash-linear-attention's GatedDeltaNetConfig that change the computation, with its defaults."""

    vocab_size: int = 32000
    hidden_size: int = 2048
    num_hidden_layers: int = 21
    num_heads: int = 6
    num_v_heads: int | None = None
    head_dim: int = 256
    expand_v: float = 2.0
    use_gate: bool = True
    use_short_conv: bool = True
    conv_size: int = 4
    conv_bias: bool = False
    allow_neg_eigval: bool = False
    hidden_ratio: int | None = 4
    intermediate_size: int | None = None
    norm_eps: float = 1e-6
    tie_word_embeddings: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> FlaConfig:
        """From a config.json; keys of other purposes are left out."""
        return cls(**{key: value for key, value in config.items() if key in cls.__dataclass_fields__})

    @property
    def value_heads(self) -> int:
        return self.num_heads if self.num_v_heads is None else self.num_v_heads

    @property
    def value_dim(self) -> int:
        return int(self.head_dim * self.expand_v)

    @property
    def mlp_width(self) -> int:
        if self.intermediate_size is not None:
            return self.intermediate_size
        width = int(self.hidden_size * (self.hidden_ratio or 4) * 2 / 3)
        return 256 * ((width + 255) // 256)


class Norm(nn.Module):
    """RMSNorm, times silu(gate) where a gate is given."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        normed = x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.epsilon) * self.weight
        return normed if gate is None else normed * F.silu(gate)


class ShortConvolution(nn.Module):
    """A causal convolution of each channel alone, then SiLU; weight [D,1,W], the last tap on the newest input."""

    def __init__(self, size: int, taps: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, 1, taps))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x [B,T,D] -> [B,T,D]."""
        taps, length = self.weight.shape[-1], x.shape[1]
        total = torch.zeros_like(x) if self.bias is None else self.bias.expand_as(x).clone()
        for back in range(taps):
            earlier = F.pad(x, (0, 0, back, 0))[:, :length]
            total = total + earlier * self.weight[:, 0, taps - 1 - back]
        return F.silu(total)


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One head per row: q, k [R,T,K] (k of unit length), v [R,T,V], alpha, beta [R,T] -> o [R,T,V], final S [R,V,K]."""
    rows, length, size = k.shape
    state = torch.zeros(rows, v.shape[-1], size, dtype=k.dtype)
    identity = torch.eye(size, dtype=k.dtype)
    out = []
    for t in range(length):
        key, rate = k[:, t], beta[:, t, None, None]
        transition = alpha[:, t, None, None] * (identity - rate * key[:, :, None] * key[:, None, :])
        state = state @ transition + rate * v[:, t, :, None] * key[:, None, :]
        out.append((state @ q[:, t, :, None]).squeeze(-1))
    return torch.stack(out, dim=1), state


class GatedDeltaNet(nn.Module):
    """The token mixer."""

    def __init__(self, config: FlaConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.value_heads
        keys, values = config.num_heads * config.head_dim, heads * config.value_dim
        sizes = {"q": keys, "k": keys, "v": values}
        for letter, size in sizes.items():
            setattr(self, f"{letter}_proj", nn.Linear(hidden, size, bias=False))
            if config.use_short_conv:
                setattr(self, f"{letter}_conv1d", ShortConvolution(size, config.conv_size, config.conv_bias))
        self.a_proj = nn.Linear(hidden, heads, bias=False)
        self.b_proj = nn.Linear(hidden, heads, bias=False)
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(torch.zeros(heads))
        if config.use_gate:
            self.g_proj = nn.Linear(hidden, values, bias=False)
        self.o_norm = Norm(config.value_dim, config.norm_eps)
        self.o_proj = nn.Linear(values, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)[0]

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B,T,hidden] -> output [B,T,hidden], final states [B,HV,V,K]."""
        config, batch = self.config, x.shape[0]
        q, k, v = (self._heads(letter, x) for letter in "qkv")
        q, k = (value / torch.sqrt((value * value).sum(-1, keepdim=True) + L2_EPSILON) for value in (q, k))
        shared = config.value_heads // config.num_heads
        q, k = (value.repeat_interleave(shared, dim=2) for value in (q * config.head_dim**-0.5, k))
        alpha = torch.exp(-torch.exp(self.A_log) * F.softplus(self.a_proj(x) + self.dt_bias))
        beta = torch.sigmoid(self.b_proj(x)) * (2 if config.allow_neg_eigval else 1)
        rows = [value.transpose(1, 2).flatten(0, 1) for value in (q, k, v, alpha, beta)]
        out, state = gated_delta_rule(*rows)
        out = out.unflatten(0, (batch, -1)).transpose(1, 2)
        gate = self.g_proj(x).unflatten(-1, (config.value_heads, -1)) if config.use_gate else None
        return self.o_proj(self.o_norm(out, gate).flatten(-2)), state.unflatten(0, (batch, -1))

    def _heads(self, letter: str, x: Tensor) -> Tensor:
        projected = getattr(self, f"{letter}_proj")(x)
        mixed = getattr(self, f"{letter}_conv1d")(projected) if self.config.use_short_conv else F.silu(projected)
        return mixed.unflatten(-1, (self.config.value_heads if letter == "v" else self.config.num_heads, -1))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: FlaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.mlp_width, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.mlp_width, bias=False)
        self.down_proj = nn.Linear(config.mlp_width, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Mixer and MLP, each on the normed input and added to it."""

    def __init__(self, config: FlaConfig) -> None:
        super().__init__()
        self.attn_norm = Norm(config.hidden_size, config.norm_eps)
        self.attn = GatedDeltaNet(config)
        self.mlp_norm = Norm(config.hidden_size, config.norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Embeddings, blocks, the last norm."""

    def __init__(self, config: FlaConfig) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.norm_eps)


class FlaModel(nn.Module):
    """`GatedDeltaNetForCausalLM`, in float64."""

    def __init__(self, config: FlaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embeddings.weight
        self.double()

    @torch.no_grad()
    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits [B,T,vocab_size] of `input_ids` [B,T]."""
        x = self.model.embeddings(input_ids)
        for block in self.model.layers:
            x = block(x)
        return self.lm_head(self.model.norm(x))

    def greedy(self, input_ids: Tensor, num_tokens: int) -> Tensor:
        """`num_tokens` greedy tokens [B, num_tokens] after `input_ids` [B,T], the whole text anew for each."""
        text = input_ids
        for _ in range(num_tokens):
            text = torch.cat((text, self(text)[:, -1:].argmax(-1)), dim=1)
        return text[:, input_ids.shape[1] :]

    def save(self, folder: Path, dtype: torch.dtype = torch.float64) -> None:
        """A checkpoint folder as `save_pretrained` of flash-linear-attention writes it: a tied head is left out."""
        folder.mkdir(parents=True, exist_ok=True)
        tied = self.config.tie_word_embeddings
        tensors = {name: value for name, value in self.state_dict().items() if not (tied and name == "lm_head.weight")}
        save_file({name: value.to(dtype).contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
        keys = {name: getattr(self.config, name) for name in self.config.__dataclass_fields__}
        fixed = {"attn": None, "attn_mode": "chunk", "hidden_act": "swish", "fuse_norm": True, "fuse_swiglu": True}
        names = {"architectures": ["GatedDeltaNetForCausalLM"], "model_type": "gated_deltanet"}
        text = json.dumps({**names, **keys, **fixed, "torch_dtype": str(dtype).removeprefix("torch.")}, indent=2)
        (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def load(folder: Path) -> FlaModel:
    """The model of a checkpoint folder with `model.safetensors`; every parameter must be there, and nothing else."""
    model = FlaModel(FlaConfig.of(json.loads((folder / "config.json").read_text(encoding="utf-8"))))
    tensors = {name: value.double() for name, value in load_file(folder / "model.safetensors").items()}
    if model.config.tie_word_embeddings:
        tensors.setdefault("lm_head.weight", tensors["model.embeddings.weight"])
    model.load_state_dict(tensors)
    return model.eval()
