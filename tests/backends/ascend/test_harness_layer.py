"""A tree-verify layer through the real torchair, and state that changes in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.backends.ascend.harness import counts
from specc.backends.ascend.harness.lower import lower
from tests.backends.ascend.harness_support import FEW, assert_same, copied, normal

pytestmark = pytest.mark.usefixtures("torch_npu_wheel")
NPU = torch.ops.npu
HEADS, KV_HEADS, SIZE, HIDDEN, CAPACITY = 4, 2, 16, 32, 40
PARENT = [-1, 0, 0, 1, 1, 2]
EPSILON = 1e-6


class TreeVerify(torch.nn.Module):
    """One decoder layer over the nodes of a tree; the cache is written at `start`, read by the mask."""

    def __init__(self) -> None:
        super().__init__()
        rows = (HEADS + 2 * KV_HEADS) * SIZE
        shapes = {
            "qkv": (rows, HIDDEN),
            "o": (HIDDEN, HEADS * SIZE),
            "up": (2 * HIDDEN, HIDDEN),
            "down": (HIDDEN, HIDDEN),
        }
        for number, (name, shape) in enumerate(shapes.items()):
            weight = normal(number, *shape).half() / shape[1] ** 0.5
            self.register_buffer(name, weight)
        self.register_buffer("gamma", torch.ones(HIDDEN, dtype=torch.float16) + normal(9, HIDDEN).half() / 10)

    def forward(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        start: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        batch, nodes = x.shape[:2]
        normed = NPU.npu_rms_norm(x, self.gamma, EPSILON)[0]
        heads = torch.nn.functional.linear(normed, self.qkv).unflatten(2, (-1, SIZE))
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], 2)
        q, k = NPU.npu_rotary_mul(q, cos, sin), NPU.npu_rotary_mul(k, cos, sin)
        keys, values = NPU.scatter_update(k_cache, start, k, 1), NPU.scatter_update(v_cache, start, v, 1)
        k_cache.copy_(keys)
        v_cache.copy_(values)
        attended = torch.ops.air.npu_fused_infer_attention_score(
            q,
            keys,
            values,
            atten_mask=mask,
            actual_seq_lengths_kv=start + nodes,
            num_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            scale=SIZE**-0.5,
            input_layout="BSND",
            sparse_mode=1,
        )[0]
        x = x + torch.nn.functional.linear(attended.reshape(batch, nodes, -1), self.o)
        normed = NPU.npu_rms_norm(x, self.gamma, EPSILON)[0]
        return x + torch.nn.functional.linear(NPU.npu_swiglu(torch.nn.functional.linear(normed, self.up)), self.down)


def reference(layer: TreeVerify, x: Any, cos: Any, sin: Any, k_cache: Any, v_cache: Any, start: Any) -> Any:
    """The layer in float64, one sequence and one node at a time, over its ancestors; (result, keys, values)."""
    qkv, o, up, down, gamma = (getattr(layer, name).double() for name in ("qkv", "o", "up", "down", "gamma"))

    def norm(row: torch.Tensor) -> torch.Tensor:
        return row / (row.square().mean() + EPSILON).sqrt() * gamma

    def turn(head: torch.Tensor, b: int, node: int) -> torch.Tensor:
        half = SIZE // 2
        turned = torch.cat([-head[half:], head[:half]])
        return head * cos[b, node, 0].double() + turned * sin[b, node, 0].double()

    result, keys, values = x.double(), k_cache.double(), v_cache.double()
    for b, first in enumerate(start.tolist()):
        rows = [(qkv @ norm(x[b, node].double())).reshape(-1, SIZE) for node in range(x.shape[1])]
        for node, heads in enumerate(rows):
            keys[b, first + node] = torch.stack([turn(head, b, node) for head in heads[HEADS : HEADS + KV_HEADS]])
            values[b, first + node] = heads[HEADS + KV_HEADS :]
        for node, heads in enumerate(rows):
            seen, ancestor = list(range(first)), node
            while ancestor >= 0:
                seen.append(first + ancestor)
                ancestor = PARENT[ancestor]
            attended = []
            for head in range(HEADS):
                k, v = (cache[b, seen, head // (HEADS // KV_HEADS)] for cache in (keys, values))
                attended.append((k @ turn(heads[head], b, node) * SIZE**-0.5).softmax(0) @ v)
            row = x[b, node].double() + o @ torch.cat(attended)
            gate, value = (up @ norm(row)).chunk(2)
            result[b, node] = row + down @ (torch.nn.functional.silu(gate) * value)
    return result, keys, values


def tree_inputs(seed: int, starts: list[int]) -> tuple[torch.Tensor, ...]:
    batch, nodes = len(starts), len(PARENT)
    angles = normal(seed, batch, nodes, 1, SIZE // 2).repeat(1, 1, 1, 2)
    mask = torch.ones(batch, 1, nodes, CAPACITY, dtype=torch.int8)
    for b, first in enumerate(starts):
        mask[b, :, :, :first] = 0
        for node in range(nodes):
            ancestor = node
            while ancestor >= 0:
                mask[b, 0, node, first + ancestor] = 0
                ancestor = PARENT[ancestor]
    caches = (normal(seed + n, batch, CAPACITY, KV_HEADS, SIZE).half() for n in (1, 2))
    x = normal(seed + 3, batch, nodes, HIDDEN).half()
    return (x, angles.cos().half(), angles.sin().half(), *caches, torch.tensor(starts), mask)


@FEW
@given(st.lists(st.integers(0, CAPACITY - len(PARENT)), min_size=2, max_size=2), st.integers(0, 999))
def test_a_tree_verify_layer_equals_float64_and_writes_its_caches(starts: list[int], seed: int) -> None:
    layer, inputs = TreeVerify(), tree_inputs(seed, starts)
    result, keys, values = reference(layer, *copied(inputs)[:6])
    lowered = lower(layer, inputs)
    made = lowered.run(*inputs)
    assert float((made.double() - result).abs().max()) < 1e-2 * float(result.abs().max())
    assert float((inputs[3].double() - keys).abs().max()) < 5e-3 * float(keys.abs().max())
    assert float((inputs[4].double() - values).abs().max()) < 5e-3 * float(values.abs().max())
    assert counts.copies(lowered.graph) == []
    assert [update.clean for update in counts.updates(lowered.graph)] == [True, True]


def test_another_length_is_no_recompilation_and_one_graph() -> None:
    layer = TreeVerify()
    lowered = lower(layer, tree_inputs(0, [3, 7]))
    for starts in ([0, 0], [34, 1], [5, 5]):
        lowered.run(*tree_inputs(1, starts))
    assert (lowered.recompiles, len(lowered.graphs), lowered.graphs[0].runs) == (0, 1, 3)


def test_another_shape_is_counted_as_a_recompilation() -> None:
    lowered = lower(torch.exp, (torch.ones(3),))
    lowered.run(torch.ones(4))
    assert lowered.recompiles == 1


def decay(states: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """A dense update of every slot."""
    for number, state in enumerate(states):
        state.copy_(state * 0.5 + x * (number + 1))
    return states[0].sum() + x


def test_dense_states_change_in_every_slot() -> None:
    """torchair turns `state.copy_(new)` into an assigned output; whoever ignores these leaves the state as it was."""
    stacked = normal(1, 3, 2, 4)
    inputs = ([stacked[layer] for layer in range(3)], normal(2, 2, 4))
    wanted = copied(inputs)
    expected = decay(*wanted)
    lowered = lower(decay, inputs)
    assert_same(lowered.run(*inputs), expected)
    assert_same(inputs, wanted)
    assert_same(stacked, torch.stack(wanted[0]))
    assert sorted(lowered.graphs[0].assigned.values()) == [0, 2, 3]  # input 1 is x


def shifted(state: torch.Tensor, window: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Reads the old state after the new one exists; the result and the state share a value."""
    joined = torch.cat([window, x], 1)
    old = state.clone()
    state.copy_(joined[:, -1:].sum(-1))
    window.copy_(joined[:, 1:])
    return old + state, window


def test_results_and_states_of_one_value_do_not_share_memory() -> None:
    inputs = (normal(0, 2, 1), normal(1, 2, 3, 4), normal(2, 2, 1, 4))
    wanted = copied(inputs)
    expected = shifted(*wanted)
    made = lower(shifted, inputs).run(*inputs)
    assert_same(made, expected)
    assert_same(inputs, wanted)


def test_a_result_has_memory_of_its_own() -> None:
    """GE has no op for `clone`: torchair passes the input through."""
    x = normal(0, 3)
    made = lower(torch.clone, (x,)).run(x)
    made.zero_()
    assert x.all()


def test_a_state_that_is_not_contiguous_changes_too() -> None:
    whole = normal(0, 2, 6)
    inputs = ([whole[:, ::2]], normal(1, 2, 3))
    wanted = copied(inputs)
    decay(*wanted)
    lower(decay, inputs).run(*inputs)
    assert_same(whole[:, ::2], wanted[0][0])


@pytest.mark.parametrize("read_before", [False, True])
def test_a_second_reader_of_the_cache_costs_a_copy_of_it(read_before: bool) -> None:
    def step(cache: torch.Tensor, start: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        old = cache.sum() if read_before else 0.0
        written = NPU.scatter_update(cache, start, rows, 1)
        cache.copy_(written)
        return written.sum() + old

    inputs = (normal(0, 2, 8, 4), torch.tensor([1, 5]), normal(1, 2, 2, 4))
    wanted = copied(inputs)
    for b, first in enumerate((1, 5)):
        wanted[0][b, first : first + 2] = wanted[2][b]
    lowered = lower(step, inputs)
    total = lowered.run(*inputs)
    assert_same(inputs, wanted)
    made_for = [copy.fx_node for copy in counts.copies(lowered.graph)]
    assert made_for == (["scatter_update: npu.scatter_update.default"] if read_before else [])
    assert torch.isfinite(total)


def test_ops_of_constants_alone_are_not_counted() -> None:
    graph = lower(lambda x: x + torch.ones(3) * torch.arange(3), (normal(0, 3),)).graph
    assert {op.type for op in graph.op} > {"Mul", "Fill", "Range"}
    assert counts.op_counts(graph) == {"Add": 1}


def test_ops_of_one_layer_and_who_made_them() -> None:
    def layers(x: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            x = torch.sin(x.transpose(0, 1).contiguous()) + 1
        return x

    two, three = (lower(lambda x, count=count: layers(x, count), (normal(0, 4, 4),)).graph for count in (2, 3))
    assert counts.per_layer(three, two) == {"Add": 1.0, "Identity": 1.0, "Sin": 1.0, "Transpose": 1.0}
    made = counts.made(two, ["Transpose"])
    assert [one.fx_node for one in made] == ["clone: aten.clone.default", "clone_1: aten.clone.default"]
    assert all("x.transpose(0, 1).contiguous()" in one.place for one in made)
