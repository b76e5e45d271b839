"""A simulated drafter: the target's own weights with relative Gaussian noise.

It is a stand-in where no trained drafter is at hand: it costs as much as the target, so its speed says nothing, but its
trees, acceptances and commits are real. Whatever uses it says that it is simulated.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specc.diagnostics import DiagnosticError, error
from specc.models.checkpoint import checkpoint_headers
from specc.runtime.module import GeneratedModule
from specc.spec.model import Spec

PREFIX = "self-perturbed:"


@dataclass(frozen=True, slots=True)
class SelfPerturbed:
    """Each weight w of the target becomes w * (1 + sigma * n), n standard normal by (seed, tensor name)."""

    sigma: float
    seed: int = 0

    def __str__(self) -> str:
        return f"{PREFIX}{self.sigma:g}"


def parse_self_perturbed(text: str, seed: int = 0) -> SelfPerturbed | None:
    """`self-perturbed:SIGMA`, or None for another text. Raises DiagnosticError (SPC413) unless 0 <= SIGMA <= 1."""
    if not text.startswith(PREFIX):
        return None
    try:
        sigma = float(text.removeprefix(PREFIX))
    except ValueError:
        sigma = math.nan
    if not 0 <= sigma <= 1:
        message = f"`{text}`: the noise must be a number from 0 to 1"
        raise DiagnosticError([error("SPC413", message, help=f"such as {PREFIX}0.05")])
    return SelfPerturbed(sigma, seed)


def check_self_perturbed(spec: Spec) -> None:
    """Raise DiagnosticError (SPC413) unless the spec's draft model has the target's family and sizes."""
    if spec.draft.method != "draft_model":
        message = f"a simulated drafter needs `draft.method: draft_model`, the spec has `{spec.draft.method}`"
        raise DiagnosticError([error("SPC413", message, help="give the drafter's own folder")])
    if spec.draft_geometry != spec.target.geometry:
        message = "a simulated drafter needs `draft.config` to equal `target.config`"
        raise DiagnosticError([error("SPC413", message, help="copy target.config into draft.config")])


def perturbed_weights(module: GeneratedModule, folder: Path, drafter: SelfPerturbed, device: str = "cpu") -> Any:
    """`Weights` of the module with the target's folder on both sides and noise on the drafter's.

    The noise of a tensor depends on its name in the checkpoint, not on how passes have joined tensors.
    """
    weights = module.load_weights(folder, folder, device)
    headers = checkpoint_headers(folder)
    for layout, value in zip(module.WEIGHTS, weights, strict=True):
        if layout.model != "draft":
            continue
        layers = value if layout.layers is not None else (value,)
        for layer, tensor in enumerate(layers):
            names = [source.replace("{layer}", str(layer)) for source in layout.sources]
            parts = tensor.split([headers[name].shape[0] for name in names])
            for name, part in zip(names, parts, strict=True):
                add_noise(part, name, drafter)
    return weights


def add_noise(tensor: Tensor, name: str, drafter: SelfPerturbed) -> None:
    """Multiply `tensor` in place by 1 + sigma * n."""
    digest = hashlib.sha256(f"{drafter.seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
    tensor.mul_(noise.mul_(drafter.sigma).add_(1).to(tensor))
