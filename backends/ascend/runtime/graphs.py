"""The steps as functions of tensors alone, one static graph each: what torchair compiles, exports and caches.

A graph's inputs are the weights, the slots by layer (views of the state, so that what is copied back lands in the
state's own memory) and the step's own tensors. Lengths and tables are among them: nothing that changes from step to
step is a Python number, which would be a graph of its own each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from specc.backends.ascend.runtime.abi import (
    COMMIT_FUSED,
    COMMIT_INPUTS,
    POOLS,
    RECORD,
    ROW_DRAWS,
    UNIFORMS,
    run_accept,
    run_commit,
    run_decode,
    run_draft,
    run_flush,
    run_prefill,
    run_verify,
)
from specc.backends.printing.runtime.abi import (
    SLOTS,
    WEIGHTS,
    Accepted,
    Verified,
    Views,
    Weights,
)
from specc.backends.printing.runtime.stored import store

Tensors = tuple[Tensor, ...]


def flattened(weights: Weights, slots: Views) -> Tensors:
    """All tensors of weights and slots in the order of their fields, layer by layer.

    A pool's batch and rows are one dim: its operator numbers all rows, and in a graph it updates an input in place, but
    not a view of one.
    """
    found: list[Tensor] = []
    values: tuple[Tensor | Sequence[Tensor], ...] = (*weights, *slots)
    for name, value in zip((*weights._fields, *slots._fields), values, strict=True):
        parts = [value] if isinstance(value, Tensor) else value
        found.extend(part.flatten(0, 1) if name in POOLS else part for part in parts)
    return tuple(found)


def rebuilt(tensors: Tensors) -> tuple[Weights, Views, Tensors]:
    """Weights and slots of flattened tensors, and the tensors behind them."""
    place = 0
    fields: list[Any] = []
    layers = [weight.layers for weight in WEIGHTS]
    for slot in SLOTS.values():
        layers.append(slot.shape[0] if slot.batch_dim == 1 else None)
    for count in layers:
        fields.append(
            tensors[place] if count is None else tensors[place : place + count]
        )
        place += 1 if count is None else count
    first = len(WEIGHTS)
    return Weights._make(fields[:first]), Views._make(fields[first:]), tensors[place:]


def record(slots: Views, results: dict[str, Tensor]) -> Tensor:
    """int64 [B,W], all that the host reads of a step: finished, the root token, then `results`."""
    columns = [slots.finished, slots.root_token, *results.values()]
    wide = [column if column.dim() == 2 else column.unsqueeze(1) for column in columns]
    return torch.cat([column.to(torch.int64) for column in wide], dim=1)


def speculative_graph(
    weights: Weights, slots: Views, extra: Tensors
) -> tuple[Views, Tensors]:
    """Draft, verify, accept, and commit where that is part of the same graph.

    A commit that moves rows of a KV cache is not: verify has put its own rows into the same cache, and a cache that two
    writes of one graph change is copied as a whole. A deferred commit only notes what is pending.
    """
    rng, draws = slots.rng, list(extra)
    if ROW_DRAWS is not None:
        slots = slots._replace(rng=draws.pop(0))
    slots, drafted = run_draft(weights, slots)
    slots = slots._replace(rng=rng)
    slots, verified = run_verify(
        weights, slots, drafted.tokens, drafted.parent, drafted.valid
    )
    if "accept" in UNIFORMS:
        slots = slots._replace(rng=draws.pop(0))
    slots, accepted = run_accept(slots, verified, drafted)
    slots = slots._replace(rng=rng)
    known: dict[str, Any] = {}
    for result in (drafted, verified, accepted):
        known.update(zip(result._fields, result, strict=True))
    read = {name: known[name] for name in RECORD}
    if COMMIT_FUSED:
        slots = run_commit(slots, verified, accepted)
        return slots, (record(slots, read),)
    return slots, (record(slots, read), *(known[name] for name in COMMIT_INPUTS))


def commit_graph(
    _weights: Weights, slots: Views, extra: Tensors
) -> tuple[Views, Tensors]:
    """A commit on its own; `extra` are COMMIT_INPUTS."""
    known = dict(zip(COMMIT_INPUTS, extra, strict=True))
    verified = Verified._make(known.get(name) for name in Verified._fields)
    accepted = Accepted._make(known.get(name) for name in Accepted._fields)
    slots = run_commit(slots, verified, accepted)
    return slots, (record(slots, {}),)


def plain_graph(
    weights: Weights, slots: Views, extra: Tensors
) -> tuple[Views, Tensors]:
    """A step without drafts."""
    rng = slots.rng
    slots = slots._replace(rng=extra[0]) if extra else slots
    slots, decoded = run_decode(weights, slots)
    slots = slots._replace(rng=rng)
    return slots, (record(slots, {"emitted": decoded.emitted}),)


def prefill_graph(
    weights: Weights, slots: Views, extra: Tensors
) -> tuple[Views, Tensors]:
    """A chunk of the prompts: input_ids [B,T], lengths [B], and the table of draws if the first token is drawn."""
    rng, (input_ids, lengths, *draws) = slots.rng, extra
    slots = slots._replace(rng=draws[0]) if draws else slots
    slots, _ = run_prefill(weights, slots, input_ids, lengths)
    slots = slots._replace(rng=rng)
    return slots, (record(slots, {}),)


def flush_graph(
    _weights: Weights, slots: Views, _extra: Tensors
) -> tuple[Views, Tensors]:
    """What a deferred commit has left pending."""
    slots = run_flush(slots)
    return slots, (record(slots, {}),)


GRAPHS: dict[str, Callable[[Weights, Views, Tensors], tuple[Views, Tensors]]] = {
    "prefill": prefill_graph,
    "step": speculative_graph,
    "commit": commit_graph,
    "plain": plain_graph,
    "flush": flush_graph,
}


class StepGraph(torch.nn.Module):
    """One step as a function of tensors; its first result is the record that the host reads.

    Every instance has a code object of its own, equal to no other: compiled forms are kept per
    code object, and one graph would otherwise be a recompilation of another. `tokens`: of a
    prefill's chunk.
    """

    def __init__(self, step: str, batch: int, tokens: int = 0) -> None:
        super().__init__()
        self.step, self.batch, self.tokens = step, batch, tokens
        shared = type(self).forward
        code = shared.__code__.replace(co_name=f"{self.name}_{id(self)}")
        own = FunctionType(code, shared.__globals__, self.name)
        self.forward = MethodType(own, self)  # type: ignore[method-assign]

    @property
    def name(self) -> str:
        """Tells the graphs of a module apart: step_4, prefill_4_32."""
        size = f"_{self.tokens}" if self.tokens else ""
        return f"{self.step}_{self.batch}{size}"

    def extra_repr(self) -> str:
        """The name, by which caches of compiled forms know it."""
        return self.name

    def forward(self, *tensors: Tensor) -> Tensors:
        """Run the step on flattened weights and slots and its own inputs; the slots change in place."""
        weights, slots, extra = rebuilt(tensors)
        changed, results = GRAPHS[self.step](weights, slots, extra)
        store(slots, changed)
        return results


def graph_function(step: str, batch: int, tokens: int = 0) -> StepGraph:
    """The function that is compiled for a step: "prefill", "step", "commit", "plain" or "flush".

    Its tensors are `flattened(weights, views(state))` and what `step_inputs` gives. Raises ValueError.
    """
    if step not in GRAPHS:
        raise ValueError(f"there is no step {step!r}, only {', '.join(GRAPHS)}")
    return StepGraph(step, batch, tokens)
