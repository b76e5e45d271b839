"""Named faults: the mistakes that public reports and the papers warn of, planted in the compiler's source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """`old` (exactly once in `path`) becomes `new`; `check` are the words after `specc check` that must find it (empty:
    tests may find it too)."""

    name: str
    path: str
    old: str
    new: str
    check: tuple[str, ...] = ()


NAMED: tuple[Fault, ...] = (
    Fault(
        "the parent shift is skipped",
        "passes/rewrite_negative_indices/tables.py",
        "shifted[operand] = editor.call(aten.add.Tensor, operand, 1, name=_row_name(operand))",
        "shifted[operand] = editor.call(aten.clamp_min.default, operand, 0, name=_row_name(operand))",
    ),
    Fault(
        "positions come from shifted parents",
        "passes/insert_tree_masks.py",
        'return editor.call(aten.sub.Tensor, count, 1, name="depth")',
        'return editor.call(aten.sub.Tensor, count, 0, name="depth")',
    ),
    Fault(
        "one mask bit is dropped",
        "specc/ir/ops/attention.py",
        "    return closure[:, 1:, 1:].contiguous()",
        "    closure = closure.clone()\n    closure[:, -1, 1] = False\n    return closure[:, 1:, 1:].contiguous()",
    ),
    Fault(
        "the closure stops one doubling early",
        "specc/ir/ops/attention.py",
        "for _ in range(max(nodes - 1, 1).bit_length()):",
        "for _ in range(max(nodes - 1, 1).bit_length() - 2):",
    ),
    Fault(
        "rerank may keep a child without its parent",
        "specc/ir/ops/draft.py",
        "earlier = number.unsqueeze(0) < number.unsqueeze(1)",
        "earlier = number.unsqueeze(0) > number.unsqueeze(1)",
    ),
    Fault(
        "rows are compacted in descending order",
        "backends/reference/kernels/cache.py",
        "        cache[row, begin:end] = cache[row].index_select(0, source)\n",
        "        for place in reversed(range(end - begin)):\n"
        "            cache[row, begin + place] = cache[row, int(source[place])]\n",
    ),
    Fault(
        "the commit is one row short",
        "specc/lower/accept.py",
        "counted = b.call(aten.add.Tensor, accept_length, 1)",
        "counted = b.call(aten.clamp_min.default, accept_length, 1)",
    ),
    Fault(
        "u = 0 accepts a token of probability 0",
        "specc/lower/accept_rules.py",
        'passed = body.call(aten.lt.Tensor, uniform, p, name="passed")',
        'passed = body.call(aten.le.Tensor, uniform, p, name="passed")',
    ),
    Fault(
        "a rejected token stays in the residual",
        "specc/lower/accept_rules.py",
        "left = body.call(aten.masked_fill.Scalar, residual, struck, 0.0)",
        "left = body.call(aten.mul.Tensor, residual, 1.0)",
    ),
    Fault(
        "the draft graph is turned layer-major",
        "passes/layer_major/dependence.py",
        "    if refusals:\n        raise next(",
        "    if refusals and not any(refused.final for refused in refusals):\n        raise next(",
    ),
    Fault(
        "K and V are compacted along different paths",
        "specc/lower/commit.py",
        'n[cache], n[candidate], n["path"], n["start"], n["count"], config.fast_reorder',
        'n[cache], n[candidate], n["path"] if "k_" in cache else n.call(aten.cumsum.default, '
        'n.call(aten.ones_like.default, n["path"]), 1), n["start"], n["count"], config.fast_reorder',
    ),
    Fault(
        "what is pending is folded again and again",
        "passes/fuse_deferred_state_update/fold.py",
        'cleared = editor.call(torch.ops.aten.zeros_like.default, count, name="nothing_pending")',
        'cleared = editor.call(torch.ops.aten.clone.default, count, name="nothing_pending")',
    ),
    Fault(
        "padding nodes can be accepted",
        "specc/lower/accept.py",
        'looked = body.call(aten.logical_and.default, child, valid, name="looked_at")',
        'looked = body.call(aten.logical_and.default, child, child, name="looked_at")',
    ),
    Fault(
        "a stop token inside the path is not seen",
        "specc/lower/accept.py",
        'ends = b.call(aten.logical_and.default, ends, b.call(aten.le.Tensor, column, _column(b, count)), name="ends")',
        'ends = b.call(aten.logical_and.default, ends, b.call(aten.eq.Tensor, column, _column(b, count)), name="ends")',
    ),
    Fault(
        "path padding is not masked",
        "specc/lower/target.py",
        'b.inside["own_valid"] = b.call(aten.ge.Scalar, own, 0, name="own_valid")',
        'b.inside["own_valid"] = b.call(aten.ge.Scalar, own, -1, name="own_valid")',
    ),
    Fault(
        "the text so far is written one place late",
        "specc/lower/drafts/state.py",
        'after_root = b.call(aten.add.Tensor, b.slot("length"), 1)',
        'after_root = b.call(aten.add.Tensor, b.slot("length"), 2)',
    ),
    Fault(
        "the drafter learns the features of the wrong nodes",
        "specc/lower/drafts/state.py",
        'along = b.call(aten.index.Tensor, features, [batch, path], name="path_features")',
        "along = b.call(aten.index.Tensor, features, [batch, b.call(aten.cumsum.default, "
        'b.call(aten.ones_like.default, path), 1)], name="path_features")',
    ),
    Fault(
        "finished rows go on emitting",
        "specc/lower/accept.py",
        'live = b.call(aten.logical_and.default, unfinished, b.call(aten.gt.Scalar, limit, 0), name="live")',
        'live = b.call(aten.gt.Scalar, limit, 0, name="live")',
    ),
    Fault(
        "padding of a ragged prompt is written to the cache",
        "backends/reference/kernels/cache.py",
        "counts = [rows.shape[1]] * rows.shape[0] if count is None else count.tolist()",
        "counts = [rows.shape[1]] * rows.shape[0] if count is None else [rows.shape[1]] * len(count.tolist())",
    ),
)
