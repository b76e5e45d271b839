"""Frozen targets: the models that drafters are trained for, in plain torch, with what training reads out of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from specc.diagnostics import DiagnosticError, error
from specc.models.checkpoint import checkpoint_headers, load_checkpoint
from specc.models.families import checkpoint_geometry
from specc.models.geometry import AuxFeature
from specc.models.weights import weight_table
from specc.train.draft.gated_delta_decode import GatedDeltaTarget
from specc.train.draft.llama import LlamaTarget


class Decoding(Protocol):
    """A batch of texts under way: one cache row per text, all of them on the device.

    `lengths` [B] are the tokens that each row holds. A step reads `attended` columns of context: whoever knows that
    all rows stay shorter may set it to another one of `attended_sizes`, so that less is read.
    """

    lengths: Tensor
    attended: int

    @property
    def attended_sizes(self) -> tuple[int, ...]:
        """What `attended` may be, from small to large; the last one is the capacity."""

    def prefill(self, ids: Tensor, lengths: Tensor, rows: Tensor | None = None) -> Tensor:
        """Begin texts anew: ids [n,T] padded on the right, lengths [n], rows [n] (all B where absent); logits [n,V]
        behind the last token of each."""

    def step(self, tokens: Tensor, active: Tensor | None = None) -> Tensor:
        """Append tokens [B]; logits [B,V] behind them. Rows that are not `active` [B] (bool) stay as long as they were:
        what is written there is written over. Nothing is read by the host: a step can be captured as a CUDA graph.
        """


class FrozenTarget(Protocol):
    """A target without gradients. `embedding` [V,H]."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def embedding(self) -> Tensor: ...

    def states(self, ids: Tensor, shown: Sequence[AuxFeature]) -> tuple[Tensor, Tensor]:
        """ids [B,T], padded on the right -> features [B,T,F], those of `shown` side by side in order, and the hidden
        states behind the final norm [B,T,H].

        A readout is the input of a recurrent layer's output projection. ValueError for a kind that there is not.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states behind the final norm [..,H] -> logits [..,V] in float32."""

    def open(self, batch: int, capacity: int) -> Decoding:
        """Room for `batch` texts of at most `capacity` tokens."""


def load_target(folder: Path, device: torch.device | str, dtype: torch.dtype) -> FrozenTarget:
    """The model of a Hugging Face folder. DiagnosticError as `load_checkpoint`, and SPC477 for other families."""
    geometry = checkpoint_geometry(folder)
    table = weight_table(geometry)
    if geometry.family == "gated_deltanet":
        # Decay rates and convolutions stay in float32 whatever the type of the matrices.
        weights = load_checkpoint(folder, table, geometry, torch.float32, device)
        return GatedDeltaTarget(geometry, weights, dtype)
    if geometry.recurrent or geometry.gated_attention:
        message = f"drafters are not trained for targets of family `{geometry.family}` yet"
        raise DiagnosticError([error("SPC477", message, help="llama, qwen3, pangu and gated_deltanet are supported")])
    return LlamaTarget(geometry, load_checkpoint(folder, table, geometry, dtype, device))


def target_fingerprint(folder: Path) -> str:
    """Hexadecimal digest of config.json, tokenizer.json and the weight files: what the texts of a target depend on."""
    files = {header.file for header in checkpoint_headers(folder).values()}
    named = [path for name in ("config.json", "tokenizer.json") if (path := folder / name).is_file()]
    digest = hashlib.blake2b(digest_size=16)
    for path in [*named, *sorted(files)]:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()
