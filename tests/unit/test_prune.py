"""prune: loop operands and results that nothing needs disappear, and what is left computes the same."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.clone import clone
from specc.ir.dims import BATCH, CHUNK
from specc.ir.edit import finish, loop_parts
from specc.ir.loop import loop
from specc.ir.prune import prune

aten = torch.ops.aten


def running_sums(keep: tuple[int, ...]) -> GraphModule:
    """Over tokens: a (feeds b and c), b (feeds itself and c), c, and per-token d = c, e; returns `keep` of them."""
    b = GraphBuilder()
    x = b.placeholder("x", fake((BATCH, CHUNK), torch.int64))
    y = b.placeholder("y", fake((BATCH, CHUNK), torch.int64))
    start = b.placeholder("start", fake((BATCH, 1), torch.int64))
    carried = dict.fromkeys("abc", start)
    body = BodyBuilder("token", carried=carried, sliced={"x": x, "y": y}, invariant={"start": start})
    first = body.call(aten.add.Tensor, body["a"], 1)
    second = body.call(aten.add.Tensor, body.call(aten.mul.Tensor, body["b"], 2), body["a"])
    third = body.call(aten.add.Tensor, body["c"], body["b"])
    other = body.call(aten.add.Tensor, body["y"], body["start"])
    out = body.close(b, None, [first, second, third, third, other])
    return b.output([out[place] for place in keep])


def check(keep: tuple[int, ...], carried: int, sliced: int, invariant: int, results: int) -> None:
    """Prunes, compares the counts, and the values on 4 tokens."""
    before = running_sums(keep)
    after = clone(before)
    assert prune(after)
    finish(after)
    (node,) = [item for item in after.graph.nodes if item.target is loop]
    parts = loop_parts(node)
    counts = len(parts.carried), len(parts.sliced), len(parts.invariant), len(node.meta["val"])
    assert counts == (carried, sliced, invariant, results)
    x, y, start = torch.arange(8).reshape(2, 4), torch.arange(8).reshape(2, 4) * 3, torch.tensor([[1], [2]])
    for one, other in zip(before(x, y, start), after(x, y, start), strict=True):
        assert torch.equal(one, other)
    assert not prune(after), "a second run finds nothing"


def test_a_carried_value_that_feeds_only_itself_goes() -> None:
    check((0,), carried=1, sliced=1, invariant=0, results=1)


def test_a_carried_value_stays_while_something_needed_depends_on_it_later() -> None:
    check((2,), carried=3, sliced=1, invariant=0, results=3)


def test_a_stacked_result_keeps_the_carried_values_behind_it() -> None:
    check((3,), carried=3, sliced=1, invariant=0, results=4)


def test_the_slice_that_counts_the_iterations_stays() -> None:
    check((4,), carried=0, sliced=2, invariant=1, results=1)


def test_nothing_is_removed_where_everything_is_read() -> None:
    assert not prune(running_sums((0, 1, 2, 3, 4)))
