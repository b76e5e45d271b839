"""insert-tree-masks and layer-major: faults planted into their results are seen by comparing with naive decoding, and
row numbers that only look like those of the pattern are left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, modules
from specc.passes.insert_tree_masks import insert_tree_masks
from specc.program import DecodeProgram
from specc.testing import DraftBatch, make_tree
from tests.passes.tree_programs import (
    TREES,
    assert_same,
    naive_program,
    staged,
    verified,
    weights_of,
)

aten = torch.ops.aten
SMALL = TREES[0]
BRANCHED = DraftBatch((make_tree((1, 2, 3, 4, 5), (-1, 0, 0, 1, 3)), make_tree((6, 7, 8, 9), (-1, 0, 1, 0), 5)), (7, 0))


def calls(module: GraphModule, target: object) -> list[Node]:
    """Calls of an op in a module and its loop bodies."""
    return [node for item in modules(module) for node in item.graph.nodes if node.target is target]


def one(module: GraphModule, target: object) -> Node:
    """The only call of an op."""
    (node,) = calls(module, target)
    return node


def with_verify(module: GraphModule) -> DecodeProgram:
    """The small program with another verify."""
    return naive_program(SMALL).with_graphs(verify=module)


def _body_of(module: GraphModule, target: object) -> tuple[Editor, Node]:
    node = calls(module, target)[0]
    owner = node.graph.owning_module
    assert owner is not None
    return Editor(owner, "edit"), node


# Planted faults: the comparison above must see each of them.


def _edit_mask(change: Callable[[Editor, Node], Node]) -> Callable[[GraphModule], None]:
    def edit(module: GraphModule) -> None:
        mask = one(module, ops.ancestor_mask)
        editor = Editor(module, "edit")
        with editor.after(mask):
            anchor = editor.call(aten.clone.default, mask)
        with editor.after(anchor):
            new = change(editor, anchor)
        mask.replace_all_uses_with(new, delete_user_cb=lambda user: user is not anchor)
        module.graph.lint()

    return edit


def _drop_one_bit(editor: Editor, mask: Node) -> Node:
    """Node 4 doesn't see node 1."""
    with editor.graph.inserting_after(mask):
        row = editor.call(aten.select.int, mask, 1, 4)
    with editor.graph.inserting_after(row):
        bit = editor.call(aten.select.int, row, 1, 1)
    with editor.graph.inserting_after(bit):
        off = editor.call(aten.zeros_like.default, bit)
    with editor.graph.inserting_after(off):
        changed = editor.call(aten.select_scatter.default, row, off, 1, 1)
    with editor.graph.inserting_after(changed):
        return editor.call(aten.select_scatter.default, mask, changed, 1, 4)


def _without_self(editor: Editor, mask: Node) -> Node:
    return editor.call(aten.tril.default, mask, -1)


def _shifted_depth(module: GraphModule) -> None:
    """Depths counted with the dummy root, as they would be from shifted parents."""
    for node in module.graph.nodes:
        if node.target is aten.sub.Tensor and node.args[1] == 1 and node.args[0].target is aten.sum.dim_IntList:
            node.args = (node.args[0], 0)


def _swapped_tables(module: GraphModule) -> None:
    attention = one(module, ops.tree_attention)
    arguments = list(attention.args)
    arguments[4], arguments[5] = arguments[5], arguments[4]
    attention.args = tuple(arguments)


def _values_from_other_rows(module: GraphModule) -> None:
    editor, attention = _body_of(module, ops.tree_attention)
    rows = attention.args[5]
    with editor.before(attention):
        moved = editor.call(aten.roll.default, rows, [1], [1])
    attention.args = (*attention.args[:5], moved, *attention.args[6:])


PLANTED = [
    _edit_mask(_drop_one_bit),
    _edit_mask(_without_self),
    _shifted_depth,
    _swapped_tables,
    _values_from_other_rows,
]


@pytest.mark.parametrize("stage", ["insert-tree-masks", "layer-major"])
@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_seen_by_the_comparison(fault: Callable[[GraphModule], None], stage: str) -> None:
    module = clone(staged(SMALL)[stage].program.graphs["verify"])
    fault(module)
    before = verified(naive_program(SMALL), BRANCHED, SMALL, weights_of(SMALL))
    after = verified(with_verify(finish(module)), BRANCHED, SMALL, weights_of(SMALL))
    with pytest.raises(AssertionError, match=r"logits|candidate"):
        assert_same(before, after)


# Row numbers: a wrap-around written out is seen through, and what is nearly one is not.


def _wrapped(module: GraphModule, size: int, bar: int = 0) -> GraphModule:
    """Every row number i of the naive verify as where(i < bar, i + size, i)."""
    made: dict[Node, Node] = {}
    for read in calls(module, aten.index.Tensor):
        owner = read.graph.owning_module
        assert owner is not None
        editor, (batch, place) = Editor(owner, "edit"), read.args[1]
        if place not in made:
            with editor.before(read):
                below = editor.call(aten.lt.Scalar, place, bar)
                made[place] = editor.call(aten.where.self, below, editor.call(aten.add.Tensor, place, size), place)
        read.args = (read.args[0], [batch, made[place]])
    return finish(module)


def test_a_wrap_around_that_is_written_out_is_seen_through() -> None:
    naive = naive_program(SMALL).graphs["verify"]
    made, notes = insert_tree_masks(_wrapped(clone(naive), SMALL.nodes + 1), "verify")
    assert [note.fired for note in notes] == [True]
    before, after = (verified(with_verify(module), BRANCHED, SMALL, weights_of(SMALL)) for module in (naive, made))
    assert_same(before, after)


@pytest.mark.parametrize(
    ("size", "bar", "reason"),
    [
        (SMALL.nodes, 0, "wraps negative rows by 5, the table has 6 rows"),
        (SMALL.nodes + 1, -1, "the attention's mask is not `path >= 0`"),
    ],
)
def test_what_is_no_wrap_around_is_left_alone(size: int, bar: int, reason: str) -> None:
    module = _wrapped(clone(naive_program(SMALL).graphs["verify"]), size, bar)
    made, notes = insert_tree_masks(module, "verify")
    assert made is module
    assert [note.fired for note in notes] == [False]
    assert reason in notes[0].message


def test_a_shift_times_a_factor_is_no_shift() -> None:
    """i + 1 and i + 2 * 1 are calls of one op, and only the first is the row of node i."""
    module = clone(staged(SMALL)["rewrite-negative-indices"].program.graphs["verify"])
    one(module, ops.tree_attention).args[4].args[1][1].kwargs = {"alpha": 2}
    module = finish(module)
    made, notes = insert_tree_masks(module, "verify")
    assert made is module
    assert [note.fired for note in notes] == [False]


# Lanes of a path below 0 are masked, so that their row numbers don't matter, and no others do.
LANES: dict[str, Callable[[Editor, Node], Node]] = {
    "clamped": lambda editor, path: editor.call(aten.clamp_min.default, path, 0),
    "where negative": lambda editor, path: editor.call(
        aten.where.self, editor.call(aten.lt.Scalar, path, 0), editor.call(aten.zeros_like.default, path), path
    ),
    "where valid": lambda editor, path: editor.call(
        aten.where.self, editor.call(aten.ge.Scalar, path, 0), path, editor.call(aten.zeros_like.default, path)
    ),
}
OTHER_LANES: dict[str, Callable[[Editor, Node], Node]] = {
    "clamped to 1": lambda editor, path: editor.call(aten.clamp_min.default, path, 1),
    "where not above 0": lambda editor, path: editor.call(
        aten.where.self, editor.call(aten.lt.Scalar, path, 1), editor.call(aten.full_like.default, path, 3), path
    ),
}


def _with_lanes(form: Callable[[Editor, Node], Node]) -> GraphModule:
    """The naive verify that reads K and V along another form of the path."""
    module = clone(naive_program(SMALL).graphs["verify"])
    editor, attention = _body_of(module, ops.tree_attention)
    squeezed = attention.args[4].args[1][1]
    with editor.before(squeezed):
        squeezed.args = (form(editor, squeezed.args[0]), 1)
    return finish(module)


@pytest.mark.parametrize("form", LANES)
def test_what_masked_lanes_read_does_not_matter(form: str) -> None:
    made, notes = insert_tree_masks(_with_lanes(LANES[form]), "verify")
    assert [note.fired for note in notes] == [True]
    naive = naive_program(SMALL).graphs["verify"]
    before, after = (verified(with_verify(module), BRANCHED, SMALL, weights_of(SMALL)) for module in (naive, made))
    assert_same(before, after)


@pytest.mark.parametrize("form", OTHER_LANES)
def test_what_other_lanes_read_does(form: str) -> None:
    _, notes = insert_tree_masks(_with_lanes(OTHER_LANES[form]), "verify")
    assert [note.fired for note in notes] == [False]
