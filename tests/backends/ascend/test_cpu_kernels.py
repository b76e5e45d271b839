"""CPU kernels of NPU operators refuse what the device leaves undefined, and modes that they don't have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specc.backends.ascend import cpu, schemas
from specc.backends.ascend.semantics.calls import CPU_KERNELS
from specc.backends.ascend.semantics.shapes import META_KERNELS
from tests.backends.ascend.harness_support import normal
from tests.backends.ascend.npu_calls import CALLS, attend, delta, moe_layer_v2

NPU = torch.ops.npu
INT32 = torch.int32


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    cpu.register()


def test_every_kernel_has_a_schema_and_a_meta_function() -> None:
    assert set(CPU_KERNELS) == set(META_KERNELS)
    assert all(schemas.has_kernel(f"npu::{name}", key) for name in CPU_KERNELS for key in ("CPU", "Meta"))


def test_registering_again_changes_nothing() -> None:
    before = NPU.npu_swiglu(normal(0, 2, 4))
    cpu.register()
    assert torch.equal(NPU.npu_swiglu(normal(0, 2, 4)), before)


def test_an_operator_without_a_cpu_kernel_stays_without_one() -> None:
    assert "npu_quant_max" not in CPU_KERNELS
    assert not schemas.has_kernel("npu::npu_quant_max", "CPU")


def changed(name: str, **changes: Any) -> tuple[Any, ...]:
    """The inputs of a call with some of them replaced, by position."""
    inputs = list(CALLS[name].inputs(0, torch.float16))
    for place, value in changes.items():
        inputs[int(place[1:])] = value
    return tuple(inputs)


def number(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


Q, K, V, MASK = CALLS["attention"].inputs(0, torch.float16)
ONE = Q[:, :1].contiguous()
VISIBLE = torch.zeros_like(MASK)
SCATTER, PLACE = CALLS["scatter_update"].function, CALLS["scatter_nd_update"].function
LOGITS = normal(0, 5, 4)
EXPERTS = torch.zeros(5, 2, dtype=INT32)
PAIRS = torch.arange(10, dtype=INT32).reshape(2, 5).T.contiguous()


def route(rows: torch.Tensor, experts: torch.Tensor) -> Any:
    return NPU.npu_moe_init_routing(normal(0, 5, 8), rows, experts, 5)


def grouped(groups: torch.Tensor, **settings: Any) -> Any:
    defaults = {"split_item": 3, "group_type": 0, "group_list_type": 1}
    weight = [normal(1, 2, 8, 4)]
    return NPU.npu_grouped_matmul([normal(0, 6, 8)], weight, group_list=groups, **(defaults | settings))


def prompt(**settings: Any) -> Any:
    heads_first = [tensor.transpose(1, 2).contiguous() for tensor in (K, K, V)]
    layout = {"num_heads": 2, "input_layout": "BNSD", "scale_value": 0.25}
    return NPU.npu_prompt_flash_attention(*heads_first, **(layout | settings))


def attend_to(*lengths: int) -> Any:
    settings = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BSND"}
    return NPU.npu_fused_infer_attention_score(Q, K, V, actual_seq_lengths_kv=list(lengths), **settings)


UNDEFINED: dict[str, Callable[[], Any]] = {
    "rows before the cache": lambda: SCATTER(*changed("scatter_update", _1=number(0, -1))),
    "rows behind the cache": lambda: SCATTER(*changed("scatter_update", _1=number(0, 6))),
    "a start for each sequence": lambda: SCATTER(*changed("scatter_update", _1=number(0))),
    "starts of another type": lambda: SCATTER(*changed("scatter_update", _1=torch.zeros(2))),
    "rows of another type": lambda: SCATTER(*changed("scatter_update", _2=normal(0, 2, 3, 2, 4))),
    "rows of another size": lambda: SCATTER(*changed("scatter_update", _2=normal(0, 2, 3, 1, 4).half())),
    "an int64 cache": lambda: NPU.scatter_update(number(0, 1)[None], number(0), number(1)[None], 1),
    "along the batch": lambda: NPU.scatter_update(normal(0, 2, 3), number(0, 0), normal(1, 2, 3), 0),
    "a slot below 0": lambda: PLACE(*changed("scatter_nd_update", _1=number(0, -1, 2)[:, None])),
    "a slot too far": lambda: PLACE(*changed("scatter_nd_update", _1=number(0, 6, 2)[:, None])),
    "a slot twice": lambda: PLACE(*changed("scatter_nd_update", _1=number(0, 2, 2)[:, None])),
    "a float32 query": lambda: attend(Q.float(), K.float(), V.float(), MASK),
    "a float mask": lambda: attend(Q, K, V, MASK.half()),
    "a mask of two": lambda: attend(Q, K, V, MASK + 1),
    "a mask with heads": lambda: attend(Q, K, V, MASK.expand(2, 4, 3, 7).contiguous()),
    "a row without keys": lambda: attend(Q, K, V, VISIBLE + 1, precise=0),
    "correction of a single row": lambda: attend(ONE, K, V, VISIBLE[:, :, :1].contiguous(), precise=2),
    "a head dimension of 8": lambda: attend(Q[..., :8], K[..., :8], V[..., :8], MASK),
    "a length too far": lambda: attend_to(8, 7),
    "a length below 0": lambda: attend_to(-1, 7),
    "too few lengths": lambda: NPU.npu_fused_infer_attention_score(
        torch.cat([Q, Q]), torch.cat([K, K]), torch.cat([V, V]), actual_seq_lengths_kv=[1, 2, 3], num_heads=4,
        num_key_value_heads=2, input_layout="BSND",
    ),
    "three heads over two": lambda: NPU.npu_fused_infer_attention_score(
        Q[:, :, :3], K, V, num_heads=3, num_key_value_heads=2, input_layout="BSND"
    ),
    "gamma of another type": lambda: NPU.npu_rms_norm(Q, torch.ones(16), 1e-6),
    "an odd gate": lambda: NPU.npu_swiglu(normal(0, 2, 3)),
    "tables of another size": lambda: NPU.npu_rotary_mul(Q, ONE[:, :, :1, :8], ONE[:, :, :1, :8]),
    "gating over NaN": lambda: NPU.npu_moe_gating_top_k_softmax(LOGITS / 0 * 0, None, 2),
    "an expert too many": lambda: NPU.npu_moe_gating_top_k_softmax(LOGITS, None, 5),
    "rows that are no permutation": lambda: route(PAIRS * 0, EXPERTS),
    "an expert below 0": lambda: route(PAIRS, EXPERTS - 1),
    "an expert outside": lambda: NPU.npu_moe_init_routing_v2(
        normal(0, 5, 8), EXPERTS + 4, expert_num=4, expert_tokens_num_type=1, expert_tokens_num_flag=True
    ),
    "rows of no group": lambda: grouped(number(2, 3)),
    "a group below 0": lambda: grouped(number(7, -1)),
    "ends that fall": lambda: grouped(number(8, 6), group_list_type=0),
    "experts out of order": lambda: NPU.npu_moe_compute_expert_tokens(number(1, 0, dtype=INT32), 2),
    "a row from outside": lambda: NPU.npu_moe_finalize_routing(
        normal(0, 2, 4), None, None, None, normal(1, 1, 2), number(0, 2, dtype=INT32), None
    ),
    "nine tokens": lambda: delta(*changed("delta_rule", _6=number(1, 9, dtype=INT32))),
    "two tokens in one slot": lambda: delta(*changed("delta_rule", _7=number(0, 1, 1, 2, dtype=INT32))),
    "a slot outside the states": lambda: delta(*changed("delta_rule", _7=number(0, 1, 6, 2, dtype=INT32))),
    "a float32 state": lambda: delta(*changed("delta_rule", _3=normal(0, 6, 4, 8, 16))),
    "int64 lengths": lambda: delta(*changed("delta_rule", _6=number(1, 3))),
    "an int32 tensor of lengths": lambda: torch.ops.air.npu_fused_infer_attention_score(
        Q, K, V, actual_seq_lengths_kv=number(7, 7, dtype=INT32), num_heads=4, num_key_value_heads=2,
        input_layout="BSND",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNDEFINED)
def test_what_the_device_leaves_undefined_raises(name: str) -> None:
    with pytest.raises((IndexError, ValueError)):
        UNDEFINED[name]()


MISSING: dict[str, Callable[[], Any]] = {
    "paged caches": lambda: NPU.npu_fused_infer_attention_score(
        Q, K, V, num_heads=4, num_key_value_heads=2, input_layout="BSND", block_table=number(0), block_size=128
    ),
    "causal mask of 2048": lambda: NPU.npu_fused_infer_attention_score(
        Q, K, V, num_heads=4, num_key_value_heads=2, input_layout="BSND", sparse_mode=3
    ),
    "packed sequences": lambda: NPU.npu_fused_infer_attention_score(Q[0], K[0], V[0], num_heads=4, input_layout="TND"),
    "interleaved rotation": lambda: NPU.npu_rotary_mul(Q, Q, Q, "interleave"),
    "an activation": lambda: grouped(number(2, 4), act_type=1),
    "several products": lambda: grouped(number(2, 4), split_item=0),
    "tokens by key and value": lambda: NPU.npu_moe_init_routing_v2(
        normal(0, 5, 8), EXPERTS, expert_num=4, expert_tokens_num_type=2, expert_tokens_num_flag=True
    ),
    "a shifted prompt": lambda: prompt(pse_shift=Q),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_mode_without_a_kernel_is_refused(name: str) -> None:
    with pytest.raises(NotImplementedError):
        MISSING[name]()


def test_a_prompt_with_a_mask_is_causal_unless_told_otherwise() -> None:
    """next_tokens is 0 by default and counts as soon as there is a mask; without a mask it is ignored."""
    nothing_masked = torch.zeros(7, 7, dtype=torch.int8)
    causal = prompt(atten_mask=nothing_masked)
    full = prompt(atten_mask=nothing_masked, next_tokens=2147483647)
    assert torch.equal(causal[:, :, 0], V.transpose(1, 2)[:, :, 0])
    assert torch.equal(causal[:, :, -1], full[:, :, -1])
    assert torch.equal(prompt(), full)


def test_a_length_is_a_shorter_cache_and_a_shorter_query() -> None:
    settings = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BSND"}
    made = NPU.npu_fused_infer_attention_score(
        Q, K, V, **settings, actual_seq_lengths=[2, 3], actual_seq_lengths_kv=[5, 7]
    )[0]
    short = NPU.npu_fused_infer_attention_score(Q[:1, :2], K[:1, :5], V[:1, :5], **settings)[0]
    long = NPU.npu_fused_infer_attention_score(Q[1:], K[1:], V[1:], **settings)[0]
    torch.testing.assert_close(made[:1, :2], short)
    torch.testing.assert_close(made[1:], long)
    assert not made[0, 2].any()


def test_rows_behind_a_length_are_never_read() -> None:
    junk_k, junk_v = K.clone(), V.clone()
    junk_k[:, 5:], junk_v[:, 5:] = float("nan"), float("inf")
    settings = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BSND", "actual_seq_lengths_kv": [5]}
    clean = NPU.npu_fused_infer_attention_score(Q, K, V, **settings)[0]
    assert torch.equal(NPU.npu_fused_infer_attention_score(Q, junk_k, junk_v, **settings)[0], clean)


def test_experts_of_one_row_order_do_not_matter() -> None:
    """Rows of one expert come back in another order than they went in, and the result is the same."""
    x, logits, weight = CALLS["moe_v2"].inputs(3, torch.float32)
    alone = torch.cat([moe_layer_v2(x[row : row + 1], logits[row : row + 1], weight) for row in range(5)])
    torch.testing.assert_close(moe_layer_v2(x, logits, weight), alone)


def test_a_chain_starts_from_the_state_after_its_accepted_tokens() -> None:
    q, k, v, state, beta, gate, _, slots = CALLS["delta_rule"].inputs(0, torch.bfloat16)
    settings = {"beta": beta, "scale": 0.5, "g": gate, "ssm_state_indices": slots}
    settings["actual_seq_lengths"] = number(4, dtype=INT32)
    made = [
        NPU.npu_recurrent_gated_delta_rule_functional(
            q, k, v, given, **settings, num_accepted_tokens=number(accepted, dtype=INT32)
        )[0]
        for given, accepted in ((state, 3), (state[torch.tensor(_moved(slots.tolist()))], 1))
    ]
    assert torch.equal(*made)


def _moved(slots: list[int]) -> list[int]:
    """State numbers so that slot slots[0] holds what slots[2] held."""
    order = list(range(6))
    order[slots[0]] = slots[2]
    return order
