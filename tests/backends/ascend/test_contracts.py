"""Every contract has a legal graph that passes, and a fault in one node of it that is refused with its own code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx import GraphModule, symbolic_trace

from specc.backends.ascend import cpu
from specc.backends.ascend.contracts import check_contracts
from specc.codes.ascend import ASCEND_CODES
from specc.diagnostics import Diagnostic
from tests.backends.ascend.contract_faults import FAULTS, Plant
from tests.backends.ascend.contract_graphs import (
    BATCH,
    BF16,
    DIM,
    HEADS,
    KEYS,
    LEGAL,
    ROWS,
    Legal,
    legal,
)

aten = torch.ops.aten
I8 = torch.int8


def found(graph: Legal) -> list[Diagnostic]:
    return check_contracts(graph.module, **graph.declared)


@pytest.mark.parametrize("name", LEGAL)
def test_legal_graph_passes(name: str) -> None:
    assert [item.render() for item in found(legal(name))] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_refused_with_its_code_and_no_other(fault: str) -> None:
    name, code, plant = FAULTS[fault]
    graph = legal(name)
    plant(graph)
    graph.module.graph.lint()
    diagnostics = found(graph)
    assert {item.code for item in diagnostics} == {code}, "\n\n".join(item.render() for item in diagnostics)
    for item in diagnostics:
        assert item.severity == "error"
        assert item.help
        assert "the node: " in "\n".join(item.notes)


def test_every_code_has_a_planted_fault() -> None:
    apart = {"SPC573"}  # only our own sampling op: test_contracts_programs
    assert {item.code for item in ASCEND_CODES} - apart == {code for _, code, _ in FAULTS.values()}


LIMITS: dict[str, tuple[str, Plant]] = {
    "head_dim 512": (
        "short_prompt",
        lambda g: [
            g.put_in(name, 1, HEADS, rows, 512, dtype=BF16)
            for name, rows in (("query", ROWS), ("k_cache", KEYS), ("v_cache", KEYS))
        ],
    ),
    "256 heads": (
        "short_prompt",
        lambda g: (
            g.put_in("query", 1, 256, ROWS, DIM, dtype=BF16),
            g.keyword("attention", num_heads=256),
        ),
    ),
    "64 heads share a key head": (
        "plain_step",
        lambda g: (
            g.put_in("query", BATCH, 1, 64, DIM, dtype=BF16),
            g.keyword("attention", num_heads=64, num_key_value_heads=1),
        ),
    ),
    "rows up to the last": ("decode_round", lambda g: g.declared["ranges"].update(length=(KEYS - ROWS, KEYS - ROWS))),
    "mask for all sequences": ("decode_round", lambda g: g.behind("mask", aten.slice.Tensor, 0, 0, 1)),
    "uint8 mask": ("decode_round", lambda g: g.keyword("bits", dtype=torch.uint8)),
    "bool mask of several rows": ("decode_round", lambda g: g.keyword("bits", dtype=torch.bool)),
    "one token in the chain op": (
        "chain_step",
        lambda g: (
            g.put_in("query", 1, 4, 64, dtype=BF16),
            g.put_in("rows", 1, dtype=torch.int32),
        ),
    ),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_what_is_just_allowed_passes(limit: str) -> None:
    name, change = LIMITS[limit]
    graph = legal(name)
    change(graph)
    assert [item.render() for item in found(graph)] == []


def drawn_inputs(graph: Legal) -> list[torch.Tensor]:
    """Random inputs; integers at the upper end of their declared range, lower triangles for trees."""
    generator = torch.Generator().manual_seed(0)
    ranges = graph.declared.get("ranges", {})
    made = []
    for node in graph.module.graph.nodes:
        if node.op == "placeholder":
            like = node.meta["val"]
            if like.dtype.is_floating_point:
                made.append(torch.randn(tuple(like.shape), generator=generator).to(like.dtype))
            elif like.dtype == torch.bool:
                made.append(torch.ones(tuple(like.shape), dtype=torch.bool).tril())
            elif node.name == "rows":
                made.append(torch.arange(like.numel(), dtype=like.dtype))
            else:
                made.append(torch.full(tuple(like.shape), ranges.get(node.name, (0, 0))[1], dtype=like.dtype))
    return made


def run(graph: Legal) -> None:
    cpu.register()
    graph.module.recompile()
    graph.module(*drawn_inputs(graph))


@pytest.mark.parametrize("name", ["decode_round", "plain_step", "short_prompt", "state_pool", "chain_step"])
def test_legal_graph_runs_with_the_documented_semantics(name: str) -> None:
    run(legal(name))


RAISES = (
    "float16 mask", "bool mask of one row", "heads in the mask", "mask of the tree only", "float32 query",
    "head_dim 72", "num_heads of another model", "inner_precise of another op", "stale query lengths",
    "length behind the cache", "rows behind the cache", "rows along the sequences", "duplicate places",
    "scatter into int64", "float32 state", "one state row for all tokens", "token past the vocabulary",
)  # fmt: skip


@pytest.mark.parametrize("fault", RAISES)
def test_operator_refuses_what_its_contract_refuses(fault: str) -> None:
    name, _, plant = FAULTS[fault]
    graph = legal(name)
    plant(graph)
    with pytest.raises((IndexError, ValueError)):
        run(graph)


def exported(function: Callable[..., object], *inputs: object, **options: object) -> GraphModule:
    class Wrapped(torch.nn.Module):
        def forward(self, *arguments: object) -> object:
            return function(*arguments)

    return torch.export.export(Wrapped(), inputs, **options).module()


def test_size_that_is_known_at_run_time_only_is_refused() -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    graph = exported(lambda x: x * 2, torch.ones(8, 4), dynamic_shapes={"arguments": ({0: rows},)})
    assert [item.code for item in check_contracts(graph)] == ["SPC571"]


def test_number_of_the_host_as_input_is_refused() -> None:
    graph = symbolic_trace(lambda x, n: x * n)
    assert [item.code for item in check_contracts(graph, example_inputs=(torch.ones(4), 3))] == ["SPC571"]


def test_graph_without_shapes_asks_for_example_inputs() -> None:
    graph = symbolic_trace(lambda x, i: x[i])
    assert [item.code for item in check_contracts(graph)] == ["SPC322"]


def test_more_rows_are_legal_in_a_prefill() -> None:
    graph = legal("paged_round")
    graph.put_in("query", BATCH, HEADS, 48, DIM, dtype=BF16)
    graph.put_in("mask", BATCH, 1, 48, 512, dtype=I8)
    graph.declared["stage"] = "prefill"
    assert found(graph) == []


def test_finding_of_an_exported_function_names_its_line() -> None:
    graph = exported(lambda x: torch.roll(x, 1, 0), torch.ones(4))
    (item,) = check_contracts(graph)
    assert "test_contracts.py" in "\n".join(item.notes)


def test_the_checked_graph_is_left_alone() -> None:
    graph = symbolic_trace(lambda x, i: torch.where(i >= 0, x[i], 0.0))
    before = str(graph.graph)
    check_contracts(graph, example_inputs=(torch.ones(4), torch.tensor([1])))
    assert str(graph.graph) == before
    assert all("val" not in node.meta for node in graph.graph.nodes)
