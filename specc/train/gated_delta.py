"""The Gated DeltaNet language model for training, in plain torch.

Modules and parameters bear the names of flash-linear-attention's `GatedDeltaNetForCausalLM` checkpoints, so that a
state dict of this model is such a checkpoint. Conventions read from that project, version 0.6.0: l2 norm with
sum + 1e-6, q scaled by head_dim^-1/2, g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b), depthwise causal
convolution with SiLU on q, k and v, RMSNorm over each head's values times SiLU(gate), norm epsilon 1e-6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specc.train.bpe import END_ID
from specc.train.chunk import chunk_gated_delta_rule, l2_norm

INITIAL_STD = 0.02
MIN_STEP, MAX_STEP, STEP_FLOOR = 1e-3, 1e-1, 1e-4
MAX_DECAY_RATE = 16.0


@dataclass(frozen=True, slots=True)
class GatedDeltaConfig:
    """Geometry, by the config keys of the checkpoint layout."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_heads: int
    head_dim: int
    intermediate_size: int
    conv_size: int = 4
    norm_eps: float = 1e-6
    allow_neg_eigval: bool = False

    @property
    def inner_size(self) -> int:
        """Channels of q, of k and of v (expand_v is 1)."""
        return self.num_heads * self.head_dim

    def to_json(self) -> dict[str, Any]:
        """config.json of the checkpoint."""
        return {
            "architectures": ["GatedDeltaNetForCausalLM"],
            "model_type": "gated_deltanet",
            "attn": None,
            "attn_mode": "chunk",
            "allow_neg_eigval": self.allow_neg_eigval,
            "bos_token_id": END_ID,
            "conv_size": self.conv_size,
            "eos_token_id": END_ID,
            "expand_v": 1.0,
            "head_dim": self.head_dim,
            "hidden_act": "swish",
            "hidden_size": self.hidden_size,
            "initializer_range": INITIAL_STD,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": 2048,
            "norm_eps": self.norm_eps,
            "num_heads": self.num_heads,
            "num_v_heads": None,
            "num_hidden_layers": self.num_hidden_layers,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_gate": True,
            "use_short_conv": True,
            "vocab_size": self.vocab_size,
        }

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> GatedDeltaConfig:
        """The geometry of a config.json that `to_json` wrote."""
        return cls(**{name: config[name] for name in cls.__dataclass_fields__})


def configs(vocab_size: int) -> dict[str, GatedDeltaConfig]:
    """The named configurations: `small` is the shipped model, `tiny` trains in seconds on a CPU."""
    return {
        "small": GatedDeltaConfig(vocab_size, 256, 16, 2, 128, 640),
        "tiny": GatedDeltaConfig(vocab_size, 64, 2, 2, 32, 128),
    }


class RMSNorm(nn.Module):
    """x / rms(x) * weight, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class ShortConvolution(nn.Module):
    """Causal depthwise convolution with SiLU; weight [C, 1, W], the last tap is the current position."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        width, length = self.weight.shape[-1], x.shape[1]
        padded = F.pad(x, (0, 0, width - 1, 0))
        taps = [padded[:, tap : tap + length] * self.weight[:, 0, tap] for tap in range(width)]
        return F.silu(sum(taps[1:], taps[0]))


class GatedDeltaNet(nn.Module):
    """The recurrent layer; x [B, T, D] -> [B, T, D]."""

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__()
        self.config = config
        hidden, inner = config.hidden_size, config.inner_size
        self.q_proj = nn.Linear(hidden, inner, bias=False)
        self.k_proj = nn.Linear(hidden, inner, bias=False)
        self.v_proj = nn.Linear(hidden, inner, bias=False)
        self.a_proj = nn.Linear(hidden, config.num_heads, bias=False)
        self.b_proj = nn.Linear(hidden, config.num_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(config.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(config.num_heads))
        self.q_conv1d = ShortConvolution(inner, config.conv_size)
        self.k_conv1d = ShortConvolution(inner, config.conv_size)
        self.v_conv1d = ShortConvolution(inner, config.conv_size)
        self.g_proj = nn.Linear(hidden, inner, bias=False)
        self.o_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.o_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner, heads = self.config.inner_size, self.config.num_heads
        wide = torch.cat([p.weight for p in (self.q_proj, self.k_proj, self.v_proj, self.g_proj)])
        mixed, gate = F.linear(x, wide).split([3 * inner, inner], dim=-1)
        narrow = torch.cat([self.a_proj.weight, self.b_proj.weight])
        with torch.autocast(x.device.type, enabled=False):
            a, b = F.linear(x.to(narrow.dtype), narrow).chunk(2, dim=-1)
            g = -self.A_log.exp() * F.softplus(a + self.dt_bias)
            beta = b.sigmoid() * (2.0 if self.config.allow_neg_eigval else 1.0)
        convolutions = (self.q_conv1d, self.k_conv1d, self.v_conv1d)
        q, k, v = (
            conv(part).unflatten(-1, (heads, -1)) for conv, part in zip(convolutions, mixed.chunk(3, -1), strict=True)
        )
        o, _ = chunk_gated_delta_rule(l2_norm(q), l2_norm(k), v, g, beta)
        gated = self.o_norm(o) * F.silu(gate.unflatten(-1, (heads, -1)).to(o.dtype))
        return self.o_proj(gated.flatten(-2))


class GatedMLP(nn.Module):
    """down(SiLU(gate(x)) * up(x))."""

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attn = GatedDeltaNet(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """`model.` of the checkpoint: embeddings, layers, last norm."""

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class GatedDeltaModel(nn.Module):
    """Language model with tied embeddings: ids [B, T] -> logits [B, T, vocabulary]."""

    def __init__(self, config: GatedDeltaConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        initialise(self, torch.Generator().manual_seed(seed))

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.model(ids), self.model.embeddings.weight)


def initialise(model: GatedDeltaModel, random: torch.Generator) -> None:
    """Normal weights of std 0.02, projections into the residual stream divided by sqrt(2 layers); decay rates uniform
    in [0, 16], step sizes log-uniform in [1e-3, 1e-1] (through the inverse of softplus); taps uniform in +-W^-1/2.
    """
    residual = 1 / math.sqrt(2 * model.config.num_hidden_layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            kind = name.rsplit(".", 1)[-1]
            if kind == "A_log":
                parameter.copy_(torch.empty_like(parameter).uniform_(1e-3, MAX_DECAY_RATE, generator=random).log())
            elif kind == "dt_bias":
                low, high = math.log(MIN_STEP), math.log(MAX_STEP)
                step = torch.empty_like(parameter).uniform_(low, high, generator=random).exp().clamp_min(STEP_FLOOR)
                parameter.copy_(step + torch.log(-torch.expm1(-step)))
            elif "conv1d" in name:
                parameter.uniform_(-(parameter.shape[-1] ** -0.5), parameter.shape[-1] ** -0.5, generator=random)
            elif parameter.dim() == 2:
                into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                parameter.normal_(0.0, INITIAL_STD * (residual if into_residual else 1.0), generator=random)
