"""What a traced step is rewritten to before lowering gives the same values, in fewer operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from specc.backends.ascend.harness import counts
from specc.backends.ascend.harness.lower import lower
from specc.backends.ascend.runtime.rewrite import simplify
from tests.backends.ascend.harness_support import assert_same, normal


def rewritten(function: Callable[..., Any], *inputs: Tensor) -> list[str]:
    """The calls of a function after the rewriting, which gives what it gave."""
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    simplify(graph)
    assert_same(graph(*inputs), function(*inputs))
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    return [str(node.target).removeprefix("aten.") for node in calls]


def test_a_transposition_keeps_its_reshape_apart_without_a_copy() -> None:
    def heads(x: Tensor) -> Tensor:
        return x.permute(0, 2, 1).reshape(-1, x.shape[1])

    assert rewritten(heads, normal(0, 2, 3, 4)) == ["permute.default", "expand.default", "reshape.default"]


def test_transpositions_that_undo_each_other_go() -> None:
    assert rewritten(lambda w: w.permute(2, 1, 0).permute(2, 1, 0) + 1, normal(0, 4, 1, 3)) == ["add.Tensor"]
    assert rewritten(lambda w: w.transpose(0, 1).permute(1, 2, 0) + 1, normal(0, 4, 1, 3))[0] == "permute.default"


def test_products_of_one_shape_and_with_a_repeated_operand() -> None:
    assert rewritten(lambda x, y: x * y, normal(0, 2, 3), normal(1, 2, 3)) == ["prims.mul.default"]
    assert rewritten(lambda x, y: x * y, normal(0, 2, 3), normal(1, 3)) == ["full.default", "addcmul.default"]
    assert rewritten(lambda x, y: x * y, torch.arange(3), torch.arange(3)) == ["mul.Tensor"]
    assert rewritten(lambda x, y: x * y, normal(0, 3), normal(1, 3).half()) == ["mul.Tensor"]


def test_what_works_row_by_row_gets_rows() -> None:
    def stream(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        total = y.reshape(2, 3, 4) + x.reshape(2, 3, 4)
        return torch.mm((total + y.reshape(2, 3, 4)).reshape(-1, 4), w)

    found = rewritten(stream, normal(0, 6, 4), normal(1, 6, 4), normal(2, 4, 5))
    assert found == ["add.Tensor", "add.Tensor", "mm.default"]


def test_slices_that_do_not_overlap_are_one_split() -> None:
    def parts(x: Tensor) -> list[Tensor]:
        return [x.narrow(1, 0, 2) + 1, x.narrow(1, 2, 3) + 2, x.narrow(1, 6, 1) + 3]

    found = rewritten(parts, normal(0, 2, 8))
    assert [name for name in found if "add" not in name and "getitem" not in name] == ["split_with_sizes.default"]
    overlapping = rewritten(lambda x: x.narrow(1, 0, 3) + x.narrow(1, 2, 3), normal(0, 2, 8))
    assert overlapping == ["slice.Tensor", "slice.Tensor", "add.Tensor"]


def test_a_slice_of_what_is_split_is_a_part_of_the_split() -> None:
    def parts(x: Tensor) -> Tensor:
        return x.narrow(1, 0, 4) * x.split([2, 2, 4], 1)[2]

    assert sum(name[0] == "s" for name in rewritten(parts, normal(0, 2, 8))) == 1


def test_nothing_behind_a_write_is_touched() -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y

    graph = make_fx(step, tracing_mode="fake")(normal(0, 3), normal(1, 3))
    simplify(graph)
    assert "aten.mul.Tensor" in [str(node.target) for node in graph.graph.nodes]


@pytest.mark.usefixtures("torch_npu_wheel")
def test_lowered_graphs_keep_transpositions_and_lose_what_does_nothing() -> None:
    """torchair would take a reshape of transposed memory for a view of it, and forget the transposition."""

    def step(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        rows = x.permute(0, 2, 1).reshape(-1, x.shape[1])
        return torch.mm(rows, w).reshape(2, -1, w.shape[1]) * scale

    inputs = normal(0, 2, 3, 4), normal(1, 3, 3), normal(2, 3)
    lowered = lower(step, inputs)
    torch.testing.assert_close(lowered.run(*inputs), step(*inputs), rtol=1e-5, atol=1e-6)
    found = counts.op_counts(lowered.graph)
    assert found == {"Transpose": 1, "MatMul": 1, "Reshape": found["Reshape"], "Addcmul": 1}
