"""Types by running ops on fake tensors, in one FakeTensorMode; equal calls are computed once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Node
from torch.fx.node import map_arg

_MODE = FakeTensorMode(allow_non_fake_inputs=False)
_MEMO: dict[Any, Any] = {}
_MEMO_SIZE = 50_000


class UntypedError(Exception):
    """An operand has no recorded type (`meta["val"]`), so nothing can be inferred from it."""


def fake_mode() -> FakeTensorMode:
    """The one mode that all graph types live in (fakes of different modes don't mix)."""
    return _MODE


def fake(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A fake tensor; symbolic sizes are `dims.BATCH` and `dims.CHUNK`."""
    with _MODE:
        return torch.empty(tuple(shape), dtype=dtype)


def _recorded(node: Node) -> Any:
    if "val" not in node.meta:
        raise UntypedError(f"node `{node.name}` has no recorded type")
    return node.meta["val"]


class _NotMemoizedError(Exception):
    """An argument that has no key: a fake of another mode, a symbolic size, a module."""


def _key(value: Any) -> Any:
    """All that the type of a result may depend on; 1, 1.0 and True stay apart."""
    if isinstance(value, FakeTensor):
        if value.fake_mode is not _MODE:
            raise _NotMemoizedError
        return ("tensor", tuple(value.shape), value.stride(), value.dtype, str(value.device))
    if isinstance(value, (list, tuple)):
        return (type(value) is tuple, *(_key(item) for item in value))
    if isinstance(value, (int, float, str, torch.dtype, torch.device, torch.memory_format, torch.layout)):
        return (type(value), value)
    if value is None:
        return None
    raise _NotMemoizedError


def infer(target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Type of `target(*args, **kwargs)`; nodes among the arguments stand for their recorded types.

    Raises UntypedError where a node has none, or whatever the op raises on operands that do not fit. Works in the fake
    mode of the arguments (user graphs from torch.export bring their own).
    """
    values = map_arg(tuple(args), _recorded)
    named = map_arg(dict(kwargs), _recorded)
    if target is operator.getitem and not isinstance(values[0], torch.Tensor):
        return values[0][values[1]]
    if not isinstance(target, torch._ops.OpOverload):
        return _run(target, values, named)
    try:
        key = (target, _key(values), tuple((name, _key(value)) for name, value in named.items()))
    except _NotMemoizedError:
        return _run(target, values, named)
    if key not in _MEMO:
        if len(_MEMO) >= _MEMO_SIZE:
            _MEMO.clear()
        _MEMO[key] = _run(target, values, named)
    return _MEMO[key]


def _run(target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with detect_fake_mode((args, kwargs)) or _MODE:
        return target(*args, **kwargs)
