"""Structured loops: `loop(axis, body, trip, carried, sliced, invariant) -> (*carried', *stacked)`.

Semantics of a Python for loop (a scan). The body is a GraphModule with placeholders
`index, *carried, *slices, *invariant` (`index` is a Python int) that returns `(*carried', *stacked)`.
How an operand is sliced, and a result stacked, depends on the axis:

* `token`: dim 1, which is kept ([B,N,…] -> [B,1,…]); results are concatenated along dim 1;
* `layer`, `step`: dim 0, which is dropped ([L,…] -> […]), or the i-th element of a tuple of tensors; results
  are stacked along a new dim 0.

`trip` is an int, or None: then it is the size of the first sliced tensor along its axis (prompt chunks).
A HigherOrderOperator, because FX deletes a plain function whose body mutates, and can't pickle or retrace it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch._C import DispatchKey
from torch._guards import detect_fake_mode
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode

AXES = ("token", "layer", "step")
Operand = torch.Tensor | Sequence[torch.Tensor]


class Loop(HigherOrderOperator):
    """The operator; `loop` below is its one instance."""

    def __init__(self) -> None:
        super().__init__("specc_loop")  # type: ignore[no-untyped-call]

    def __call__(
        self,
        axis: str,
        body: Callable[..., Sequence[Any]],
        trip: int | None,
        carried: Sequence[Any],
        sliced: Sequence[Any],
        invariant: Sequence[Any],
    ) -> tuple[Any, ...]:
        return cast("tuple[Any, ...]", super().__call__(axis, body, trip, carried, sliced, invariant))  # type: ignore[no-untyped-call]


loop = Loop()


def trip_count(axis: str, trip: int | None, sliced: Sequence[Operand]) -> int:
    """The number of iterations. Raises ValueError where neither `trip` nor a sliced operand gives it."""
    if trip is not None:
        return trip
    if not sliced:
        raise ValueError("a loop without a trip count needs a sliced operand")
    first = sliced[0]
    if not isinstance(first, torch.Tensor):
        return len(first)
    return int(first.shape[1 if axis == "token" else 0])


def slice_operand(axis: str, operand: Operand, index: int) -> torch.Tensor:
    """The part of `operand` that iteration `index` sees (a view)."""
    if not isinstance(operand, torch.Tensor):
        return operand[index]
    return operand.narrow(1, index, 1) if axis == "token" else operand.select(0, index)


def stack_results(axis: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Inverse of slicing: `token` concatenates along dim 1, the others stack along dim 0."""
    return torch.cat(list(parts), dim=1) if axis == "token" else torch.stack(list(parts), dim=0)


def run_loop(
    axis: str,
    body: Callable[..., Sequence[Any]],
    trip: int | None,
    carried: Sequence[Any],
    sliced: Sequence[Any],
    invariant: Sequence[Any],
) -> tuple[Any, ...]:
    """The reference semantics; `body` may be any callable, which is how interpreters hook in."""
    values = list(carried)
    stacked: list[list[torch.Tensor]] = []
    for index in range(trip_count(axis, trip, sliced)):
        parts = [slice_operand(axis, operand, index) for operand in sliced]
        results = list(body(index, *values, *parts, *invariant))
        values = results[: len(carried)]
        for position, part in enumerate(results[len(carried) :]):
            if position == len(stacked):
                stacked.append([])
            stacked[position].append(part)
    return (*values, *(stack_results(axis, parts) for parts in stacked))


def fake_loop(
    axis: str,
    body: Callable[..., Sequence[Any]],
    trip: int | None,
    carried: Sequence[Any],
    sliced: Sequence[Any],
    invariant: Sequence[Any],
) -> tuple[Any, ...]:
    """Types of the results from one visit of the body (not one per trip)."""
    count = trip_count(axis, trip, sliced)
    parts = [slice_operand(axis, operand, 0) for operand in sliced]
    results = list(body(0, *carried, *parts, *invariant))
    out: list[Any] = list(results[: len(carried)])
    for part in results[len(carried) :]:
        shape = list(part.shape)
        if axis == "token":
            shape[1] = shape[1] * count
        else:
            shape.insert(0, count)
        out.append(part.new_empty(shape))
    return tuple(out)


def _autograd_loop(*args: Any) -> tuple[Any, ...]:
    """Autograd records the ops of the iterations. Its key comes before that of fake tensors, so look for those here."""
    mode = detect_fake_mode(args[3:])
    return run_loop(*args) if mode is None else _fake_mode_loop(mode, *args)


@loop.py_impl(FakeTensorMode)
def _fake_mode_loop(mode: FakeTensorMode, *args: Any) -> tuple[Any, ...]:
    with mode:
        return fake_loop(*args)


loop.py_impl(DispatchKey.CompositeExplicitAutograd)(run_loop)
loop.py_impl(DispatchKey.AutogradCPU)(_autograd_loop)
loop.py_impl(DispatchKey.AutogradCUDA)(_autograd_loop)
