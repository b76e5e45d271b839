"""What GE leaves undefined stops the evaluator; what we have no model of does, too. Nothing is passed over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from specc.backends.ascend.harness.evaluator import Undefined, Unmodelled
from specc.backends.ascend.harness.lower import LoweringFailed, lower
from tests.backends.ascend.harness_support import normal, whole

pytestmark = pytest.mark.usefixtures("torch_npu_wheel")
NPU = torch.ops.npu
X = normal(0, 4, 4)
INFINITE = torch.full((2, 4), float("-inf"))


def placed(*numbers: int) -> torch.Tensor:
    return torch.tensor([[number, 0, 1, 2] for number in numbers])


def attend(query: torch.Tensor, cache: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.ops.air.npu_fused_infer_attention_score(
        query,
        cache,
        cache,
        atten_mask=mask,
        actual_seq_lengths_kv=lengths,
        num_heads=1,
        input_layout="BSND",
        sparse_mode=0,
        scale=0.25,
        inner_precise=0,
    )[0]


ROWS, CACHE = normal(1, 1, 2, 1, 16).half(), normal(2, 1, 8, 1, 16).half()
VISIBLE = torch.zeros(1, 1, 2, 8, dtype=torch.int8)
FULL = torch.tensor([8])

# What is undefined -> a function and inputs for which it is defined, and inputs for which it is not.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "gather -1": (lambda x, i: x.gather(1, i), (X, placed(3, 0)), (X, placed(-1, 0))),
    "gather too far": (lambda x, i: x.gather(1, i), (X, placed(3, 0)), (X, placed(4, 0))),
    "index_select -1": (lambda x, i: x.index_select(0, i), (X, placed(3)[0]), (X, placed(-1)[0])),
    "embedding -1": (lambda x, i: functional.embedding(i, x), (X, placed(3)), (X, placed(-1))),
    "embedding too far": (lambda x, i: functional.embedding(i, x), (X, placed(3)), (X, placed(4))),
    "index -1": (lambda x, i: x[i, i], (X, placed(3)[0]), (X, placed(-1)[0])),
    "scatter -1": (lambda x, i: x.scatter(1, i, 1.0), (X, placed(3)), (X, placed(-1))),
    "scatter twice": (lambda x, i: x.scatter(1, i, 1.0), (X, placed(3)), (X, placed(1))),
    "rows before the cache": (
        lambda c, i, r: NPU.scatter_update(c, i, r, 1),
        (CACHE, torch.tensor([0]), ROWS),
        (CACHE, torch.tensor([-1]), ROWS),
    ),
    "rows behind the cache": (
        lambda c, i, r: NPU.scatter_update(c, i, r, 1),
        (CACHE, torch.tensor([6]), ROWS),
        (CACHE, torch.tensor([7]), ROWS),
    ),
    "a slot written twice": (
        lambda x, i, u: NPU.npu_scatter_nd_update(x, i, u),
        (X, torch.tensor([[1], [3]]), X[:2].clone()),
        (X, torch.tensor([[1], [1]]), X[:2].clone()),
    ),
    "a slot outside": (
        lambda x, i, u: NPU.npu_scatter_nd_update(x, i, u),
        (X, torch.tensor([[1], [3]]), X[:2].clone()),
        (X, torch.tensor([[1], [4]]), X[:2].clone()),
    ),
    "a row that sees nothing": (attend, (ROWS, CACHE, VISIBLE, FULL), (ROWS, CACHE, VISIBLE + 1, FULL)),
    "a mask of 2": (attend, (ROWS, CACHE, VISIBLE, FULL), (ROWS, CACHE, VISIBLE + 2, FULL)),
    "a length beyond the cache": (attend, (ROWS, CACHE, VISIBLE, FULL), (ROWS, CACHE, VISIBLE, FULL + 1)),
    "a length of 0": (attend, (ROWS, CACHE, VISIBLE, FULL), (ROWS, CACHE, VISIBLE, FULL * 0)),
    "a length of -1": (attend, (ROWS, CACHE, VISIBLE, FULL), (ROWS, CACHE, VISIBLE, FULL * 0 - 1)),
    "divided by zero": (lambda x, y: x // y, (placed(1), placed(1) + 1), (placed(1), placed(1))),
    "NaN to a number": (lambda x: x.to(torch.int64), (X,), (X / 0 * 0,)),
    "too large a number": (lambda x: x.to(torch.int32), (X,), (X * 1e10,)),
    "too large for int8": (lambda x: x.to(torch.int8), (placed(100),), (placed(200),)),
    "softmax over nothing": (lambda x: x.softmax(-1), (X,), (INFINITE.expand(2, 2, 4)[0],)),
    "the largest of NaN": (lambda x: x.max(-1), (X,), (X / 0 * 0,)),
    "the place of NaN": (lambda x: x.argmax(-1), (X,), (X / 0 * 0,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_undefined_value_stops_a_graph_that_runs_otherwise(name: str) -> None:
    function, good, bad = CASES[name]
    lowered = lower(function, good)
    lowered.run(*good)
    with pytest.raises(Undefined):
        lower(function, bad).run(*bad)
    lowered.run(*good)


def test_a_planted_index_is_found_in_a_graph_that_was_lowered_with_good_ones() -> None:
    lowered = lower(lambda x, i: x.gather(1, i) + 1, (X, placed(3, 0)))
    with pytest.raises(Undefined, match=r"GatherElements.*an index from -1 to 2 for an axis of 4"):
        lowered.run(X, placed(-1, 0))
    assert lowered.recompiles == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.int64])
def test_a_mask_of_another_type_is_undefined(dtype: torch.dtype) -> None:
    inputs = (ROWS, CACHE, VISIBLE.to(dtype), FULL)
    with pytest.raises(Undefined, match=f"a mask of {dtype}"):
        lower(attend, inputs).run(*inputs)


def test_a_bool_mask_for_one_row_and_many_keys_is_undefined() -> None:
    """Public report vllm-ascend#15503: silently wrong beyond 512 keys."""
    for keys in (512, 513):
        cache = normal(3, 1, keys, 1, 16).half()
        inputs = (ROWS[:, :1].clone(), cache, torch.zeros(1, 1, 1, keys, dtype=torch.bool), torch.tensor([keys]))
        lowered = lower(attend, inputs)
        if keys == 512:
            lowered.run(*inputs)
        else:
            with pytest.raises(Undefined, match="15503"):
                lowered.run(*inputs)


def test_a_negative_or_foreign_fill_is_undefined() -> None:
    for function in (lambda x: functional.pad(x, (-1, 1)), lambda x: functional.pad(x, (1, 1), value=-1)):
        inputs = (whole(0, 9, 2, 4),)
        with pytest.raises(Undefined):
            lower(function, inputs).run(*inputs)


def test_select_may_count_from_the_end() -> None:
    """The only read for which torchair allows it (`negative_index_support`)."""
    assert torch.equal(lower(lambda x: x.select(1, -1) * 1, (X,)).run(X), X[:, -1])


def test_equal_values_come_in_another_order_than_torch_has() -> None:
    """GE promises none: what depends on it must not look right by chance."""
    x = torch.tensor([[5.0, 2.0, 5.0, 1.0, 0.0]])
    values, places = lower(lambda x: torch.topk(x, 3, -1), (x,)).run(x)
    assert places.tolist() == [[2, 0, 1]]
    assert torch.equal(x.gather(1, places), values)
    assert lower(lambda x: x.sort(-1), (x,)).run(x)[1].tolist() == [[4, 3, 1, 2, 0]]


def test_an_op_without_a_model_is_named() -> None:
    inputs = (X,)
    lowered = lower(lambda x: functional.hardswish(x), inputs)
    with pytest.raises(Unmodelled, match="HardSwish"):
        lowered.run(*inputs)


@pytest.mark.parametrize(("attribute", "value"), [("surprise", 1), ("base", 2)])
def test_an_attribute_that_is_not_modelled_is_named(attribute: str, value: int) -> None:
    lowered = lower(torch.exp, (X,))
    (op,) = [op for op in lowered.graph.op if op.type == "Exp"]
    lowered.run(X)
    op.attr[attribute].i = value
    with pytest.raises(Unmodelled, match=f"attribute {attribute}"):
        lowered.run(X)


def test_an_input_that_is_not_modelled_is_named() -> None:
    lowered = lower(torch.sin, (X,))
    (op,) = [op for op in lowered.graph.op if op.type == "Sin"]
    op.input.append(op.input[0])
    op.input_desc.add().name = "surprise"
    with pytest.raises(Unmodelled, match="input surprise"):
        lowered.run(X)


def test_an_op_without_a_converter_fails_with_torchairs_reason() -> None:
    with pytest.raises(LoweringFailed, match=r"aten\.roll\.default ge_converter is not implemented"):
        lower(lambda x: x.roll(1, 0), (X,))


def test_element_types_that_ge_does_not_declare_are_reported() -> None:
    inputs = (X.double(), X > 0, placed(1))
    lowered = lower(lambda x, m, i: (x.masked_fill(m, 0.0), x.gather(1, i), x + 1, torch.where(m, x, x)), inputs)
    assert lowered.graphs[0].undeclared == set()
    lowered.run(*inputs)
    assert lowered.graphs[0].undeclared == {
        "GatherElements: x is torch.float64",
        "MaskedFill: value is torch.float64",
        "MaskedFill: x is torch.float64",
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_usual_element_types_are_declared(dtype: torch.dtype) -> None:
    inputs = (X.to(dtype), X > 0, placed(1))
    lowered = lower(lambda x, m, i: (x.masked_fill(m, 0.0), x.gather(1, i), x @ x, torch.topk(x, 2)), inputs)
    lowered.run(*inputs)
    assert lowered.graphs[0].undeclared == set()
