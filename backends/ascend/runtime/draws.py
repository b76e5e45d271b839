"""Random numbers as inputs of a step: the hash of the counters has no operators in a GE graph, so it runs before it."""

from __future__ import annotations

from torch import Tensor

from specc.backends.ascend.ops.random import uniform_rows, uniform_table
from specc.backends.ascend.runtime.abi import ROW_DRAWS, UNIFORMS
from specc.backends.printing.runtime.abi import State


def table(step: str, state: State, base: Tensor) -> tuple[Tensor, ...]:
    """The numbers that a step may ask for from position `base` [B] on; none if it draws nothing."""
    if step not in UNIFORMS:
        return ()
    positions, draws = UNIFORMS[step]
    return (uniform_table(state.rng, base, positions, draws),)


def draws_of(step: str, state: State, extra: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The random inputs of a graph, in its order. They depend on the state before the step alone."""
    if step == "prefill":
        return table("prefill", state, state.length + extra[1])
    if step == "plain":
        return table("decode", state, state.length + 1)
    if step != "step":
        return ()
    rows: tuple[Tensor, ...] = ()
    if ROW_DRAWS is not None:
        rows = (uniform_rows(state.rng, state.length, *ROW_DRAWS),)
    return (*rows, *table("accept", state, state.length + 1))
