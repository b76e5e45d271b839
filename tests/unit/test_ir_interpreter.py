"""The interpreter: same as running the module, strict about indices, poisons, hooks, and leaves the caller's state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from torch.fx import GraphModule, symbolic_trace

from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.dims import BATCH
from specc.ir.interpreter import (
    Event,
    IndexRangeError,
    Interpreter,
    Poison,
    init_state,
    poison,
    run_step,
    writes_in_place,
)
from specc.ir.port import Port
from specc.program import BUFFERED, DecodeProgram, Slot
from tests.ir_graphs import graphs, inputs

aten = torch.ops.aten
F64 = torch.float64


@given(graphs(writes=True))
def test_it_does_what_the_module_does(module: GraphModule) -> None:
    first, second = inputs(), inputs()
    for left, right in zip(
        [*module(*first), *first], [*Interpreter(module, strict=True).run(*second), *second], strict=True
    ):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


def one_op(target: Any, *args: Any) -> GraphModule:
    """A module of one call; tensors among the arguments become its inputs (lists are walked)."""
    b = GraphBuilder(("verify",))
    made: list[torch.Tensor] = []

    def placeholder(value: Any) -> Any:
        if isinstance(value, list):
            return [placeholder(item) for item in value]
        if not isinstance(value, torch.Tensor):
            return value
        made.append(value)
        return b.graph.placeholder(f"x{len(made)}")

    b.graph.output(b.graph.call_function(target, tuple(placeholder(value) for value in args)))
    module = GraphModule(b.root, b.graph)
    module.meta["inputs"] = made
    return module


X = torch.arange(12.0).reshape(3, 4)


def index(*values: int) -> torch.Tensor:
    return torch.tensor([values])


# (op, arguments with HERE in place of the index, size of the indexed dim)
HERE = object()
CASES: list[tuple[Any, tuple[Any, ...], int]] = [
    (aten.gather.default, (X, 1, HERE), 4),
    (aten.index_select.default, (X, 0, "flat"), 3),
    (aten.index.Tensor, (X, [HERE]), 3),
    (aten.index.Tensor, (X, [None, HERE]), 4),
    (aten.index.Tensor, (X, [HERE, HERE]), 3),
    (aten.index_put.default, (X, [HERE], torch.tensor(1.0)), 3),
    (aten.scatter.src, (X, 1, HERE, torch.ones(1, 1)), 4),
    (aten.scatter.value, (X, 1, HERE, 5.0), 4),
    (aten.scatter_add.default, (X, 1, HERE, torch.ones(1, 1)), 4),
    (aten.embedding.default, (X, HERE), 3),
    (aten.take.default, (X, HERE), 12),
    (aten.take_along_dim.default, (X, HERE, 0), 3),
    (aten.index_copy.default, (X, 0, "flat", torch.ones(1, 4)), 3),
    (aten.index_add.default, (X, 1, "flat", torch.ones(3, 1)), 4),
    (aten.index_fill.int_Scalar, (X, 1, "flat", 0.0), 4),
    (aten.select.int, (X, 0, "int"), 3),
    (aten.select_scatter.default, (X, torch.ones(4), 0, "int"), 3),
    (aten.slice.Tensor, (X, 1, "int", 2**63 - 1), 5),
    (aten.slice.Tensor, (X, 1, 0, "int"), 5),
    (aten.narrow.default, (X, 1, "int", 0), 5),
    (aten.narrow.default, (X, 1, 2, "int"), 3),
    (ops.append_rows, (X.unsqueeze(-1), torch.ones(3, 2, 1), "rows", torch.zeros(3, dtype=torch.int64)), 4),
    (ops.commit_path, (X, torch.ones(3, 2), "path", *[torch.zeros(3, dtype=torch.int64)] * 2, False), 2),
]


def with_index(arguments: tuple[Any, ...], value: int) -> tuple[Any, ...]:
    forms = {
        "flat": torch.tensor([value]),
        "int": value,
        "rows": torch.tensor([0, value, 0]),
        "path": torch.tensor([[0, value]] * 3),
    }

    def put(item: Any) -> Any:
        if item is HERE:
            return index(value)
        if isinstance(item, list):
            return [put(part) for part in item]
        return forms[item] if isinstance(item, str) else item

    return tuple(put(item) for item in arguments)


@pytest.mark.parametrize(("target", "arguments", "size"), CASES)
def test_strict_mode_refuses_every_index_outside_the_range(target: Any, arguments: tuple[Any, ...], size: int) -> None:
    for value in (-1, size, -size - 1, size + 5):
        module = one_op(target, *with_index(arguments, value))
        with pytest.raises(IndexRangeError) as caught:
            Interpreter(module, strict=True).run(*module.meta["inputs"])
        error = caught.value
        assert (error.value, error.low, error.high) == (value, 0, size - 1)
        assert str(target).removesuffix(".default") in error.op
        assert f"holds {value}, outside [0, {size - 1}]" in str(error)


@pytest.mark.parametrize(("target", "arguments", "size"), CASES)
def test_strict_mode_lets_every_index_inside_the_range_pass(target: Any, arguments: tuple[Any, ...], size: int) -> None:
    for value in (0, size - 1):
        module = one_op(target, *with_index(arguments, value))
        strict = Interpreter(module, strict=True).run(*module.meta["inputs"])
        assert torch.equal(strict, Interpreter(module).run(*module.meta["inputs"]))


def test_masks_and_empty_indices_are_fine_in_strict_mode() -> None:
    mask, empty = torch.ones(3, 4, dtype=torch.bool), torch.zeros(0, dtype=torch.int64)
    for arguments in ([mask], [empty], [None, empty]):
        module = one_op(aten.index.Tensor, X, arguments)
        Interpreter(module, strict=True).run(*module.meta["inputs"])
    three = torch.zeros(3, 4, 5)
    module = one_op(aten.index.Tensor, three, [mask, torch.full((12,), 5)])
    with pytest.raises(IndexRangeError) as caught:
        Interpreter(module, strict=True).run(*module.meta["inputs"])
    assert caught.value.operand == "indices[1]"
    assert caught.value.high == 4


def test_strict_mode_sees_into_the_python_functions_of_a_users_graph() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[i], x])

    module = symbolic_trace(function)
    assert Interpreter(module, strict=True).run(X, torch.tensor([2])).shape == (4, 4)
    assert Interpreter(module).run(X, torch.tensor([-1])).shape == (4, 4)
    with pytest.raises(IndexRangeError) as caught:
        Interpreter(module, strict=True).run(X, torch.tensor([-1]))
    assert caught.value.node == "getitem"


def nested() -> GraphModule:
    """rows { cols { c + s } }: 3 x 2 iterations."""
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3, 2), F64))
    zero = b.call(aten.zeros.default, [1], dtype=F64)
    outer = BodyBuilder("layer", carried={"c": zero}, sliced={"r": x}, invariant={}, keys=("verify",))
    inner = BodyBuilder("step", carried={"c": outer["c"]}, sliced={"s": outer["r"]}, invariant={}, keys=("verify",))
    total = inner.call(aten.add.Tensor, inner["c"], inner["s"], name="total")
    sums = inner.close(outer, 2, [total], "cols")
    return b.output(outer.close(b, 3, sums, "rows"))


def test_hooks_see_every_node_with_its_iteration_numbers() -> None:
    seen: list[tuple[tuple[int, ...], float]] = []

    def hook(event: Event) -> None:
        if event.node.name == "total":
            seen.append((event.trips, float(event.value)))

    values = torch.arange(6, dtype=F64).reshape(3, 2)
    (result,) = Interpreter(nested(), hooks=[hook]).run(values)
    assert float(result) == 15
    assert [trips for trips, _ in seen] == [(i, j) for i in range(3) for j in range(2)]
    assert [value for _, value in seen] == [0, 1, 3, 6, 10, 15]


def test_a_hook_can_replace_a_value() -> None:
    hooks = [lambda event: torch.zeros(1, dtype=F64) if event.node.name == "total" else None]
    assert float(Interpreter(nested(), hooks=hooks).run(torch.ones(3, 2, dtype=F64))[0]) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int64, torch.bool])
def test_poison_fills_only_the_named_rows_with_large_finite_values(dtype: torch.dtype) -> None:
    value = torch.zeros(2, 4, 3, dtype=dtype)
    made = poison(value, Poison(dim=1, start=1, stop=3))
    assert not value.any()
    assert not made[:, [0, 3]].any()
    assert made[:, 1:3].all()
    if dtype != torch.bool:
        assert torch.isfinite(made).all()
        assert made[:, 1:3].abs().min() >= (1e4 if dtype == torch.float16 else 1e9)
        assert {bool(item) for item in (made[:, 1:3] > 0).flatten()} == {True, False}


def test_poison_mode_changes_only_nodes_that_declare_rows() -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3, 2), F64))
    table = b.call(aten.mul.Tensor, x, 1.0)
    table.meta["poison"] = Poison(dim=0, start=0, stop=1)
    module = b.output([table, b.call(aten.narrow.default, table, 0, 1, 2)])
    whole, read = Interpreter(module, poison=True).run(torch.ones(3, 2, dtype=F64))
    assert torch.equal(whole[0], torch.tensor([1e30, -1e30], dtype=F64))
    assert torch.equal(read, torch.ones(2, 2, dtype=F64))
    assert torch.equal(Interpreter(module).run(torch.ones(3, 2, dtype=F64))[0], torch.ones(3, 2, dtype=F64))


def program(*, mutable: bool) -> DecodeProgram:
    slots = {
        "cache": Slot("cache", (BATCH, 6, 2), F64, "committed", ""),
        "length": Slot("length", (BATCH,), torch.int64, "committed", "", fill=1),
        "gone": Slot("gone", (BATCH,), torch.int64, "candidate", "", alias="cache"),
    }
    b = GraphBuilder(("commit",))
    cache = b.placeholder("cache", fake((BATCH, 6, 2), F64), Port("slot", "cache"))
    length = b.placeholder("length", fake((BATCH,), torch.int64), Port("slot", "length"))
    rows = b.placeholder("rows", fake((BATCH, 2, 2), F64), Port("input", "rows"))
    w = b.placeholder("w", (fake((2,), F64),) * 2, Port("weight", "w"))
    scaled = b.call(aten.mul.Tensor, rows, b.item(w, 1))
    count = b.call(aten.full_like.default, length, 2)
    grown = b.call(aten.add.Tensor, length, count)
    if mutable:
        b.call(ops.append_rows_, cache, scaled, length, count)
        module = b.output([grown, scaled], [Port("slot", "length"), Port("result", "scaled")])
    else:
        new = b.call(ops.append_rows, cache, scaled, length, count)
        ports = [Port("slot", "cache"), Port("slot", "length"), Port("result", "scaled")]
        module = b.output([new, grown, scaled], ports)
    properties = frozenset({BUFFERED}) if mutable else frozenset[str]()
    return DecodeProgram("p", slots, {}, {"commit": module}, properties)


@pytest.mark.parametrize("mutable", [False, True])
def test_a_step_returns_updates_and_results_and_leaves_the_callers_tensors(mutable: bool) -> None:
    given = program(mutable=mutable)
    state = init_state(given, 3)
    assert set(state) == {"cache", "length"}
    assert state["length"].tolist() == [1, 1, 1]
    before = {name: value.clone() for name, value in state.items()}
    weights = {"w": [torch.zeros(2, dtype=F64), torch.tensor([1.0, 2.0], dtype=F64)]}
    updates, results = run_step(given, "commit", state, weights, {"rows": torch.ones(3, 2, 2, dtype=F64)}, strict=True)
    assert all(torch.equal(before[name], state[name]) for name in state)
    assert torch.equal(updates["cache"][0, :, 1], torch.tensor([0, 2, 2, 0, 0, 0], dtype=F64))
    assert updates["length"].tolist() == [3, 3, 3]
    assert results["scaled"].shape == (3, 2, 2)
    assert writes_in_place(given.graphs["commit"]) is mutable


def test_a_missing_operand_is_named() -> None:
    given = program(mutable=False)
    with pytest.raises(ValueError, match="step `commit` needs input `rows`"):
        run_step(given, "commit", init_state(given, 1), {"w": [torch.zeros(2)] * 2}, {})
