"""What the printed part of an Ascend module provides beside runtime/abi.py of the printing: declarations only.

Nothing of this file is copied. In a generated module these names are printed from the program.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specc.backends.printing.runtime.abi import (
    Accepted,
    Decoded,
    Draft,
    Verified,
    Views,
    Weights,
)

# Results of a whole step that the host reads: name -> columns (0: one number a row), dtype.
RECORD: dict[str, tuple[int, torch.dtype]] = {}
# What the commit graph reads of Verified and Accepted.
COMMIT_INPUTS: tuple[str, ...] = ()
# Whether draft, verify, accept and commit are one graph.
COMMIT_FUSED: bool = True
# Whether a commit can leave anything for a flush.
PENDING: bool = True
# Slots [layers,batch,rows,…] whose rows an operator addresses across the whole batch.
POOLS: tuple[str, ...] = ()
# The most tokens that one prefill takes.
PREFILL_CHUNK: int = 512
# Steps that draw random numbers -> positions and draws of their table.
UNIFORMS: dict[str, tuple[int, int]] = {}


class RowDraws(NamedTuple):
    """The draws of a draft: for every row its offset from `length` and its number, and the size of the vocabulary."""

    offsets: list[int]
    draws: list[int]
    size: int


ROW_DRAWS: RowDraws | None = None


def run_prefill(
    weights: Weights, state: Views, input_ids: Tensor, lengths: Tensor
) -> tuple[Views, Tensor]:
    """Printed from the graph prefill."""
    raise NotImplementedError


def run_decode(weights: Weights, state: Views) -> tuple[Views, Decoded]:
    """Printed from the graph decode."""
    raise NotImplementedError


def run_draft(weights: Weights, state: Views) -> tuple[Views, Draft]:
    """Printed from the graph draft."""
    raise NotImplementedError


def run_verify(
    weights: Weights,
    state: Views,
    tokens: Tensor,
    parent: Tensor | None,
    valid: Tensor | None,
) -> tuple[Views, Verified]:
    """Printed from the graph verify."""
    raise NotImplementedError


def run_accept(
    state: Views, verified: Verified, draft: Draft
) -> tuple[Views, Accepted]:
    """Printed from the graph accept."""
    raise NotImplementedError


def run_commit(state: Views, verified: Verified, accepted: Accepted) -> Views:
    """Printed from the graph commit."""
    raise NotImplementedError


def run_flush(state: Views) -> Views:
    """Printed from the graph flush."""
    raise NotImplementedError
