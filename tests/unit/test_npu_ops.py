"""The ops of the NPU form: masks and attention agree with those of the value form, and what is undefined raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.ir import ops

B, HQ, HKV, D = 2, 4, 2, 16
HALF = torch.bfloat16


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    rows, capacity = draw(st.integers(1, 4)), draw(st.integers(5, 9))
    length = torch.tensor([draw(st.integers(0, capacity - rows)) for _ in range(B)])
    mask = torch.tensor([[[draw(st.booleans()) or i == j for i in range(rows)] for j in range(rows)] for _ in range(B)])
    q, new = random(B, rows, HQ, D), (random(B, rows, HKV, D, seed=1), random(B, rows, HKV, D, seed=2))
    caches = random(B, capacity, HKV, D, seed=3), random(B, capacity, HKV, D, seed=4)
    depth = torch.tensor([draw(st.integers(0, 3)) for _ in range(rows)])
    return {"q": q, "new": new, "caches": caches, "length": length, "mask": mask, "depth": depth}


@given(case=cases(), window=st.integers(0, 3), tree=st.booleans(), apart=st.booleans())
@settings(max_examples=60)
def test_masked_attention_sees_what_the_value_form_sees(
    case: dict[str, Any], window: int, tree: bool, apart: bool
) -> None:
    length, q, rows = case["length"], case["q"], case["q"].shape[1]
    positions = length[:, None] + (case["depth"] if tree else torch.arange(rows))
    operands = q, *case["caches"], length, *case["new"]
    if tree:
        expected = ops.tree_attention(*operands, case["mask"], positions, 0.3, window, False)
    else:
        expected = ops.causal_attention(*operands, positions, 0, 0.3, window, False)
    capacity = case["caches"][0].shape[1]
    hidden = ops.attention_mask(length, case["mask"] if tree else None, positions, capacity, window, apart)
    if apart:
        made = ops.masked_attention(q, *case["caches"], hidden, 0.3, *case["new"])
    else:
        placed = [ops.npu_scatter_update(x, length, new, 1) for x, new in zip(case["caches"], case["new"], strict=True)]
        made = ops.masked_attention(q, *placed, hidden, 0.3)
        half = [x.to(HALF) for x in (q, *placed)]
        ends = length + rows
        fused = ops.npu_fused_infer_attention_score(*half, hidden, ends, HQ, HKV, 0.3, "BSND", 1, 2)
        torch.testing.assert_close(fused.double(), expected, rtol=0.05, atol=0.05)
    torch.testing.assert_close(made, expected, rtol=1e-11, atol=1e-12)


@given(data=st.data())
def test_joined_rows_are_the_path_and_then_the_new_rows(data: st.DataObject) -> None:
    nodes, width, new = (data.draw(st.integers(1, 4)) for _ in range(3))
    path = torch.tensor([[data.draw(st.integers(0, nodes - 1)) for _ in range(width)] for _ in range(B)])
    count = torch.tensor([data.draw(st.integers(0, width)) for _ in range(B)])
    candidate, rows = random(B, nodes, 1), random(B, new, 1, seed=1)
    made = ops.joined_rows(candidate, rows, path, count)
    for row in range(B):
        kept = int(count[row])
        wanted = torch.cat((candidate[row, path[row, :kept]], rows[row]))
        assert torch.equal(made[row, : kept + new], wanted)
    assert torch.equal(ops.joined_rows(candidate, None, path, count), candidate[torch.arange(B)[:, None], path])


CACHE, ROWS = torch.zeros(1, 4, 1, 16), torch.ones(1, 2, 1, 16)
KV = torch.zeros(1, 4, 1, 16, dtype=HALF)
ONES = torch.ones(1, 1, 2, 4, dtype=torch.int8)
QUERY = torch.zeros(1, 2, 1, 16, dtype=HALF)


def fused(**changes: Any) -> torch.Tensor:
    given = {"q": QUERY, "k": KV, "v": KV, "atten_mask": ONES * 0, "actual_seq_lengths_kv": torch.tensor([4])}
    given |= {"num_heads": 1, "num_key_value_heads": 1, "scale": 1.0, "input_layout": "BSND"}
    return ops.npu_fused_infer_attention_score(**{**given, "sparse_mode": 1, "inner_precise": 0, **changes})


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (IndexError, lambda: ops.npu_scatter_update(CACHE, torch.tensor([3]), ROWS, 1)),
        (IndexError, lambda: ops.npu_scatter_update(CACHE, torch.tensor([-1]), ROWS, 1)),
        (ValueError, lambda: ops.npu_scatter_update(CACHE, torch.tensor([0]), ROWS, 2)),
        (ValueError, lambda: ops.npu_scatter_update(CACHE, torch.tensor([0]), ROWS.half(), 1)),
        (IndexError, lambda: ops.joined_rows(ROWS, ROWS, torch.tensor([[2]]), torch.tensor([0]))),
        (IndexError, lambda: ops.joined_rows(ROWS, ROWS, torch.tensor([[0]]), torch.tensor([2]))),
        (IndexError, lambda: ops.attention_mask(torch.tensor([3]), None, torch.tensor([[3, 4]]), 4, 0)),
        (ValueError, lambda: ops.masked_attention(QUERY, KV, KV, ONES.bool(), 1.0)),
        (ValueError, lambda: ops.npu_rms_norm(ROWS, torch.ones(2), 1e-6)),
        (ValueError, lambda: ops.npu_rotary_mul(ROWS, torch.ones(1, 2, 16), torch.ones(1, 2, 16))),
        (ValueError, lambda: ops.npu_swiglu(torch.ones(1, 3))),
        (ValueError, lambda: fused(q=QUERY.float())),
        (ValueError, lambda: fused(atten_mask=ONES)),
        (ValueError, lambda: fused(atten_mask=ONES.bool())),
        (ValueError, lambda: fused(input_layout="BNSD")),
        (ValueError, lambda: fused(sparse_mode=3)),
        (IndexError, lambda: fused(actual_seq_lengths_kv=torch.tensor([0]))),
        (IndexError, lambda: fused(actual_seq_lengths_kv=torch.tensor([5]))),
    ],
)
def test_what_the_device_leaves_undefined_raises(kind: type[Exception], call: Any) -> None:
    with pytest.raises(kind):
        call()


def test_a_query_that_sees_nothing_is_zero_where_the_operator_says_so() -> None:
    assert fused(atten_mask=ONES, inner_precise=2, v=KV + 1).abs().sum() == 0
    assert fused(v=KV + 1).eq(1).all()
