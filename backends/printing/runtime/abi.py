"""What the printed part of a generated module provides to the copied part: declarations for type checking only.

Nothing of this file is copied. In a generated module these names are printed from the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SPEC: dict[str, Any] = {}
MAX_SEQUENCE_LENGTH: int = 0
MAX_BATCH_SIZE: int = 0
VOCAB_SIZE: int = 0
SEED: int = 0
MATRICES_BY_COLUMNS: bool = True


class SlotLayout(NamedTuple):
    """One field of State: shape (-1: the batch, -n: n times it), dtype, batch dimension (-1: shared), initial value."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    batch_dim: int
    fill: float


class WeightLayout(NamedTuple):
    """One field of Weights: shape and dtype of a tensor, the checkpoint tensors it is made of, layers, folder.

    Tensor i belongs to decoder layer first_layer + i * layer_step. With experts > 0 it is the sources of expert 0,
    then those of expert 1, and so on. `form` is what `prepared` makes of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    sources: tuple[str, ...]
    layers: int | None
    model: str
    first_layer: int = 0
    layer_step: int = 1
    experts: int = 0
    form: str = ""


SLOTS: dict[str, SlotLayout] = {}
WEIGHTS: tuple[WeightLayout, ...] = ()


class Weights(NamedTuple):
    """Printed from the program's weights."""

    embed_tokens: Tensor


class State(NamedTuple):
    """Printed from the program's slots."""

    length: Tensor
    root_token: Tensor
    finished: Tensor
    remaining: Tensor
    rng: Tensor
    # Of modules with paged caches.
    block_table: Tensor
    page_owner: Tensor


class Views(NamedTuple):
    """Printed from the program's slots, where step functions take them by layer."""

    length: Tensor
    root_token: Tensor
    finished: Tensor
    remaining: Tensor
    rng: Tensor
    # Stands for the layered slots.
    k_cache: Sequence[Tensor]


class Draft(NamedTuple):
    """Printed from the results of draft."""

    tokens: Tensor
    valid: Tensor
    parent: Tensor | None = None


class Verified(NamedTuple):
    """Printed from the results of verify."""

    logits: Tensor


class Accepted(NamedTuple):
    """Printed from the results of accept."""

    path: Tensor
    accept_length: Tensor
    bonus: Tensor
    emitted_tokens: Tensor
    emitted: Tensor
    stopped: Tensor


class Decoded(NamedTuple):
    """Printed from the results of decode."""

    logits: Tensor
    emitted: Tensor


def init_state(batch: int, device: torch.device | str = "cpu") -> State:
    """Printed from the program's slots."""
    raise NotImplementedError


def flush(state: State) -> State:
    """Printed from the graph flush."""
    raise NotImplementedError


def run_prefill(
    weights: Weights, state: State, input_ids: Tensor, lengths: Tensor
) -> tuple[State, Tensor]:
    """Printed from the graph prefill."""
    raise NotImplementedError


def run_decode(weights: Weights, state: State) -> tuple[State, Decoded]:
    """Printed from the graph decode."""
    raise NotImplementedError


def run_draft(weights: Weights, state: State) -> tuple[State, Draft]:
    """Printed from the graph draft."""
    raise NotImplementedError


def run_verify(
    weights: Weights,
    state: State,
    tokens: Tensor,
    parent: Tensor | None,
    valid: Tensor | None,
) -> tuple[State, Verified]:
    """Printed from the graph verify."""
    raise NotImplementedError


def run_accept(
    state: State, verified: Verified, draft: Draft
) -> tuple[State, Accepted]:
    """Printed from the graph accept."""
    raise NotImplementedError


def run_commit(state: State, verified: Verified, accepted: Accepted) -> State:
    """Printed from the graph commit."""
    raise NotImplementedError


class Stepped(NamedTuple):
    """Printed from the results of a whole step."""

    record: Tensor
    tokens: Tensor
    valid: Tensor
    path: Tensor
    accept_length: Tensor
    bonus: Tensor
    emitted_tokens: Tensor
    emitted: Tensor
    stopped: Tensor
    parent: Tensor | None = None


class Plain(NamedTuple):
    """Printed from the results of a whole step without drafts."""

    record: Tensor
    emitted: Tensor


def run_plain_step(weights: Weights, state: State) -> Plain:
    """Printed from the graph of a whole step without drafts; the state changes in place."""
    raise NotImplementedError


def run_step(weights: Weights, state: State) -> Stepped:
    """Printed from the graph of a whole step; the state changes in place."""
    raise NotImplementedError


def run_flush(state: State) -> State:
    """Printed from the graph flush."""
    raise NotImplementedError
