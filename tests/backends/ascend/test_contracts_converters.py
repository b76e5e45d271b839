"""Ops without a GE converter are refused, and what the finding advises computes the same and is not.

Whether the table is true is asked of the real torchair: what it says is missing does not lower, and the advice does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from specc.backends.ascend.contracts import check_contracts
from specc.backends.ascend.contracts.converters import MISSING
from specc.backends.ascend.harness.lower import LoweringFailed, lower

F = Callable[..., Tensor]
X = torch.linspace(-3.0, 25.0, 12).reshape(3, 4)
Y = torch.linspace(2.0, -2.0, 12).reshape(3, 4)
N = torch.tensor([[3, 0, 2], [1, 1, 5]])
LOWER = torch.tril(Y[:, :3], -1)


@dataclass(frozen=True)
class Case:
    """An op, what to write instead (None: there is no one expression), and inputs."""

    op: F
    instead: F | None
    inputs: tuple[Tensor, ...]


CASES: dict[str, Case] = {
    "index_put": Case(
        lambda x, i: x.index_put((i,), x[:2]),
        lambda x, i: x.scatter(0, i.unsqueeze(1).expand(2, 4), x[:2]),
        (X, torch.tensor([2, 1])),
    ),
    "index_copy": Case(
        lambda x, i: x.index_copy(0, i, x[:2]),
        lambda x, i: x.scatter(0, i.unsqueeze(1).expand(2, 4), x[:2]),
        (X, torch.tensor([2, 1])),
    ),
    "masked_scatter": Case(lambda x, y: x.masked_scatter(x > 5, y), None, (X, Y)),
    "cumprod": Case(lambda x: torch.cumprod(x, 1), lambda x: torch.exp(torch.cumsum(torch.log(x), 1)), (X.abs() + 1,)),
    "roll": Case(lambda x: torch.roll(x, 1, 1), lambda x: torch.cat([x[:, 3:], x[:, :3]], 1), (X,)),
    "softplus": Case(
        torch.nn.functional.softplus,
        lambda x: torch.where(x > 20, x, torch.log1p(torch.exp(torch.clamp(x, max=20)))),
        (X,),
    ),
    "logaddexp": Case(
        torch.logaddexp,
        lambda a, b: torch.maximum(a, b)
        + torch.log(torch.exp(a - torch.maximum(a, b)) + torch.exp(b - torch.maximum(a, b))),
        (X, Y),
    ),
    "eye": Case(lambda x: x @ torch.eye(4), lambda x: x, (X,)),
    "amax": Case(lambda x: torch.amax(x, 1), lambda x: torch.max(x, 1).values, (X,)),
    "amin": Case(lambda x: torch.amin(x, 1), lambda x: -torch.max(-x, 1).values, (X,)),
    "min": Case(lambda x: torch.min(x, 1).values, lambda x: -torch.max(-x, 1).values, (X,)),
    "all": Case(
        lambda x: torch.all(x > 0, 1), lambda x: torch.logical_not(torch.any(torch.logical_not(x > 0), 1)), (X,)
    ),
    "cummax": Case(lambda x: torch.cummax(x, 1).values, None, (X,)),
    "isin": Case(lambda n: torch.isin(n, torch.tensor([1, 5])), None, (N,)),
    "bitwise_and": Case(lambda n: n & 3, lambda n: torch.remainder(n, 4), (N,)),
    "bitwise_left_shift": Case(lambda n: n << 2, lambda n: n * 4, (N,)),
    "bitwise_right_shift": Case(lambda n: n >> 1, lambda n: torch.floor_divide(n, 2), (N,)),
    "sort": Case(lambda x: torch.sort(x, stable=True, descending=True).values, lambda x: torch.topk(x, 4).values, (X,)),
    "isnan": Case(torch.isnan, lambda x: x != x, (X,)),
    "logical_xor": Case(
        lambda a, b: torch.logical_xor(a > 0, b > 0), lambda a, b: torch.ne(a > 0, b > 0), (X, Y)
    ),
    "trunc": Case(torch.trunc, lambda x: torch.where(x < 0, torch.ceil(x), torch.floor(x)), (X,)),
    "exp2": Case(torch.exp2, lambda x: torch.exp(x * math.log(2)), (Y,)),
    "prod": Case(lambda x: torch.prod(x, 1), lambda x: x[:, 0] * x[:, 1] * x[:, 2] * x[:, 3], (Y,)),
    "linalg_solve_triangular": Case(
        lambda a: torch.linalg.solve_triangular(a, a, upper=False, unitriangular=True), None, (LOWER,)
    ),
}  # fmt: skip


def refused(function: F, inputs: tuple[Tensor, ...]) -> Iterator[str]:
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    for item in check_contracts(
        graph, ranges={node.name: (0, 2) for node in graph.graph.nodes if node.op == "placeholder"}
    ):
        yield f"{item.code} {item.help}"


@pytest.mark.parametrize("name", CASES)
def test_op_is_refused_with_its_remedy(name: str) -> None:
    case = CASES[name]
    assert f"SPC570 {MISSING[name].remedy}" in set(refused(case.op, case.inputs))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.instead is not None])
def test_remedy_is_not_refused_and_computes_the_same(name: str) -> None:
    case = CASES[name]
    assert case.instead is not None
    assert [line for line in refused(case.instead, case.inputs) if line.startswith("SPC57")] == []
    torch.testing.assert_close(case.instead(*case.inputs), case.op(*case.inputs))


@pytest.mark.usefixtures("torch_npu_wheel")
@pytest.mark.parametrize("name", CASES)
def test_torchair_agrees_that_there_is_no_converter(name: str) -> None:
    case = CASES[name]
    with pytest.raises(LoweringFailed):
        lower(case.op, case.inputs)


@pytest.mark.usefixtures("torch_npu_wheel")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.instead is not None])
def test_torchair_lowers_the_remedy(name: str) -> None:
    case = CASES[name]
    assert case.instead is not None
    graph = lower(case.instead, case.inputs)
    torch.testing.assert_close(graph.run(*case.inputs), case.op(*case.inputs))


@pytest.mark.parametrize("function", [
    lambda x: x[x > 0], lambda x: torch.nonzero(x), lambda x: torch.masked_select(x, x > 0),
])  # fmt: skip
def test_sizes_that_depend_on_data_are_refused(function: F) -> None:
    class Selected(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    graph = torch.export.export(Selected(), (X,)).module()
    assert "SPC570" in {item.code for item in check_contracts(graph)}


def test_a_branch_is_refused() -> None:
    class Branching(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    graph = torch.export.export(Branching(), (X,)).module()
    assert [item.code for item in check_contracts(graph)] == ["SPC570"]
