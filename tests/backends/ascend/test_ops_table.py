"""Every op of every program has a form that GE has; numbers of draws are found in the graphs."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from specc.backends.ascend.draws import row_draws
from specc.backends.ascend.ops import aten
from specc.backends.ascend.ops.rows import take_entries, take_rows
from specc.backends.ascend.ops.table import KERNELS, POINTWISE, npu_special, special
from specc.ir.edit import modules
from specc.ir.op import info
from specc.program import DecodeProgram
from tests.backends.ascend.contract_programs import SPECS, compiled
from tests.backends.ascend.op_support import CONVERTED, DECLARED, assert_convertible

QUICK = ("smollm2-prompt-lookup-tree", "gdn-15m-tree")
NAMES = [pytest.param(path.stem, marks=() if path.stem in QUICK else pytest.mark.slow) for path in SPECS]
# Ops whose reference implementation is made of what GE has.
AS_THEY_ARE = frozenset({"batch_index", "full_rows", "iota", "rope_tables"})
# Converted besides what our own functions become.
MORE = frozenset(
    {"constant_pad_nd.default", "div.Scalar", "embedding.default", "minimum.default", "slice_scatter.default"}
)


def program_of(name: str, *overrides: str) -> DecodeProgram:
    return compiled(name, *overrides)[1]


def has_form(node: Node) -> bool:
    """Whether GE has what is printed for a node."""
    target = node.target
    declared = info(target)
    if declared is not None:
        return declared.name in KERNELS or declared.name in AS_THEY_ARE
    if not isinstance(target, torch._ops.OpOverload):
        return True
    name = str(target).removeprefix("aten.")
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    return special(node) is not None or target in POINTWISE or name in CONVERTED | MORE or bool(composite)


@pytest.mark.parametrize("name", NAMES)
def test_every_op_of_a_program_has_a_form(name: str) -> None:
    missing = set()
    for graph in program_of(name).graphs.values():
        for module in modules(graph):
            missing |= {str(node.target) for node in module.graph.nodes if not has_form(node)}
    assert not missing


def node_of(target: torch._ops.OpOverload, value: torch.Tensor, *rest: object) -> Node:
    """A call on a placeholder with this value."""
    graph = Graph()
    first = graph.placeholder("x")
    first.meta["val"] = value
    return graph.call_function(target, (first, *rest))


ops = torch.ops.aten
X = torch.ones(2, 3)


def test_replacements_are_made_only_where_they_mean_the_same() -> None:
    found = special(node_of(ops.argmax.default, X, -1))
    assert found is not None
    assert found[0] is aten.argmax
    assert special(node_of(ops.argmax.default, X)) is None, "over all dims"
    assert special(node_of(ops.amax.default, X, [0, 1])) is None, "over two dims"
    assert special(node_of(ops.roll.default, X, [1])) is None, "flattened"
    assert special(node_of(ops.cumprod.default, X.long(), 1)) is None, "not zeros and ones"
    flag = node_of(ops._to_copy.default, X > 0)
    flag.meta["val"] = X.long()
    product = flag.graph.call_function(ops.cumprod.default, (flag, 1))
    assert special(product) is not None
    graph = Graph()
    wide, narrow = graph.placeholder("wide"), graph.placeholder("narrow")
    wide.meta["val"], narrow.meta["val"] = X.double(), X
    mixed = special(graph.call_function(ops.lt.Tensor, (wide, narrow)))
    assert mixed is not None
    assert torch.equal(mixed[0](X.double() - 1e-12, X), X.bool()), "compared in the wider type"
    assert special(graph.call_function(ops.lt.Tensor, (wide, wide))) is None
    assert special(node_of(ops.linear.default, X, X)) is None
    assert npu_special(node_of(ops.linear.default, X, X)) is not None


def test_numbers_of_two_dtypes_are_compared_in_the_wider() -> None:
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    x.meta["val"], y.meta["val"] = X.double(), X
    found = special(graph.call_function(ops.lt.Tensor, (x, y)))
    assert found is not None
    assert found[0] is aten.less
    assert special(graph.call_function(ops.lt.Tensor, (y, y))) is None
    third = torch.tensor([1.0 / 3.0])
    assert torch.equal(aten.less(third.double() + 1e-12, third), (third.double() + 1e-12) < third)


def test_rows_are_taken_by_one_index_only() -> None:
    graph = Graph()
    x, index = graph.placeholder("x"), graph.placeholder("index")
    index.meta["val"] = torch.zeros(2, 1, dtype=torch.int64)
    batch = graph.call_function(torch.ops.specc.batch_index.default, (x,))
    found = special(graph.call_function(ops.index.Tensor, (x, [batch, index])))
    assert found is not None
    assert found[0] is take_rows
    assert special(graph.call_function(ops.index.Tensor, (x, [index, index]))) is None
    one = special(graph.call_function(ops.index.Tensor, (x, [index])))
    assert one is not None
    assert one[0] is take_entries
    index.meta["val"] = index.meta["val"] > 0
    assert special(graph.call_function(ops.index.Tensor, (x, [index]))) is None, "a mask"


def rejecting(*overrides: str) -> GraphModule:
    return program_of("smollm2-rejection", *overrides).graphs["draft"]


def test_drawn_rows_of_a_tree_are_found() -> None:
    """Node 0 is the root: its children stand at length + 1; nodes 1 and 2 have children, and so has node 3."""
    first = 1 << 20
    assert row_draws(rejecting()) == ([1, 2, 2, 3], [first, first + 1, first + 2, first + 3], 49152)


def test_drawn_rows_of_a_chain_are_found() -> None:
    chain = ("draft.tree=chain", "draft.choices=null", "draft.num_speculative_tokens=3")
    assert row_draws(rejecting(*chain)) == ([1, 2, 3], [1 << 20, (1 << 20) + 1, (1 << 20) + 2], 49152)


def test_a_draft_without_draws_has_no_rows() -> None:
    assert row_draws(program_of("smollm2-prompt-lookup-tree").graphs["draft"]) is None


def test_references_that_stand_for_themselves_are_convertible() -> None:
    positions = torch.arange(6).reshape(2, 3)
    for scaling in ([], [8.0, 1.0, 4.0, 64.0]):
        assert_convertible(DECLARED["rope_tables"].reference, positions, 8, 1e4, scaling, torch.float16)
    assert_convertible(DECLARED["iota"].reference, positions, -2)
    assert_convertible(DECLARED["batch_index"].reference, positions)
    assert_convertible(DECLARED["full_rows"].reference, positions, [-1, 4, -2], 3, torch.int64)
