"""An EAGLE-3 head in plain torch, for training: the same mathematics as the compiled draft stage.

EAGLE-3 (arXiv:2503.01840, section 3.1). A row pairs the feature of position p with the token of position p + 1. fc maps
the target's concatenated aux features to the head's width; attention reads [norm(embedding), norm(feature)], the
residual stream is the feature; then the MLP; the final norm and lm_head give logits over the draft vocabulary. The row
has the rotary position p. `state_dict` has the tensor names of public checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specc.ir.ops.attention import rope_frequencies
from specc.models.geometry import EagleGeometry

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Rotary = tuple[Tensor, Tensor]


class Norm(nn.Module):
    """x / rms(x) * weight, in the precision of the weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.to(self.weight.dtype), (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """Projections of the head's only attention layer; how rows see each other is the caller's choice."""

    def __init__(self, g: EagleGeometry) -> None:
        super().__init__()
        self.head_dim = g.head_dim
        query, key = g.num_attention_heads * g.head_dim, g.num_key_value_heads * g.head_dim
        self.q_proj = nn.Linear(2 * g.hidden_size, query, bias=g.attention_bias)
        self.k_proj = nn.Linear(2 * g.hidden_size, key, bias=g.attention_bias)
        self.v_proj = nn.Linear(2 * g.hidden_size, key, bias=g.attention_bias)
        self.o_proj = nn.Linear(query, g.hidden_size, bias=g.attention_bias)

    def forward(self, x: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """x [B,M,2H] -> [B,M,H]."""
        q, k, v = (part(x).unflatten(-1, (-1, self.head_dim)) for part in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(attend(rotate(q, rotary), rotate(k, rotary), v).flatten(-2))


class GatedMLP(nn.Module):
    """down(SiLU(gate(x)) * up(x))."""

    def __init__(self, g: EagleGeometry) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(g.hidden_size, g.intermediate_size, bias=g.mlp_bias)
        self.up_proj = nn.Linear(g.hidden_size, g.intermediate_size, bias=g.mlp_bias)
        self.down_proj = nn.Linear(g.intermediate_size, g.hidden_size, bias=g.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MidLayer(nn.Module):
    """The decoder layer (`midlayer.` of the checkpoint)."""

    def __init__(self, g: EagleGeometry) -> None:
        super().__init__()
        self.hidden_norm = Norm(g.hidden_size, g.rms_norm_eps)
        self.input_layernorm = Norm(g.hidden_size, g.rms_norm_eps)
        self.self_attn = Attention(g)
        self.post_attention_layernorm = Norm(g.hidden_size, g.rms_norm_eps)
        self.mlp = GatedMLP(g)

    def forward(self, residual: Tensor, embedded: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """residual (the feature) and embedded [B,M,H] -> the head's output before its final norm [B,M,H]."""
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(residual)), -1)
        residual = residual + self.self_attn(x, rotary, attend)
        return residual + self.mlp(self.post_attention_layernorm(residual))


class EagleHead(nn.Module):
    """The head with the target's embedding table [V,H], which it reads and does not own.

    Raises ValueError for a head of another width than the target: it would need embeddings of its own.
    """

    d2t: Tensor
    t2d: Tensor
    embedding: Tensor

    def __init__(self, geometry: EagleGeometry, embedding: Tensor) -> None:
        super().__init__()
        g = geometry
        if embedding.shape != (g.vocab_size, g.hidden_size):
            raise ValueError(f"embeddings {tuple(embedding.shape)} do not fit a head of width {g.hidden_size}")
        self.geometry = geometry
        self.fc = nn.Linear(g.features_width, g.hidden_size, bias=False)
        self.midlayer = MidLayer(g)
        self.norm = Norm(g.hidden_size, g.rms_norm_eps)
        self.lm_head = nn.Linear(g.hidden_size, g.draft_vocab_size, bias=False)
        if g.draft_vocab_size != g.vocab_size:
            self.register_buffer("d2t", torch.zeros(g.draft_vocab_size, dtype=torch.int64))
            self.register_buffer("t2d", torch.zeros(g.vocab_size, dtype=torch.bool))
        self.register_buffer("embedding", embedding.detach(), persistent=False)

    @property
    def target_ids(self) -> Tensor:
        """Target ids [Vd] of the draft ids."""
        ids = torch.arange(self.geometry.draft_vocab_size, device=self.embedding.device)
        return ids + self.d2t if hasattr(self, "d2t") else ids

    def rotary(self, positions: Tensor) -> Rotary:
        """cos, sin [M,D/2] at positions [M], computed in float32 (float64 for a float64 head)."""
        g, dtype = self.geometry, torch.promote_types(self.norm.weight.dtype, torch.float32)
        s = g.rope_scaling
        scaling = (
            []
            if s is None
            else [s.factor, s.low_freq_factor, s.high_freq_factor, float(s.original_max_position_embeddings)]
        )
        angle = positions.to(dtype).unsqueeze(-1) * rope_frequencies(
            g.head_dim, g.rope_theta, scaling, dtype, positions.device
        )
        return angle.cos(), angle.sin()

    def project(self, features: Tensor) -> Tensor:
        """fc: aux features [B,M,F] -> [B,M,H], in the precision of the residual stream."""
        return self.fc(features.to(self.fc.weight.dtype)).to(self.norm.weight.dtype)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [B,M,H]."""
        return F.embedding(tokens, self.embedding)

    def logits(self, hidden: Tensor) -> Tensor:
        """Outputs before the final norm [...,H] -> logits over the draft vocabulary [...,Vd]."""
        return self.lm_head(self.norm(hidden))


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """x [B,M,H,D], rotated in halves by cos, sin [M,D/2]; computed in float32 or better, returned in x's type."""
    cos, sin = (part.unsqueeze(1) for part in rotary)
    first, second = x.to(cos.dtype).chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
