"""How a host function is held against its op: the same results, only ops that GE has, no address out of range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.compile_utils import fx_graph_cse
from torch.fx.experimental.proxy_tensor import make_fx

from specc.backends.ascend.ops.table import KERNELS
from specc.ir.op import REGISTRY
from specc.ir.strict import StrictMode

DECLARED = {declared.name: declared for declared in REGISTRY.values()}

# Aten overloads that torchair 2.13 converts, as far as our functions use them: its own list names about 360.
CONVERTED = frozenset(
    """
    _log_softmax.default _softmax.default _to_copy.default _unsafe_view.default abs.default add.Tensor addcmul.default
    addmm.default alias.default any.dim arange.default arange.start arange.start_step argmax.default
    bitwise_and.Tensor bitwise_not.default bitwise_or.Tensor bmm.default cat.default clamp.default clamp_min.default
    clone.default cos.default cumsum.default detach.default div.Tensor div.Tensor_mode eq.Scalar eq.Tensor exp.default
    expand.default floor_divide.default full.default full_like.default gather.default ge.Scalar ge.Tensor gt.Scalar
    gt.Tensor index_select.default le.Scalar le.Tensor lift_fresh_copy.default log.default log1p.default
    logical_and.default logical_not.default logical_or.default lt.Scalar lt.Tensor masked_fill.Scalar max.dim
    maximum.default mm.default mul.Tensor ne.Scalar ne.Tensor neg.default new_zeros.default ones_like.default
    permute.default pow.Scalar reciprocal.default remainder.Scalar rsqrt.default rsub.Scalar scalar_tensor.default
    select.int sigmoid.default silu.default sin.default slice.Tensor sort.default split_with_sizes.default
    sqrt.default squeeze.dim stack.default sub.Tensor sum.dim_IntList t.default topk.default transpose.int
    tril.default unbind.int unsqueeze.default view.default where.self zeros.default zeros_like.default
    """.split()  # noqa: SIM905
)


def traced_ops(function: Callable[..., Any], *arguments: Any, merged: bool = False) -> list[str]:
    """The aten overloads that a function becomes, in order; ops that are made of others are taken apart.

    `merged`: equal ones once, as in a compiled step.
    """
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]

    def call(*values: torch.Tensor) -> Any:
        left = iter(values)
        return function(*(next(left) if isinstance(value, torch.Tensor) else value for value in arguments))

    with torch.no_grad():
        graph = make_fx(call)(*tensors).graph
    graph = fx_graph_cse(graph) if merged else graph
    names = [str(node.target) for node in graph.nodes if node.op == "call_function" and "getitem" not in str(node)]
    return [name.removeprefix("aten.") for name in names]


def assert_convertible(function: Callable[..., Any], *arguments: Any) -> None:
    """Fails with the names of ops that GE has no form of."""
    missing = set(traced_ops(function, *arguments)) - CONVERTED
    assert not missing, f"GE has no form of {sorted(missing)}"


def strictly(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's results; raises IndexRangeError for any address that is not in its operand."""
    with torch.no_grad(), StrictMode(function.__name__):
        return function(*arguments)


def assert_close(made: Any, wanted: Any, bound: float | None) -> None:
    """Tensors or tuples of them: the same values (None), or within `bound` of their size."""
    as_tuple = lambda x: (x,) if isinstance(x, torch.Tensor) else tuple(x)  # noqa: E731
    for left, right in zip(as_tuple(made), as_tuple(wanted), strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        if bound is None or not right.is_floating_point():
            assert torch.equal(left, right)
        else:
            size = max(1.0, float(right.abs().max())) if right.numel() else 1.0
            torch.testing.assert_close(left, right, rtol=bound, atol=bound * size)


def agree(name: str, arguments: Sequence[Any], bound: float | None = None) -> Any:
    """The host function of op `name` gives what the op gives, from addresses in range, and changes no operand."""
    kept = [value.clone() if isinstance(value, torch.Tensor) else value for value in arguments]
    made = strictly(KERNELS[name], *arguments)
    for value, before in zip(arguments, kept, strict=True):
        if isinstance(value, torch.Tensor):
            assert torch.equal(value.nan_to_num(7.0), before.nan_to_num(7.0))
    assert_close(made, DECLARED[name].reference(*kept), bound)
    return made
