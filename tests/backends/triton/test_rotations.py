"""Rotations, new rows and attention become one op where nothing can tell; else they stay, with a reason."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.backends.triton import rotations
from specc.backends.triton.rotations import attention_steps
from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.edit import modules
from specc.ir.interpreter import Interpreter
from specc.ir.scope import named_arguments

aten = torch.ops.aten
BATCH, TOKENS, HEADS, SHARED, DIM, CAPACITY, PAGE = 2, 3, 4, 2, 8, 12, 4
CHANGES: dict[str, str] = {
    "window": "has a window",
    "one tensor": "lie in one tensor",
    "q as it is": "is not rotated as a whole",
    "k as it is": "is not rotated as a whole",
    "q read twice": "is read elsewhere",
    "k read twice": "is read elsewhere",
    "other start": "go elsewhere",
    "other start of v": "go elsewhere",
    "other count": "different numbers of rows",
    "other angles": "different angles",
    "no rows": "no new rows are appended",
    "written behind": "no new rows are appended",
    "read between": "touches what they read or write",
    "length written": "touches what they read or write",
    "rows written": "touches what they read or write",
    "offset": "rows of earlier levels",
    "wide mask": "rows of earlier levels",
    "half of v": "differ in their number",
    "single": "differ in their dtype",
    "length in front": "what is read early",
    "cache in front": "what is read early",
    "new length in front": "what is read early",
}
"""Changes of the graph that each leave it as it is, and what the note says."""
PAGED_CHANGES: dict[str, str] = {
    **{change: text for change, text in CHANGES.items() if not change.endswith("in front")},
    "other table": "pages of another table",
    "other table of v": "pages of another table",
    "pages taken behind the product": "what is read early",
    "no product": "no product stands between",
    "table written": "touches what they read or write",
}
"""As above, for caches in pages."""


def graph(
    change: str = "", tree: bool = True, count: bool = True, product: str = "", pages: bool = False
) -> GraphModule:
    """A layer's attention as plan-buffers leaves it, with one change; results: o and what else is read.

    `product`: between a write in front and the rest, with a "residual" or "alone". `pages`: as page-caches leaves it,
    with a product behind what takes pages.
    """
    b = GraphBuilder(("verify",))
    kind = torch.float32

    def held(name: str, *shape: int, dtype: torch.dtype = kind) -> Node:
        return b.placeholder(name, fake(shape, dtype))

    q0, k0 = held("q0", BATCH, TOKENS, HEADS, DIM), held("k0", BATCH, TOKENS, SHARED, DIM)
    v = held("v", BATCH, TOKENS, SHARED, DIM)
    cos, sin, cos2 = (held(name, BATCH, TOKENS, DIM // 2) for name in ("cos", "sin", "cos2"))
    blocks = CAPACITY // PAGE
    shape = ((blocks + 1) * BATCH, PAGE) if pages else (BATCH, CAPACITY)
    caches = [held(name, *shape, SHARED, DIM) for name in ("K", "V")]
    table, table2, owner = (
        held(name, *size, dtype=torch.int32)
        for name, size in (("table", (BATCH, blocks)), ("table2", (BATCH, blocks)), ("owner", shape[:1]))
    )
    if change == "single":
        v, caches[1] = (b.call(aten._to_copy.default, x, dtype=torch.float64) for x in (v, caches[1]))
    if change == "one tensor":
        caches[1] = caches[0]
    length, kept, other = (held(name, BATCH, dtype=torch.int64) for name in ("length", "count", "other"))
    wide = TOKENS + (change == "wide mask")
    mask = held("mask", BATCH, TOKENS, wide, dtype=torch.bool)
    number = kept if count else None
    results: list[Node] = []

    def take() -> None:
        b.call(ops.take_pages_, table, owner, length, number, TOKENS, PAGE)

    def append(cache: Node, rows: Node, into: Node, start: Node, kept: Node | None) -> None:
        op, through = (ops.append_pages_, (into,)) if pages else (ops.append_rows_, ())
        b.call(op, cache, *through, rows, start, kept)

    if pages:
        if change not in ("pages taken behind the product", "no product"):
            take()
        if change != "no product":
            weight = held("weight", DIM, DIM // 2)
            results.append(b.call(ops.fused_linear, cos, weight, None, None, 0.0, "none", None))
        if change == "pages taken behind the product":
            take()
    if change.endswith("in front"):
        if change == "new length in front":
            length = b.call(aten.add.Tensor, length, 0)
        else:
            b.call(aten.mul_.Scalar, length if change == "length in front" else caches[1], 1)
        if product:
            weight = held("weight", DIM, DIM // 2)
            residual = held("residual", BATCH, TOKENS, DIM) if product == "residual" else None
            results.append(b.call(ops.fused_linear, cos, weight, None, None, 0.0, "none", residual))
    q = q0 if change == "q as it is" else b.call(ops.rope, q0, cos, sin)
    k = k0 if change == "k as it is" else b.call(ops.rope, k0, cos2 if change == "other angles" else cos, sin)
    if change in ("q read twice", "k read twice"):
        results.append(b.call(aten.neg.default, q if change == "q read twice" else k))
    if change != "no rows":
        into = table2 if change == "other table" else table
        append(caches[0], k, into, other if change == "other start" else length, number)
    value = b.call(aten.slice.Tensor, v, 1, 0, TOKENS - 1) if change == "half of v" else v
    start = other if change == "other start of v" else length
    into = table2 if change.startswith("other table") else table
    append(caches[1], value, into, start, other if change == "other count" else number)
    if change == "written behind":
        b.call(aten.mul_.Scalar, caches[0], 2.0)
    elif change == "read between":
        results.append(b.call(aten.add.Tensor, caches[0], 0.0))
    elif change == "length written":
        b.call(aten.mul_.Scalar, length, 0)
    elif change == "table written":
        b.call(aten.mul_.Scalar, table, 0)
    elif change == "rows written":
        b.call(aten.mul_.Scalar, v, 2.0)
    positions = b.call(aten.add.Tensor, b.call(aten.unsqueeze.default, other, 1), b.call(ops.iota, other, TOKENS))
    window, offset = (2 if change == "window" else 0), (1 if change == "offset" else 0)
    given = (q, *caches, *([table] if pages else []), length)
    if tree and change != "offset":
        op = ops.tree_attention_paged if pages else ops.tree_attention_cached
        o = b.call(op, *given, mask, positions, 0.3, window, False)
    else:
        op = ops.causal_attention_paged if pages else ops.causal_attention_cached
        o = b.call(op, *given, positions, offset, 0.3, window, False)
    return b.output([o, *results])


PAGES = {
    "table": torch.tensor([[5, 1, 0], [2, 0, 0]], dtype=torch.int32),
    "table2": torch.tensor([[3, 4, 0], [6, 7, 0]], dtype=torch.int32),
    "owner": torch.tensor([0, 1, 2, 0, 0, 1, 0, 0], dtype=torch.int32),
}
"""What those placeholders hold: one page is lacking."""


def outcome(module: GraphModule, seed: int = 0) -> list[torch.Tensor]:
    """Results, and all tensors afterwards."""
    made = torch.Generator().manual_seed(seed)
    held: list[Any] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            value = node.meta["val"]
            if value.dtype == torch.int64:
                held.append(torch.tensor({"length": [4, 2], "count": [2, 3]}.get(node.name, [3, 1])))
            elif value.dtype == torch.bool:
                held.append(torch.ones(value.shape, dtype=torch.bool).tril())
            elif value.dtype == torch.int32:
                held.append(PAGES[node.name].clone())
            else:
                held.append(torch.randn(value.shape, generator=made, dtype=value.dtype))
    return [*(item.clone() for item in Interpreter(module).run(*held)), *held]


def targets(module: GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes if str(node.target).startswith("specc.")]


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("count", [True, False])
@pytest.mark.parametrize("pages", [True, False])
def test_one_op_stands_for_four(tree: bool, count: bool, pages: bool) -> None:
    module = graph(tree=tree, count=count, pages=pages)
    made, notes = attention_steps(module)
    assert notes == []
    left = [ops.take_pages_, ops.fused_linear, ops.rope_attention_paged_] if pages else [ops.rope_attention_]
    assert [name for name in targets(made) if name is not ops.iota] == left
    for left, right in zip(outcome(module), outcome(made), strict=True):
        assert torch.equal(left, right)


def test_it_has_the_origins_of_all_that_it_stands_for() -> None:
    made, _ = attention_steps(graph())
    node = next(item for item in made.graph.nodes if item.target is ops.rope_attention_)
    assert rotations.ORIGIN in node.meta["passes"]
    assert "verify" in node.meta["keys"]


def layers() -> GraphModule:
    """Two layers in a loop, each of which makes its rows from what the last one has left."""
    b = GraphBuilder(("verify",))
    held = {name: b.placeholder(name, fake((2, BATCH, CAPACITY, SHARED, DIM), torch.float32)) for name in ("K", "V")}
    x = b.placeholder("x", fake((BATCH, TOKENS, SHARED, DIM), torch.float32))
    shared = {name: b.placeholder(name, fake((BATCH, TOKENS, DIM // 2), torch.float32)) for name in ("cos", "sin")}
    shared["length"] = b.placeholder("length", fake((BATCH,), torch.int64))
    body = BodyBuilder("layer", carried={"x": x}, sliced=held, invariant=shared, keys=("verify",))
    made = body.call(aten.neg.default, body["x"])
    angles = body["cos"], body["sin"]
    q, k = body.call(ops.rope, made, *angles), body.call(ops.rope, made, *angles)
    for cache, rows in (("K", k), ("V", made)):
        body.call(ops.append_rows_, body[cache], rows, body["length"])
    positions = body.call(aten.expand.default, body.call(aten.unsqueeze.default, body["length"], 1), [BATCH, TOKENS])
    caches = body["K"], body["V"]
    o = body.call(ops.causal_attention_cached, q, *caches, body["length"], positions, 0, 0.3, 0, False)
    return b.output(body.close(b, 2, [o], "loop"))


def test_it_is_found_in_the_body_of_a_loop() -> None:
    module = layers()
    made, notes = attention_steps(module)
    assert notes == []
    found = [node for block in modules(made) for node in block.graph.nodes if node.target is ops.rope_attention_]
    assert len(found) == 1
    for left, right in zip(outcome(module), outcome(made), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("change", list(CHANGES))
def test_what_must_stay_stays_with_a_reason(change: str) -> None:
    module = graph(change, tree=change != "offset")
    made, notes = attention_steps(module)
    assert ops.rope_attention_ not in targets(made)
    assert len(notes) == 1
    assert CHANGES[change] in notes[0]


@pytest.mark.parametrize("change", list(PAGED_CHANGES))
def test_what_must_stay_stays_in_pages_too(change: str) -> None:
    made, notes = attention_steps(graph(change, tree=change != "offset", pages=True))
    assert ops.rope_attention_paged_ not in targets(made)
    assert len(notes) == 1
    assert PAGED_CHANGES[change] in notes[0]


@pytest.mark.parametrize("change", ["length in front", "cache in front", "new length in front"])
def test_a_product_stands_between_the_writes_in_front_and_what_is_read_early(change: str) -> None:
    made, notes = attention_steps(graph(change, product="alone"))
    assert notes == []
    assert ops.rope_attention_ in targets(made)
    made, notes = attention_steps(graph(change, product="residual"))
    assert "what is read early" in notes[0]
    assert ops.rope_attention_ not in targets(made)


def test_prompts_keep_theirs() -> None:
    with patch.object(rotations, "MOST_TOKENS", TOKENS - 1):
        made, notes = attention_steps(graph())
    assert ops.rope_attention_ not in targets(made)
    assert "tokens" in notes[0]


@pytest.mark.parametrize("change", ["other start", "read between", "other count", "other angles", "rows written"])
def test_a_check_that_is_left_out_is_noticed(change: str) -> None:
    """The reasons are no pretexts: without them the graph would do something else."""
    module = graph(change)

    def lenient(node: Node) -> Any:
        given = named_arguments(node)
        caches = (given["k_cache"], given["v_cache"])
        appends = [rotations._append(cache, node) for cache in caches]
        rows = [named_arguments(item) for item in appends]
        q, k = (named_arguments(item) for item in (given["q"], rows[0]["rows"]))
        inside = rotations._in_order(given["q"], rows[0]["rows"], *appends)
        arguments = (q["x"], k["x"], rows[1]["rows"], q["cos"], q["sin"], *caches, given["length"], rows[0]["count"])
        return rotations._Found(tuple(inside), (*arguments, given["mask"], given["scale"], given["fused"]))

    with patch.object(rotations, "_found", lenient):
        made, _ = attention_steps(module)
    assert ops.rope_attention_ in targets(made)
    assert not all(torch.equal(a, b) for a, b in zip(outcome(module), outcome(made), strict=True))
