"""Intervals of the results of our own ops (`specc.ir.ops`)."""

from __future__ import annotations

from specc.ir.ranges import interval as iv
from specc.ir.ranges.bounds import ZERO, integer, of_size
from specc.ir.ranges.calls import Call, shape_of
from specc.ir.ranges.interval import BOOL, EVERYTHING, Interval, exactly
from specc.ir.ranges.rules import Operands, Value, dim_size, rule


@rule("specc::batch_index")
def _batch_index(call: Call, operands: Operands) -> Value:
    shape = shape_of(call.arg(0, "like"))
    return EVERYTHING if shape is None else iv.up_to(of_size(shape[0]))


@rule("specc::iota")
def _iota(call: Call, operands: Operands) -> Value:
    size, shape = call.arg(1, "size"), shape_of(call.arg(0, "like"))
    if isinstance(size, int) and size >= 0:
        return iv.up_to(integer(size))
    if size == -2 and shape is not None:
        return iv.up_to(of_size(shape[1]))
    held = operands.of(size)
    return Interval(ZERO, held.high - integer(1)) if held.low >= ZERO else EVERYTHING


@rule("specc::npu_chain_slots")
def _chain_slots(call: Call, operands: Operands) -> Value:
    """Rows of all sequences' rings."""
    shape, rows = shape_of(call.arg(0, "row")), call.arg(1, "rows")
    return iv.up_to(of_size(shape[0]) * integer(rows)) if shape is not None and isinstance(rows, int) else EVERYTHING


@rule("specc::full_rows")
def _full_rows(call: Call, operands: Operands) -> Value:
    return operands.of(call.arg(2, "value"))


@rule("specc::root_table")
def _root_table(call: Call, operands: Operands) -> Value:
    """Zeros, and one row of committed values."""
    return iv.join(operands.of(call.arg(0, "committed")), exactly(0))


@rule("specc::append_rows")
def _append_rows(call: Call, operands: Operands) -> Value:
    """Both forms; the one in place returns nothing, and its cache then holds both."""
    return iv.join(operands.of(call.arg(0, "cache")), operands.of(call.arg(1, "rows")))


@rule("specc::commit_path")
def _commit_path(call: Call, operands: Operands) -> Value:
    """In place (without `candidate`) rows only move inside the cache."""
    cache = operands.of(call.arg(0, "cache"))
    return cache if call.in_place else iv.join(cache, operands.of(call.arg(1, "candidate")))


@rule("specc::take_pages")
def _take_pages(call: Call, operands: Operands) -> Value:
    """In place: the table holds numbers of pages."""
    pages = dim_size(call.arg(1, "page_owner"), 0)
    return EVERYTHING if pages is None else iv.up_to(pages)


@rule("specc::int_table")
def _int_table(call: Call, operands: Operands) -> Value:
    values = call.arg(1, "values")
    return iv.between(min(values), max(values)) if values else EVERYTHING


@rule("specc::stable_topk")
def _stable_topk(call: Call, operands: Operands) -> Value:
    count = dim_size(call.arg(0, "scores"), -1)
    return None, EVERYTHING if count is None else iv.up_to(count)


@rule("specc::score_rank", "specc::sample_index", "specc::vocabulary_argmax")
def _last_dim(call: Call, operands: Operands) -> Value:
    count = dim_size(call.arg(0, "scores", "weights", "x"), -1)
    return EVERYTHING if count is None else iv.up_to(count)


@rule("specc::pack_tree")
def _pack_tree(call: Call, operands: Operands) -> Value:
    """tokens, parent, valid, log_prob, source. A node's parent is -1 (the root) or a node before it; padding has 0."""
    candidates, nodes = dim_size(call.arg(0, "chosen"), 1), call.arg(5, "nodes")
    tokens = iv.join(iv.join(operands.of(call.arg(1, "token")), operands.of(call.arg(4, "root"))), exactly(0))
    # Member number c of the chosen has number c + 1; a child's number is larger than its parent's, so the parent of
    # the last node is at most number nodes - 2. What an ill-formed `chosen` could do is bounded by its size.
    parent = Interval(integer(-1), candidates if candidates is not None else integer(nodes))
    source = Interval(ZERO, candidates if candidates is not None else EVERYTHING.high)
    return tokens, parent, BOOL, None, source


@rule("specc::lookup_tree")
def _lookup_tree(call: Call, operands: Operands) -> Value:
    """tokens, parent, valid: tokens of the text, the root and padding with 0; a parent is a node before its child."""
    tokens = iv.join(iv.join(operands.of(call.arg(0, "history")), operands.of(call.arg(2, "root"))), exactly(0))
    return tokens, iv.between(-1, call.arg(3, "nodes")), BOOL


@rule("specc::greedy_tree", "specc::reject_tree")
def _walked_tree(call: Call, operands: Operands) -> Value:
    """path, count, current: nodes, and how many; the next token: of parts it is made of 32 bits, whatever they hold."""
    nodes = dim_size(call.arg(1 if call.name == "specc::greedy_tree" else 2, "tokens"), 1)
    if nodes is None:
        return EVERYTHING
    within = iv.up_to(nodes)
    if call.name == "specc::greedy_tree":
        return within, within, within, iv.between(-(2**31), 2**31 - 1)
    count = dim_size(call.arg(0, "law"), -1)
    return within, within, within, EVERYTHING if count is None else iv.up_to(count)


@rule("specc::topk_log_probs", "specc::draw_children", "specc::draw_embedded")
def _tokens_of_laws(call: Call, operands: Operands) -> Value:
    count = dim_size(call.arg(0, "logits"), -1)
    tokens = EVERYTHING if count is None else iv.up_to(count)
    if call.name == "specc::topk_log_probs":
        return None, tokens
    return (tokens, None, None, None) if call.name == "specc::draw_embedded" else (tokens, None, None)
