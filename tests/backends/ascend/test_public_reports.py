"""Public reports of wrong or slow decoding on NPUs, each as a test: the report's code is refused, its mend is not.

What a test shows is said beside it. None of this ran on an NPU: operators are the CPU kernels of their documented
semantics, and what is tested is that the contracts see the fault before a device does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, symbolic_trace

from specc.backends.ascend import cpu
from specc.backends.ascend.contracts import check_contracts
from specc.backends.ascend.contracts.calls import npu_calls
from specc.ir import ops
from specc.ir.edit import modules
from specc.ir.port import ValueRange
from specc.passes.rewrite_negative_indices import rewrite_negative_indices
from tests.backends.ascend.contract_graphs import Builder, legal
from tests.backends.ascend.contract_programs import HALF, compiled

aten = torch.ops.aten
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def operators() -> None:
    cpu.register()


def exported(function: Callable[..., Any], *inputs: torch.Tensor) -> GraphModule:
    """A user's function as torch.export sees it."""

    class Wrapped(torch.nn.Module):
        def forward(self, *arguments: torch.Tensor) -> Any:
            return function(*arguments)

    return torch.export.export(Wrapped(), inputs).module()


def codes(graph: GraphModule, **declared: Any) -> set[str]:
    return {item.code for item in check_contracts(graph, **declared)}


def one_token(mask_dtype: torch.dtype, keys: int) -> set[str]:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor) -> Any:
        hidden = (torch.arange(keys) >= length.view(-1, 1, 1, 1)).to(mask_dtype)
        return torch.ops.npu.npu_fused_infer_attention_score(
            q, k, v, atten_mask=hidden, num_heads=2, scale=0.1, input_layout="BNSD"
        )

    q, kv = torch.randn(1, 2, 1, 64, dtype=BF16), torch.randn(1, 2, keys, 64, dtype=BF16)
    graph = exported(attend, q, kv, kv, torch.tensor([3]))
    name = next(node.name for node in graph.graph.nodes if node.op == "placeholder" and node.meta["val"].dim() == 1)
    return codes(graph, ranges={name: (1, keys)})


@pytest.mark.parametrize(("dtype", "keys", "wanted"), [
    (torch.bool, 4096, {"SPC511"}),
    (torch.bool, 513, {"SPC511"}),
    (torch.bool, 512, set()),
    (torch.int8, 4096, set()),
])  # fmt: skip
def test_vllm_ascend_15503_bool_mask_ignored_past_key_512(dtype: torch.dtype, keys: int, wanted: set[str]) -> None:
    """The report's geometry: one query row, bool [1,1,1,S], sparse_mode 0. int8 of the same values is the mend."""
    assert one_token(dtype, keys) == wanted


def test_vllm_ascend_15503_programs_have_int8_masks() -> None:
    """Every mask that reaches attention in a generated program is int8."""
    _, program = compiled("smollm2-dynamic-tree", HALF)
    masks = [
        call.get("atten_mask").meta["val"].dtype
        for graph in program.graphs.values()
        for call in npu_calls(graph)
        if call.has("atten_mask")
    ]
    assert masks
    assert set(masks) == {torch.int8}


@pytest.mark.parametrize(("masked", "wanted"), [(False, {"SPC525"}), (True, set())])
def test_vllm_ascend_13699_packed_rows_without_mask_average(masked: bool, wanted: set[str]) -> None:
    """Layout TND without a mask attends to later rows too; the triangle with sparse_mode 3 is the mend."""
    graph = legal("packed_prompt")
    if not masked:
        graph.keyword("attention", atten_mask=None, sparse_mode=None)
    assert codes(graph.module, **graph.declared) == wanted


def test_vllm_ascend_10305_placeholder_reaches_the_embedding() -> None:
    """Token -1 is refused at the embedding; the rewritten graph passes, and gives zeros for the placeholder."""

    def embed(table: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(tokens, table)

    table, tokens = torch.randn(8, 4), torch.tensor([[3, -1, 7]])
    graph = symbolic_trace(embed)
    inputs = (table, tokens)
    declared = {"tokens": (-1, 7)}
    assert codes(graph, ranges=declared, example_inputs=inputs) == {"SPC560"}
    from_pass, _ = rewrite_negative_indices(
        graph, {"tokens": ValueRange(-1, 7, "pad")}, example_inputs=(table, tokens.clamp(min=0))
    )
    assert codes(from_pass, ranges=declared) == set()
    expected = torch.where((tokens >= 0).unsqueeze(-1), table[tokens], 0.0)
    assert torch.equal(from_pass(table, tokens), expected)


def test_vllm_ascend_4296_scatter_address_out_of_range() -> None:
    """Slots that may be -1 or past the pool are refused; the operator's own kernel on the CPU raises for them."""

    def write(pool: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.ops.npu.npu_scatter_nd_update(pool, slots, rows)

    pool, rows = torch.zeros(16, 4), torch.ones(2, 4)
    graph = exported(write, pool, torch.tensor([[3], [5]]), rows)
    slots = [node.name for node in graph.graph.nodes if node.op == "placeholder"][1]
    for low, high, wanted in ((0, 15, set()), (-1, 15, {"SPC540"}), (0, 16, {"SPC540"})):
        assert codes(graph, ranges={slots: (low, high)}, unique={slots}) == wanted
    for bad in (-1, 16):
        with pytest.raises(IndexError):
            write(pool, torch.tensor([[3], [bad]]), rows)


def compilations(step: Callable[..., Any], calls: list[tuple[Any, ...]]) -> int:
    """How often a step is compiled for these calls."""
    counted = []

    def backend(graph: GraphModule, _: object) -> Callable[..., Any]:
        counted.append(graph)
        return graph.forward

    torch._dynamo.reset()
    run = torch.compile(step, backend=backend, dynamic=False)
    for arguments in calls:
        run(*arguments)
    return len(counted)


def test_vllm_ascend_13058_lengths_of_the_host_recompile() -> None:
    """Two lengths: as Python numbers two compilations and SPC530, as tensors one and no finding."""

    def host(q: torch.Tensor, kv: torch.Tensor, lengths: list[int]) -> Any:
        return torch.ops.npu.npu_fused_infer_attention_score(
            q, kv, kv, actual_seq_lengths_kv=lengths, num_heads=2, scale=0.1, input_layout="BNSD"
        )[0]

    def device(q: torch.Tensor, kv: torch.Tensor, lengths: torch.Tensor) -> Any:
        return torch.ops.air.npu_fused_infer_attention_score(
            q, kv, kv, actual_seq_lengths_kv=lengths, num_heads=2, scale=0.1, input_layout="BNSD"
        )[0]

    q, kv = torch.randn(1, 2, 1, 16, dtype=BF16), torch.randn(1, 2, 32, 16, dtype=BF16)
    assert compilations(host, [(q, kv, [7]), (q, kv, [9])]) == 2
    assert compilations(device, [(q, kv, torch.tensor([7])), (q, kv, torch.tensor([9]))]) == 1
    assert torch.equal(host(q, kv, [9]), device(q, kv, torch.tensor([9])))
    assert codes(exported(lambda q, kv: host(q, kv, [7]), q, kv)) == {"SPC530"}
    graph = exported(device, q, kv, torch.tensor([7]))
    name = [node.name for node in graph.graph.nodes if node.op == "placeholder"][2]
    assert codes(graph, ranges={name: (1, 32)}) == set()


def test_vllm_ascend_6535_query_lengths_are_stale_on_replay() -> None:
    """The captured graph holds the lengths of its capture as constants, whatever is live later: SPC531.

    Lengths that repeat the rows of the query can't be stale, and pass.
    """
    graph = legal("plain_step")
    graph.keyword("attention", actual_seq_lengths=[1, 1])
    assert codes(graph.module, **graph.declared) == set()
    graph.keyword("attention", actual_seq_lengths=[1, 0])
    assert codes(graph.module, **graph.declared) == {"SPC531"}


def test_vllm_ascend_13470_uniform_number_is_zero() -> None:
    """A constant 0 in place of a draw is refused; with u = 0 our own sampler still never gives a token of weight 0."""
    b = Builder()
    weights = b.input("weights", 2, 8, dtype=torch.float32)
    zero = b.call(aten.zeros.default, [2], dtype=torch.float64)
    constant = b.done(b.call(ops.sample_index, weights, zero))
    assert codes(constant.module) == {"SPC573"}
    b = Builder()
    weights, drawn = b.input("weights", 2, 8, dtype=torch.float32), b.input("drawn", 2, dtype=torch.float64)
    assert codes(b.done(b.call(ops.sample_index, weights, drawn)).module) == set()
    law = torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.0, 1.0, 0.0, 0.0]])
    assert ops.sample_index(law, torch.zeros(2, dtype=torch.float64)).tolist() == [2, 1]


def test_triton_ascend_2332_a_masked_lane_still_reads() -> None:
    """Masking the result of a read at -1 is no proof; a clamped address is."""

    def masked(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.where(i >= 0, x[i], 0.0)

    def clamped(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.where(i >= 0, x[i.clamp(min=0)], 0.0)

    x, i = torch.randn(8), torch.tensor([2, -1, 7])
    assert torch.equal(masked(x, i), clamped(x, i))
    for function, wanted in ((masked, {"SPC560"}), (clamped, set())):
        graph = symbolic_trace(function)
        assert codes(graph, ranges={"i": (-1, 7)}, example_inputs=(x, i)) == wanted


def test_sglang_25587_recurrent_states_are_not_lossless() -> None:
    """What made hybrid decoding differ there is refused or absent here.

    States are float32 slots, verified by matmuls and committed from the accepted factors; the chain op, with its
    bfloat16 state, is in no program. Over a float32 state, over a tree, or in place it is refused.
    """
    _, program = compiled("gdn-15m-tree")
    bodies = [item for graph in program.graphs.values() for item in modules(graph)]
    assert not any("npu_recurrent" in str(node.target) for item in bodies for node in item.graph.nodes)
    states = [slot for slot in program.slots.values() if len(slot.shape) == 5 and slot.role == "committed"]
    assert states
    assert {slot.dtype for slot in states} == {torch.float32}
    chain = legal("chain_step")
    chain.put_in("state", 32, 8, 64, 64, dtype=torch.float32)
    assert codes(chain.module, **chain.declared) == {"SPC550"}
    tree = replace(program, graphs={"verify": legal("chain_step").module}, attributes={"chain": False})
    assert {item.code for item in check_contracts(tree, ranges={"rows": (0, 31)}, unique={"rows"})} == {"SPC552"}
