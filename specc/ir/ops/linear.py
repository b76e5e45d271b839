"""A linear layer with what stands directly in front of and behind it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specc.ir.op import op

ACTIVATIONS = ("none", "silu_mul")


def _fused_linear_fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    activation: str,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation}")
    features = weight.shape[0] // (2 if activation == "silu_mul" else 1)
    return x.new_empty((*x.shape[:-1], features))


@op(
    "fused_linear(Tensor x, Tensor weight, Tensor? bias, Tensor? norm_weight, float eps, str activation, "
    "Tensor? residual) -> Tensor",
    fake=_fused_linear_fake,
    rows=("x", "residual"),
)
def fused_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    activation: str,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """y = act(rms_norm(x) W^T + bias) (+ residual) for each row of x [B,M,H] -> [B,M,F].

    weight [F,H], bias [F]; with activation "silu_mul" [2F,H] and [2F], gate rows first, and act(gate, up) =
    silu(gate) * up; with "none" act is the identity. rms_norm(x) = x / sqrt(mean(x^2) + eps) * norm_weight [H]; without
    `norm_weight` x goes in as it is (`eps` is then not used). residual [B,M,F].
    """
    if norm_weight is not None:
        x = torch.rms_norm(x, norm_weight.shape, norm_weight, eps)
    y = F.linear(x, weight, bias)
    if activation == "silu_mul":
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    return y if residual is None else residual + y
