"""The host functions through the real torchair: the GE graph gives what the function gives, and nothing undefined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specc.backends.ascend import cpu
from specc.backends.ascend.harness.lower import lower
from specc.backends.ascend.ops import (
    aten,
    attention,
    cache,
    conv,
    create,
    delta,
    draft,
    moe,
    npu,
    random,
    rows,
    sampling,
)
from tests.backends.ascend.op_support import assert_close
from tests.unit.delta_cases import random_rows, tree_of

pytestmark = [pytest.mark.usefixtures("torch_npu_wheel"), pytest.mark.slow]

F32, F64 = torch.float32, torch.float64
GENERATOR = torch.Generator().manual_seed(5)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def whole(*values: Any) -> torch.Tensor:
    return torch.tensor(values)


def trees(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tree_of([[0, 1, 1, 3, 2], [0, 1, 2, 3, 4]][:batch], [5, 3][:batch])


def delta_cases(batch: int) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    parent_row, mask = trees(batch)
    nodes = tuple(x.to(F32) for x in random_rows(GENERATOR, (1, 2), (batch, 5, 8, 4)))
    state, u = rand(batch, 2, 4, 8), rand(batch, 5, 2, 4)
    poisoned = u.clone()
    poisoned[:, 3:] = float("nan")
    path, count = whole([0, 2, 1], [1, 1, 0])[:batch], whole(3, 0)[:batch]
    tree = (parent_row, mask, "tree")
    factors = (nodes[1], poisoned, nodes[3])
    return [
        (delta.delta_rule_chunk, (state, *nodes, 2)),
        (delta.delta_rule_verify, (state, *nodes, *tree)),
        (delta.delta_rule_verify_states, (state, *nodes, *tree)),
        (delta.delta_rule_commit, (state, *factors, path, count, "rank_n")),
        (delta.delta_rule_verify_pending, (state, *factors, path, count, 2, "rank_n", *nodes, *tree)),
        (delta.delta_rule_verify_pending, (state, *factors, None, count, 8, "rank_n", *nodes, *tree)),
    ]


def row_cases(batch: int) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    parent_row = trees(batch)[0]
    kept, new, window = rand(batch, 6, 3), rand(batch, 5, 3), rand(batch, 3, 3)
    path, start, count = whole([1, 4], [0, 2])[:batch], whole(2, 6)[:batch], whole(2, 0)[:batch]
    text = torch.arange(6).expand(batch, -1).contiguous()
    return [
        (cache.append_rows, (kept, new, start, count)),
        (cache.append_rows, (text, text + 50, start, count)),
        (cache.commit_path, (kept, new, path, start, count, True)),
        (cache.joined_rows, (kept, new, path, count)),
        (cache.joined_rows, (kept, None, path, count)),
        (conv.conv_commit, (window, new, path, count)),
        (conv.tree_conv, (window, new, rand(3, 1, 4), rand(3), parent_row)),
        (conv.short_conv, (window, new, rand(3, 1, 4), None, parent_row < 2)),
        (rows.take_rows, (new, path)),
        (create.int_table, (new, [3, 1, 1, 0], [2, 2])),
        (create.root_table, (kept.unsqueeze(0), 3, -1)),
        (npu.linear, (new, rand(4, 3), rand(4))),
        (npu.npu_scatter_update, (kept.clone(), whole(1, 0)[:batch], new, 1)),
    ]


def mask_cases(batch: int) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    parent_row, mask = trees(batch)
    length = whole(4, 2)[:batch]
    positions = length.unsqueeze(1) + torch.arange(5)
    q, k = rand(batch, 5, 4, 16), rand(batch, 9, 2, 16)
    shown = attention.attention_mask(length, mask, positions, 9, 0)
    fused = (q.half(), k.half(), k.half(), shown, length + 5, 4, 2, 0.25, "BSND", 1, 0)
    return [
        (attention.ancestor_mask, (parent_row, positions < 7)),
        (attention.attention_mask, (length, mask, positions, 9, 2)),
        (attention.attention_mask, (length, None, positions, 9, 0)),
        (attention.attention_mask, (length, None, positions, 9, 3, True)),
        (attention.masked_attention, (q, k, k, shown, 0.25)),
        (attention.masked_attention, (q, k, k, torch.cat((shown, shown), 3), 0.25, k, k)),
        (npu.npu_fused_infer_attention_score, fused),
    ]


def other_cases(batch: int) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    scores = whole([0.5, 1.0, 1.0, -float("inf"), 0.5], [2.0, 2.0, 2.0, 1.0, 0.0])[:batch]
    marks = scores > 0.7
    logits = (rand(batch, 2, 7) * 2).round()
    uniform = whole(0.0, 0.75).to(F64)[:batch]
    table = torch.rand(batch, 3, 4, dtype=F64, generator=GENERATOR)
    at = whole(10, 4)[:batch]
    packed = (marks, scores.clamp(min=-9).long(), scores.clamp(min=-9).long() - 1, scores.clamp(min=-9), at, 5)
    return [
        (draft.score_rank, (scores,)),
        (draft.stable_topk, (scores, 3)),
        (draft.pack_tree, packed),
        (aten.argmax, (marks, 1)),
        (aten.argmax, (logits, -1)),
        (aten.amax, (at.unsqueeze(1), [1], True)),
        (aten.clamp_max, (at, 7)),
        (aten.cumprod, (marks.long(), 1)),
        (aten.roll, (scores, [2], [1])),
        (aten.softplus, (logits * 20,)),
        (aten.xlogy, (scores.clamp(min=0.0), scores.clamp(min=0.0))),
        (aten.logaddexp, (scores, scores)),
        (sampling.sampling_probs, (logits, 0.7, 3, 0.6, F32)),
        (sampling.sampling_probs, (logits, 1.0, 0, 0.9, F32)),
        (sampling.sample_index, (scores.clamp(min=0.0), uniform)),
        (random.counter_uniform, (table, at, 2)),
        (random.counter_uniform_rows, (table, at.unsqueeze(1), at.unsqueeze(1) * 0 + random.FIRST_DRAW + 1, 4)),
        (moe.moe, (rand(batch, 3, 8), rand(5, 8), rand(5 * 12, 8), rand(5 * 8, 6), 2, True)),
    ]


FAMILIES = {"delta": delta_cases, "rows": row_cases, "masks": mask_cases, "others": other_cases}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_give_what_the_functions_give(family: str, batch: int) -> None:
    """All functions of a family as one graph."""
    cpu.register()
    cases = FAMILIES[family](batch)
    tensors = [value for _, arguments in cases for value in arguments if isinstance(value, torch.Tensor)]

    def call(*values: torch.Tensor) -> list[Any]:
        left = iter(values)
        return [
            function(*[next(left) if isinstance(value, torch.Tensor) else value for value in arguments])
            for function, arguments in cases
        ]

    with torch.no_grad():
        wanted = call(*(value.clone() for value in tensors))
    made = lower(call, tensors).run(*tensors)
    for left, right in zip(made, wanted, strict=True):
        values = right if isinstance(right, (tuple, list)) else (right,)
        assert_close(left, right, 4e-3 if values[0].dtype == torch.float16 else 1e-5)
