"""Graphs of users' own functions, however they were captured: a layer in the style of public NPU decoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from specc.backends.ascend import cpu
from specc.backends.ascend.contracts import check_contracts

BATCH, NODES, KEYS, HEADS, KV_HEADS, DIM, WIDTH = 2, 4, 64, 4, 2, 16, 32
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def operators() -> None:
    cpu.register()


class TreeVerify(torch.nn.Module):
    """Norm, projections, rows into the caches, attention with a tree's mask, gated unit, and a gather by path."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gamma = torch.nn.Parameter(torch.ones(WIDTH, dtype=BF16))
        self.qkv = torch.nn.Parameter(torch.randn(WIDTH, (HEADS + 2 * KV_HEADS) * DIM).to(BF16))
        self.out = torch.nn.Parameter(torch.randn(HEADS * DIM, WIDTH).to(BF16))
        self.up = torch.nn.Parameter(torch.randn(WIDTH, 2 * WIDTH).to(BF16))

    def mask(self, length: Tensor, tree: Tensor) -> Tensor:
        """1 where a key is hidden."""
        keys = torch.arange(KEYS)
        number = keys - length.view(-1, 1, 1)
        seen = number < 0
        for node in range(NODES):
            seen = seen | ((keys == (length + node).view(-1, 1, 1)) & tree[:, :, node : node + 1])
        return torch.logical_not(seen).to(torch.int8).unsqueeze(1)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, k_cache: Tensor, v_cache: Tensor, length: Tensor, tree: Tensor,
        path: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        npu = torch.ops.npu
        normed = npu.npu_rms_norm(x, self.gamma, 1e-6)[0]
        heads = (normed @ self.qkv).view(BATCH, NODES, -1, DIM).transpose(1, 2)
        query, key, value = heads.split([HEADS, KV_HEADS, KV_HEADS], 1)
        query, key = npu.npu_rotary_mul(query, cos, sin), npu.npu_rotary_mul(key, cos, sin)
        keys = npu.scatter_update(k_cache, length, key, -2)
        values = npu.scatter_update(v_cache, length, value.contiguous(), -2)
        attended = torch.ops.air.npu_fused_infer_attention_score(
            query, keys, values, atten_mask=self.mask(length, tree), actual_seq_lengths_kv=length + NODES,
            num_heads=HEADS, num_key_value_heads=KV_HEADS, scale=DIM**-0.5, input_layout="BNSD", inner_precise=2,
        )[0]  # fmt: skip
        x = x + attended.transpose(1, 2).reshape(BATCH, NODES, -1) @ self.out
        gated = npu.npu_swiglu(npu.npu_rms_norm(x, self.gamma, 1e-6)[0] @ self.up, -1)
        k_cache.copy_(keys)
        v_cache.copy_(values)
        return x + gated, torch.gather(x, 1, path.unsqueeze(-1).expand(-1, -1, WIDTH))


def inputs() -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    cache = torch.randn(BATCH, KV_HEADS, KEYS, DIM).to(BF16)
    tables = torch.randn(BATCH, 1, NODES, DIM).to(BF16)
    tree = torch.ones(NODES, NODES, dtype=torch.bool).tril().expand(BATCH, -1, -1).contiguous()
    path = torch.zeros(BATCH, NODES, dtype=torch.int64)
    x = torch.randn(BATCH, NODES, WIDTH).to(BF16)
    return x, tables, tables.clone(), cache, cache.clone(), torch.tensor([5, 60]), tree, path


def by_export() -> GraphModule:
    return torch.export.export(TreeVerify(), inputs()).module()


def by_trace() -> GraphModule:
    return symbolic_trace(TreeVerify())


def by_make_fx() -> GraphModule:
    return make_fx(TreeVerify(), tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs())


NAMES = ("x", "cos", "sin", "k_cache", "v_cache", "length", "tree", "path")


def codes(graph: GraphModule, **changes: Any) -> list[str]:
    """Findings with ranges and meanings declared by argument, whatever the capture called it."""
    inside = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    name = dict(zip(NAMES, inside[-len(NAMES) :], strict=True))
    ranges = {"length": (0, KEYS - NODES), "path": (0, NODES - 1)} | changes.get("ranges", {})
    declared = {name[key]: held for key, held in ranges.items()}
    masks = {name["tree"]: changes.get("tree", "visible")}
    found = check_contracts(graph, ranges=declared, masks=masks, example_inputs=inputs())
    return sorted({item.code for item in found})


@pytest.mark.parametrize("capture", [by_export, by_trace, by_make_fx])
def test_layer_of_a_user_passes_and_its_faults_are_seen(capture: Callable[[], GraphModule]) -> None:
    graph = capture()
    assert codes(graph) == []
    assert codes(graph, tree="hidden") == ["SPC512"]
    assert codes(graph, ranges={"path": (-1, NODES - 1)}) == ["SPC560"]
    assert codes(graph, ranges={"length": (0, KEYS - NODES + 1)}) == ["SPC532", "SPC540"]


def test_two_layers_with_caches_of_their_own_pass() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = TreeVerify(), TreeVerify()

        def forward(self, k_more: Tensor, v_more: Tensor, *rest: Tensor) -> Tensor:
            x, cos, sin, k, v, length, tree, path = rest
            x, _ = self.first(x, cos, sin, k, v, length, tree, path)
            return self.second(x, cos, sin, k_more, v_more, length, tree, path)[0]

    more = [torch.zeros(BATCH, KV_HEADS, KEYS, DIM, dtype=BF16) for _ in range(2)]
    graph = torch.export.export(Twice(), (*more, *inputs())).module()
    assert codes(graph) == []
