"""Every op of the IR: opcheck, declarations that fit the schema, and what the reference computes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.ir import ops
from specc.ir.op import REGISTRY, OpInfo
from specc.testing.trees import parents

F64 = torch.float64


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


B, M, R, C, HQ, HKV, D = 2, 3, 4, 6, 4, 2, 8
Q, KC, VC = random(B, M, HQ, D), random(B, C, HKV, D, seed=1), random(B, C, HKV, D, seed=2)
KN, VN = random(B, R, HKV, D, seed=3), random(B, R, HKV, D, seed=4)
LENGTH = ints(2, 3)
POSITIONS = LENGTH[:, None] + torch.arange(M)
MASK = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]], dtype=torch.bool).expand(B, M, R).contiguous()
PARENT_ROW = torch.tensor([[0, 1, 1, 2], [0, 1, 2, 0]])
VALID = torch.tensor([[True] * 4, [True, True, True, False]])
STATE = random(B, HQ, 3, D)
ROWS = (random(B, R, HKV, D), random(B, R, HKV, D, seed=1), random(B, R, HQ, 3), -random(B, R, HQ).abs())
ROWS = (*ROWS, torch.sigmoid(random(B, R, HQ, seed=2)))
FACTORS = (ROWS[1], random(B, R, HQ, 3, seed=5), ROWS[3])
ROPED = (KN[:, :M], VN[:, :M], random(B, M, D // 2), random(B, M, D // 2, seed=1))
PATH = torch.tensor([[0, 2, 3], [1, 0, 0]])
STARTS = ints(1, 2), ints(3, 0)
TREE = (PARENT_ROW, ops.ancestor_mask(PARENT_ROW, VALID))
WINDOW, INPUTS, TAPS, BIAS = random(B, 3, D), random(B, R, D, seed=1), random(D, 1, 4), random(D, seed=2)
GATES = (random(B, R, HQ), random(B, R, HQ, seed=1), random(HQ), random(HQ, seed=1), 2)
MIXER = random(D + 2 * HQ + 3, D, seed=3)
NARROW_POOL = STATE.bfloat16().unsqueeze(1).repeat(1, R + 1, 1, 1, 1)
NARROW_ROWS = tuple(x.bfloat16() if place < 3 else x.float() for place, x in enumerate(ROWS))
HIDDEN = (random(B, 1, M, C + R) > 0).to(torch.int8)
DRAWN = torch.stack((random(B, M), random(B, M).exp() + 1.0), -1)
FUSED = tuple(random(B, rows, heads, 16).to(torch.bfloat16) for rows, heads in ((M, HQ), (C, HKV), (C, HKV)))

TABLE, OWNER = torch.tensor([[1, 3], [2, 0]], dtype=torch.int32), torch.tensor([0, 1, 2, 1, 0, 0], dtype=torch.int32)
POOLS = random(4, 3, HKV, D), random(4, 3, HKV, D, seed=1)

SAMPLES: dict[str, list[tuple[Any, ...]]] = {
    "short_conv_": [(WINDOW.clone(), INPUTS, TAPS), (WINDOW.clone(), INPUTS, TAPS, BIAS, VALID)],
    "short_conv": [(WINDOW, INPUTS, TAPS), (WINDOW, INPUTS, TAPS, BIAS, VALID)],
    "tree_conv": [(WINDOW, INPUTS, TAPS, bias, PARENT_ROW) for bias in (BIAS, None)],
    "tree_conv_gates_": [(WINDOW, INPUTS, TAPS, None, PARENT_ROW, *GATES, kept) for kept in (None, INPUTS.clone())],
    "token_conv_gates_": [
        (WINDOW.clone(), INPUTS[:, :1], TAPS, BIAS, live, *(x[:, :1] for x in GATES[:2]), *GATES[2:])
        for live in (None, VALID[:, :1])
    ],
    "linear_token_conv_gates_": [
        (WINDOW.clone(), INPUTS[:, :1], MIXER, norm, 1e-6, TAPS, BIAS, live, *GATES[2:], D, D + HQ)
        for norm, live in ((None, None), (random(D), VALID[:, :1]))
    ],
    "linear_tree_conv_gates_": [
        (WINDOW, INPUTS, MIXER, random(D), 1e-6, TAPS, None, PARENT_ROW, *GATES[2:], D + HQ, D, kept)
        for kept in (None, INPUTS.clone())
    ],
    "lookup_tree": [(torch.tensor([[3, 1, 2, 3, 1, 2], [4, 4, 4, 4, 4, 9]]), ints(5, 4), ints(2, 4), 5, 3, 2, 1, 3)],
    "argmax_parts": [(Q.flatten(2), span) for span in (16, 64)],
    "greedy_tree": [
        (ops.argmax_parts(random(B, R, 7), 4), PARENT_ROW, above, VALID, 3) for above in (None, PARENT_ROW - 1)
    ],
    "conv_commit": [(WINDOW, INPUTS, PATH, ints(3, 0))],
    "npu_chain_slots": [(ints(1, 2), 3, tokens) for tokens in (1, 3)],
    "npu_pool_read": [(NARROW_POOL, ints(1, 2))],
    "npu_pool_fill": [(NARROW_POOL, NARROW_POOL[:, 0].clone())],
    "npu_recurrent_chain": [
        (NARROW_POOL, *NARROW_ROWS, ops.npu_chain_slots(ints(1, 0), R + 1, R + 1)),
        (NARROW_POOL[:, 0].clone(), *(x[:, :1] for x in NARROW_ROWS), ops.npu_chain_slots(ints(0, 0), 1, 1)),
    ],
    "delta_rule": [(STATE, *ROWS), (STATE.float(), *ROWS, TREE[1])],
    "delta_rule_": [(STATE.clone(), *ROWS)],
    "delta_rule_chunk": [(STATE, *ROWS, chunk) for chunk in (1, 3, 64)],
    "delta_rule_chunk_": [(STATE.clone(), *ROWS, 3)],
    "delta_rule_commit": [(STATE, *FACTORS, PATH, ints(3, 0), form) for form in ("steps", "rank_n")],
    "delta_rule_commit_": [(STATE.clone(), *FACTORS, PATH, ints(3, 0), "rank_n")],
    "delta_rule_verify": [(STATE, *ROWS, *tree, "tree") for tree in (TREE, (None, None))],
    "delta_rule_verify_states": [(STATE, *ROWS, *TREE, schedule) for schedule in ("serial", "hybrid", "tree")],
    "delta_rule_verify_pending": [
        (STATE, *FACTORS, path, ints(3, 1), 2, form, *ROWS, *TREE, schedule)
        for path, form, schedule in ((None, "steps", "replay"), (PATH, "rank_n", "tree"))
    ],
    "delta_rule_verify_pending_": [(STATE.clone(), *FACTORS, PATH, ints(3, 0), 1, "steps", *ROWS, *TREE, "serial")],
    "fused_linear": [
        (INPUTS, random(6, D), random(6), None, 0.0, "none", random(B, R, 6, seed=3)),
        (INPUTS, random(6, D), None, random(D), 1e-6, "silu_mul", None),
    ],
    "moe": [(INPUTS, random(5, D), random(5 * 6, D), random(5 * D, 3), 2, norm) for norm in (True, False)],
    "root_table": [(random(2, B, 3), 4, -1), (LENGTH.unsqueeze(0), 2, 0)],
    "rope_tables": [
        (POSITIONS, D, 10000.0, [], torch.float32),
        (POSITIONS, D, 5e5, [8.0, 1.0, 4.0, 64.0], F64),
    ],
    "rope": [(Q, random(B, M, D // 2), random(B, M, D // 2, seed=1))],
    "tree_attention": [(Q, KC, VC, LENGTH, KN, VN, MASK, POSITIONS, 0.3, window) for window in (0, 2)],
    "causal_attention": [(Q, KC, VC, LENGTH, KN, VN, POSITIONS, 1, 0.3, window) for window in (0, 2)],
    "tree_attention_cached": [(Q, KC, VC, LENGTH - 2, MASK, POSITIONS, 0.3, 0)],
    "causal_attention_cached": [(Q, KC, VC, LENGTH - 2, POSITIONS, 1, 0.3, 0)],
    "rope_attention_": [
        (Q, *ROPED, KC.clone(), VC.clone(), LENGTH - 1, count, mask, 0.3, False)
        for count, mask in ((None, None), (ints(3, 1), MASK[..., :M].contiguous()))
    ],
    "rope_attention_linear_": [
        (Q, *ROPED, KC.clone(), VC.clone(), LENGTH - 1, None, None, 0.3, False, random(6, HQ * D), bias, residual)
        for bias, residual in ((None, None), (random(6), random(B, M, 6)))
    ],
    "ancestor_mask": [(PARENT_ROW, VALID)],
    "append_rows": [(KC, KN, ints(1, 2), ints(0, 4))],
    "append_rows_": [(KC.clone(), KN, ints(1, 2), ints(0, 4)), (KC.clone(), KN, ints(1, 2))],
    "commit_path": [
        (KC, KN, torch.tensor([[0, 2, 3], [0, 0, 0]]), ints(1, 2), ints(3, 0), fast) for fast in (True, False)
    ],
    "commit_path_": [(KC.clone(), torch.tensor([[0, 2, 3], [0, 0, 0]]), ints(1, 2), ints(3, 0), True)],
    "take_pages_": [(TABLE.clone(), OWNER.clone(), ints(4, 2), count, 2, 3) for count in (None, ints(1, 0))],
    "append_pages_": [(POOLS[0].clone(), TABLE, KN, ints(1, 0), count) for count in (None, ints(3, 0))],
    "commit_pages_": [(POOLS[0].clone(), TABLE, PATH, ints(1, 0), ints(3, 1), fast) for fast in (True, False)],
    "commit_pages_layers_": [([torch.stack(POOLS)], TABLE, PATH, ints(1, 0), ints(3, 1), True)],
    "tree_attention_paged": [(Q, *POOLS, TABLE, LENGTH - 2, MASK, POSITIONS, 0.3, 0)],
    "causal_attention_paged": [(Q, *POOLS, TABLE, LENGTH - 2, POSITIONS, 1, 0.3, 0)],
    "rope_attention_paged_": [
        (Q, *ROPED, *(pool.clone() for pool in POOLS), TABLE, LENGTH - 2, count, mask, 0.3, False)
        for count, mask in ((None, None), (ints(3, 1), MASK[..., :M].contiguous()))
    ],
    "rope_attention_paged_linear_": [
        (Q, *ROPED, *(x.clone() for x in POOLS), TABLE, LENGTH - 2, None, None, 0.3, False, random(6, HQ * D), *rest)
        for rest in ((None, None), (random(6), random(B, M, 6)))
    ],
    "commit_path_layers_": [([torch.stack((KC, VC))], torch.tensor([[0, 2, 3], [0, 0, 0]]), *STARTS, True)],
    "append_path_layers_": [([torch.stack((KC, VC))], [torch.stack((KN, VN))], path, *STARTS) for path in (None, PATH)],
    "conv_commit_layers_": [([WINDOW[None].clone()], [INPUTS[None]], PATH, ints(3, 0))],
    "delta_rule_commit_layers_": [
        (STATE[None].clone(), *(x[None] for x in FACTORS), PATH, ints(3, 0), form) for form in ("steps", "rank_n")
    ],
    "npu_rms_norm": [(INPUTS, random(D), 1e-6)],
    "npu_rotary_mul": [(Q, random(B, M, 1, D), random(B, M, 1, D, seed=1))],
    "npu_swiglu": [(INPUTS,)],
    "npu_scatter_update": [(KC, ints(1, 2), KN, 1)],
    "joined_rows": [(KC, rows, PATH, ints(3, 0)) for rows in (KN, None)],
    "attention_mask": [
        (LENGTH - 1, None, POSITIONS, C, 2),
        (LENGTH - 1, MASK, POSITIONS, C, 0),
        (LENGTH, MASK, POSITIONS, C, 0, True),
    ],
    "masked_attention": [(Q, KC, VC, HIDDEN[..., :C], 0.3), (Q, KC, VC, HIDDEN, 0.3, KN, VN)],
    "npu_fused_infer_attention_score": [
        (*FUSED, HIDDEN[..., :C].contiguous(), LENGTH, HQ, HKV, 0.3, "BSND", 1, 2),
        (*FUSED, None, None, HQ, HKV, 0.3, "BSND", 0, 0),
    ],
    "batch_index": [(KC,)],
    "iota": [(KC, 5), (KC, -2)],
    "full_rows": [(KC, [2, -1, -2, 3], -1, torch.int64), (KC, [-1], 0.5, F64)],
    "int_table": [(KC, [1, 2, 3, 4], [2, 2])],
    "stable_topk": [(torch.tensor([[[0.5, 1.0, 1.0, math.nan], [4.0, 3.0, 2.0, 1.0]]]), 3)],
    "score_rank": [(torch.tensor([[0.5, 1.0, 1.0, math.nan]]),)],
    "pack_tree": [
        (
            torch.tensor([[True, False, True]]),
            torch.tensor([[4, 5, 6]]),
            torch.tensor([[-1, 0, 0]]),
            torch.tensor([[-0.5, -1.0, -0.7]]),
            ints(9),
            4,
        )
    ],
    "vocabulary_argmax": [(random(B, M, 7),)],
    "topk_log_probs": [(random(B, M, 7), 3)],
    "reject_tree": [
        (random(B, R, 7), q, torch.tensor([[0, 1, 2, 3]] * B), parent, VALID, ints(3, 4), LENGTH, 4, 0.7, 5)
        for q, parent in ((None, None), (random(B, R, 7, seed=1).softmax(-1), PARENT_ROW - 1))
    ],
    "draw_children": [
        (
            random(B, M, 7),
            ints(3, 4),
            torch.arange(B * M).reshape(B, M),
            torch.arange(rows * M).reshape(rows, M),
            3,
            0.8,
        )
        for rows in (1, B)
    ],
    "draw_embedded": [
        (
            random(B, M, 7),
            ints(3, 4),
            torch.arange(B * M).reshape(B, M),
            torch.arange(M).reshape(1, M),
            2,
            0.8,
            random(7, 5),
            [3, 0],
        )
    ],
    "drawn_laws": [
        ([random(B, 1, 7), random(B, M, 7)], [DRAWN[:, :1], DRAWN], torch.tensor([[0, 2, 3], [1, 1, 3]]), 0.7)
    ],
    "counter_uniform": [(ints(3, 4), ints(0, 9), 1)],
    "counter_uniform_rows": [(ints(3, 4), torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0, 1], [0, 1]]), 5)],
    "sampling_probs": [(random(B, M, 7), 0.7, 3, 0.9, F64), (random(B, M, 7), 1.0, 0, 1.0, torch.float32)],
    "sample_index": [
        (torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], dtype=F64), torch.tensor([0.6, 0.1], dtype=F64))
    ],
}
CALLS = [(info, call) for info in REGISTRY.values() for call in SAMPLES.get(info.name, [])]


@pytest.mark.parametrize("info", REGISTRY.values(), ids=lambda info: info.name)
def test_declarations_fit_the_schema(info: OpInfo) -> None:
    names = {argument.name for argument in info.overload._schema.arguments}
    used = {name for item in info.indices for name in (item.operand, item.into)}
    assert info.rows | used <= names
    assert info.doc.strip()
    assert info.levels <= {"value", "buffer"}
    assert bool(info.mutates) == info.name.endswith("_")
    assert not info.mutates or info.levels == {"buffer"}
    assert SAMPLES.get(info.name), f"add sample arguments of {info.name}, so that opcheck runs on it"


@pytest.mark.parametrize(("info", "call"), CALLS, ids=[info.name for info, _ in CALLS])
def test_opcheck(info: OpInfo, call: tuple[Any, ...]) -> None:
    utilities = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(info.overload, call, test_utils=utilities)


@pytest.mark.slow
@pytest.mark.parametrize(("info", "call"), CALLS, ids=[info.name for info, _ in CALLS])
def test_opcheck_with_dynamic_shapes(info: OpInfo, call: tuple[Any, ...]) -> None:
    torch.library.opcheck(info.overload, call, test_utils="test_aot_dispatch_dynamic")


ROW_WISE = [(info, call) for info, call in CALLS if info.rows]


@pytest.mark.parametrize(("info", "call"), ROW_WISE, ids=[info.name for info, _ in ROW_WISE])
def test_row_wise_ops_work_row_by_row(info: OpInfo, call: tuple[Any, ...]) -> None:
    """A slice of the operands named in `rows` along dim 1 gives that slice of every result."""
    names = [argument.name for argument in info.overload._schema.arguments][: len(call)]
    whole = info.overload(*call)
    size = next(value for name, value in zip(names, call, strict=True) if name in info.rows).shape[1]
    for row in range(size):
        part = [
            value.narrow(1, row, 1)
            if name in info.rows and value is not None
            else value + row
            if name == "offset"
            else value
            for name, value in zip(names, call, strict=True)
        ]
        made = info.overload(*part)
        for left, right in zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (whole, made)), strict=True):
            torch.testing.assert_close(left.narrow(1, row, 1), right, rtol=1e-12, atol=1e-12, equal_nan=True)


def attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """One query [D] over keys, values [n,D], written out."""
    weights = torch.softmax(keys @ q * scale, dim=0)
    return weights @ values


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("window", [0, 2])
def test_tree_attention_sees_the_prefix_and_the_masked_rows(window: int, fused: bool) -> None:
    out = ops.tree_attention(Q, KC, VC, LENGTH, KN, VN, MASK, POSITIONS, 0.3, window, fused)
    for b in range(B):
        for m in range(M):
            position, length = int(POSITIONS[b, m]), int(LENGTH[b])
            first = max(0, position - window + 1) if window else 0
            shown = [c for c in range(length) if c >= first]
            new = MASK[b, m].nonzero().flatten().tolist()
            for h in range(HQ):
                group = h // (HQ // HKV)
                keys = torch.cat((KC[b, shown, group], KN[b, new, group]))
                values = torch.cat((VC[b, shown, group], VN[b, new, group]))
                torch.testing.assert_close(
                    out[b, m, h], attention(Q[b, m, h], keys, values, 0.3), rtol=1e-10, atol=1e-12
                )


def test_causal_attention_is_tree_attention_with_a_triangle() -> None:
    for offset in (0, 1):
        triangle = (torch.arange(R) <= torch.arange(M)[:, None] + offset).expand(B, M, R)
        tree = ops.tree_attention(Q, KC, VC, LENGTH, KN, VN, triangle, POSITIONS, 0.3, 0)
        chain = ops.causal_attention(Q, KC, VC, LENGTH, KN, VN, POSITIONS, offset, 0.3, 0)
        torch.testing.assert_close(tree, chain, rtol=1e-12, atol=1e-12)


def test_cached_attention_reads_the_rows_behind_the_committed_ones() -> None:
    length = ints(1, 2)
    k_cache, v_cache = KC.clone(), VC.clone()
    for b in range(B):
        k_cache[b, length[b] : length[b] + R], v_cache[b, length[b] : length[b] + R] = KN[b], VN[b]
    positions = length[:, None] + torch.arange(M)
    plain = ops.tree_attention(Q, KC, VC, length, KN, VN, MASK, positions, 0.3, 0)
    cached = ops.tree_attention_cached(Q, k_cache, v_cache, length, MASK, positions, 0.3, 0)
    torch.testing.assert_close(plain, cached, rtol=1e-12, atol=1e-12)


def test_rotary_angles_rotate_pairs_of_halves() -> None:
    cos, sin = ops.rope_tables(POSITIONS, D, 100.0, [], F64)
    out = ops.rope(Q, cos, sin)
    for pair in range(D // 2):
        angle = POSITIONS.to(F64) / 100.0 ** (2 * pair / D)
        turned = (
            torch.complex(Q[..., pair], Q[..., pair + D // 2]) * torch.polar(torch.ones_like(angle), angle)[..., None]
        )
        torch.testing.assert_close(out[..., pair], turned.real, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(out[..., pair + D // 2], turned.imag, rtol=1e-12, atol=1e-12)


@given(st.data())
def test_the_ancestor_mask_is_the_closure_of_the_parents(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    parent = data.draw(parents(size, size))
    real = data.draw(st.integers(1, size))
    row = torch.tensor([[p + 1 for p in parent]])
    valid = torch.tensor([[i < real for i in range(size)]])
    mask = ops.ancestor_mask(row, valid)[0]
    for node in range(size):
        expected = {node}
        above = parent[node] if node < real else -1
        while above >= 0:
            expected.add(above)
            above = parent[above]
        assert set(mask[node].nonzero().flatten().tolist()) == expected


@given(st.data())
def test_commit_in_place_equals_the_gather(data: st.DataObject) -> None:
    """I8: ascending moves within the cache give what a gather of the candidates gives, fast_reorder or not."""
    nodes = data.draw(st.integers(1, 6))
    path = sorted(data.draw(st.sets(st.integers(1, nodes - 1), max_size=4)) if nodes > 1 else set())
    path = [0, *path]
    start, count = data.draw(st.integers(0, 3)), data.draw(st.integers(0, len(path)))
    cache = random(1, 10, 2)
    padded = torch.tensor([path + [0] * (6 - len(path))])
    candidate = cache[:, start : start + nodes]
    expected = ops.commit_path(cache, candidate, padded, ints(start), ints(count), False)
    for fast in (True, False):
        changed = cache.clone()
        ops.commit_path_(changed, padded, ints(start), ints(count), fast)
        kept = start + count
        assert torch.equal(changed[:, :kept], expected[:, :kept])
        assert torch.equal(changed[:, :start], cache[:, :start])


def test_appending_writes_count_rows_and_leaves_the_others() -> None:
    made = ops.append_rows(KC, KN, ints(1, 2), ints(0, 3))
    assert torch.equal(made[0], KC[0])
    assert torch.equal(made[1, 2:5], KN[1, :3])
    assert torch.equal(made[1, [0, 1, 5]], KC[1, [0, 1, 5]])
    changed = KC.clone()
    ops.append_rows_(changed, KN, ints(1, 2), ints(0, 3))
    assert torch.equal(changed, made)


def test_sizes_come_from_the_tensor() -> None:
    assert ops.batch_index(KC).tolist() == [[0], [1]]
    assert ops.iota(KC, 3).tolist() == [0, 1, 2]
    assert ops.iota(KC, -2).tolist() == list(range(C))
    made = ops.full_rows(KC, [3, -1, -2], 7, torch.int64)
    assert made.shape == (3, B, C)
    assert made.unique().tolist() == [7]


def test_a_root_table_holds_the_committed_value_in_one_row() -> None:
    committed = random(2, B, 3, 4)
    made = ops.root_table(committed, 5, -1)
    assert made.shape == (2, B, 5, 3, 4)
    assert torch.equal(made[:, :, 4], committed)
    assert not made[:, :, :4].any()
    assert torch.equal(ops.root_table(committed, 5, 0)[:, :, 0], committed)


def test_llama3_frequencies_are_blended_between_the_two_wavelengths() -> None:
    """factor 8, low 1, high 4, original length 64: wavelengths below 16 stay, above 64 are stretched, between blend."""
    positions = torch.ones(1, 1, dtype=torch.int64)
    cos, sin = ops.rope_tables(positions, 16, 100.0, [8.0, 1.0, 4.0, 64.0], torch.float64)
    plain = [100.0 ** (-2 * pair / 16) for pair in range(8)]
    for pair, frequency in enumerate(plain):
        wavelength = 2 * math.pi / frequency
        smooth = min(max((64 / wavelength - 1) / 3, 0.0), 1.0)
        wanted = (1 - smooth) * frequency / 8 + smooth * frequency
        angle = math.atan2(float(sin[0, 0, pair]), float(cos[0, 0, pair]))
        assert angle == pytest.approx(wanted, rel=1e-12)
    assert 16 < 2 * math.pi / plain[4] < 64, "no pair is blended"
