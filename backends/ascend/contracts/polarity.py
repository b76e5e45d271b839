"""What the ones of a mask mean, proved on the data flow: 1 hides a key (what NPU attention wants), or shows it.

A reading goes backwards from the mask. Sources are comparisons of key positions (an arange along the last dim) with a
query's position or a length, tril and triu of ones, our own mask ops, constants of the module, and nodes whose meaning
the caller declares. Negations swap the meaning, casts and views keep it, and the connectives need both sides to mean
the same. What a rule does not cover is unknown, and then the contract asks for a declaration: nothing is guessed.

Beside the meaning a reading proves which keys every query row sees (`seen`), because a row that sees none needs another
mode of the attention op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch.fx import Node

from specc.backends.ascend.contracts.context import Context, input_names, words
from specc.backends.ascend.contracts.positions import compared, counts_keys, is_causal, is_own_place
from specc.backends.ascend.contracts.seen import (
    ALL,
    BEHIND,
    DIAGONAL,
    FIRST,
    NOTHING,
    Seen,
    in_both,
    in_either,
    somewhere,
)
from specc.ir.ranges.calls import Call, call_of, dtype_of, shape_of, value
from specc.ir.ranges.interval import BOOL

Known = Literal["hidden", "visible", "constant", "mixed", "unknown"]
ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Reading:
    """`bit` is the value of a constant, `at` where an unknown or mixed reading comes from, `region` as in positions."""

    known: Known
    seen: Seen = NOTHING
    bit: int = 0
    at: Node | None = None
    region: bool = False


OURS: Mapping[str, Reading] = {
    "specc::ancestor_mask": Reading("visible", DIAGONAL),
    "specc::attention_mask": Reading("hidden", BEHIND),
}
"""Our own mask ops, by what their docstrings say; both give every row, padding too, its own key."""

_KEEP_ROWS = words(
    "unsqueeze squeeze view reshape expand expand_as repeat to contiguous clone detach alias lift_fresh_copy bool "
    "char byte long int type flatten unflatten broadcast_to view_as convert_element_type positive"
)
_KEEP = words("gather index_select index slice select narrow permute transpose t take_along_dim getitem")
_TRUE_WHEN_SET = {("ne", 0), ("gt", 0), ("ge", 1), ("eq", 1)}
_TRUE_WHEN_CLEAR = {("eq", 0), ("lt", 1), ("le", 0), ("ne", 1)}


def read_mask(mask: Any, ctx: Context) -> Reading:
    """The reading of a mask operand."""
    return _Reader(ctx).read(mask)


def inverted(reading: Reading) -> Reading:
    """The reading of the mask's negation: the same keys are seen."""
    if reading.known == "constant":
        return replace(reading, bit=1 - reading.bit)
    swapped: Mapping[Known, Known] = {"hidden": "visible", "visible": "hidden"}
    return replace(reading, known=swapped.get(reading.known, reading.known), region=False)


def _seen(reading: Reading, meaning: Known) -> Seen:
    """The keys that every row sees, with a constant read as `meaning`."""
    if reading.known != "constant":
        return reading.seen
    return ALL if (meaning == "visible") == bool(reading.bit) else NOTHING


def joined(left: Reading, right: Reading, node: Node, seen: Callable[[Seen, Seen], Seen]) -> Reading:
    """Both sides in one mask: their common meaning, or a mixture. `seen` combines what the two sides show."""
    for side in (left, right):
        if side.known in ("unknown", "mixed"):
            return side
    meanings = {side.known for side in (left, right)} - {"constant"}
    if len(meanings) == 2:
        return Reading("mixed", at=node)
    if not meanings:
        return left if left.bit == right.bit else Reading("unknown", at=node)
    meaning = meanings.pop()
    return Reading(meaning, seen(_seen(left, meaning), _seen(right, meaning)))


def _both(left: Reading, right: Reading, node: Node, *, either: bool) -> Reading:
    """Elementwise `or` (`either`) or `and` of the bits."""
    if left.known == right.known == "constant":
        return replace(left, bit=left.bit | right.bit if either else left.bit & right.bit)
    regions = [side for side in (left, right) if side.region]
    others = [side for side in (left, right) if side.known == "visible"]
    if not either and regions and others:
        return Reading("visible")  # another mask, for the keys behind a length only
    meaning = left.known if left.known != "constant" else right.known
    union = either == (meaning == "visible")
    return joined(left, right, node, in_either if union else in_both)


@dataclass(slots=True)
class _Reader:
    ctx: Context
    depth: int = 0
    assumed: dict[Node, Reading] = field(default_factory=dict)

    def read(self, item: Any) -> Reading:
        """Backwards from an operand: a node, or a number."""
        if isinstance(item, (bool, int)) and int(item) in (0, 1):
            return Reading("constant", bit=int(item))
        if not isinstance(item, Node) or self.depth > 64:
            return Reading("unknown", at=item if isinstance(item, Node) else None)
        self.depth += 1
        try:
            return self._node(item)
        finally:
            self.depth -= 1

    def _node(self, node: Node) -> Reading:
        declared = next(
            (self.ctx.facts.masks[name] for name in input_names(node) if name in self.ctx.facts.masks), None
        )
        if declared is not None:
            return Reading(declared)
        if node.op == "placeholder":
            return self._input(node)
        if node.op == "get_attr":
            return self._attribute(node)
        call = call_of(node)
        if call is None or call.in_place:
            return Reading("unknown", at=node)
        if call.name in OURS:
            return OURS[call.name]
        rule = RULES.get(call.name)
        if rule is not None:
            return rule(self, call)
        if call.name in _KEEP_ROWS:
            return self.read(call.first)
        if call.name in _KEEP:
            return self._part(call)
        return Reading("unknown", at=node)

    def _input(self, node: Node) -> Reading:
        if node in self.assumed:
            return self.assumed[node]
        if node in self.ctx.carried:
            return self._carried(node)
        outer = self.ctx.outer(node)
        return self.read(outer) if outer is not node else Reading("unknown", at=node)

    def _carried(self, node: Node) -> Reading:
        """By induction: what holds of the start and, where it holds before a round, after the round too."""
        start, after = self.ctx.carried[node]
        held = self.read(start)
        for _ in range(ROUNDS):
            self.assumed[node] = held
            found = joined(held, self.read(after), node, in_both)
            if found == held:
                return held
            held = found
        return Reading("unknown", at=node)

    def _attribute(self, node: Node) -> Reading:
        held: Any = node.graph.owning_module
        for name in str(node.target).split("."):
            held = getattr(held, name, None)
        return _constant_mask(held, node)

    def _part(self, call: Call) -> Reading:
        """A selection of rows keeps what they see; one of keys may not."""
        reading = self.read(call.first)
        shape, before = shape_of(call.node), shape_of(call.first)
        same_keys = bool(shape and before) and shape is not None and before is not None and shape[-1] == before[-1]
        whole = same_keys and call.name in ("slice", "narrow")
        return reading if whole or reading.known == "constant" else replace(reading, seen=NOTHING)


def _constant_mask(held: Any, node: Node) -> Reading:
    """A tensor of the module: triangular, all zeros or all ones."""
    if not isinstance(held, torch.Tensor) or held.dim() < 2 or held.is_meta:
        return Reading("unknown", at=node)
    bits = (held != 0).reshape(-1, *held.shape[-2:])[0]
    if not bool((held != 0).eq(bits).all()):
        return Reading("unknown", at=node)
    if bool(bits.all()) or not bool(bits.any()):
        return Reading("constant", bit=int(bool(bits.all())))
    square = torch.ones_like(bits)
    if torch.equal(bits, square.tril()):
        return Reading("visible", FIRST | DIAGONAL)
    return Reading("hidden", FIRST | DIAGONAL) if torch.equal(bits, square.triu(1)) else Reading("unknown", at=node)


Rule = Callable[[_Reader, Call], Reading]
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


@_rule("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones")
def _filled(reader: _Reader, call: Call) -> Reading:
    return Reading("constant", bit=int("ones" in call.name))


@_rule("full", "full_like", "new_full", "scalar_tensor", "fill")
def _full(reader: _Reader, call: Call) -> Reading:
    return reader.read(reader.ctx.ranges.of(call.node).constant) if value(call.node) is not None else Reading("unknown")


@_rule("specc::full_rows")
def _full_rows(reader: _Reader, call: Call) -> Reading:
    return reader.read(call.arg(2, "value"))


@_rule("specc::int_table")
def _table(reader: _Reader, call: Call) -> Reading:
    """A tree that the spec fixes: which nodes of a level see which. Both readings fit some tables of one row only."""
    values, shape = call.arg(1, "values"), call.arg(2, "shape")
    if len(shape) != 2 or not set(values) <= {0, 1}:
        return Reading("unknown", at=call.node)
    rows = [values[at : at + shape[1]] for at in range(0, len(values), shape[1])]
    shows, hides = is_causal(rows, 1), is_causal(rows, 0)
    if shows and (reader.ctx.is_program or not hides):
        return Reading("visible", somewhere(call.node, ALL))
    return Reading("hidden", somewhere(call.node, ALL)) if hides else Reading("unknown", at=call.node)


@_rule("logical_not", "bitwise_not")
def _not(reader: _Reader, call: Call) -> Reading:
    if call.name == "bitwise_not" and dtype_of(call.node) not in (torch.bool, None):
        return Reading("unknown", at=call.node)  # ~1 is -2
    return inverted(reader.read(call.first))


@_rule("logical_or", "bitwise_or", "__or__", "maximum", "logical_and", "bitwise_and", "__and__", "minimum", "mul")
def _connective(reader: _Reader, call: Call) -> Reading:
    left, right = reader.read(call.first), reader.read(call.arg(1, "other"))
    return _both(left, right, call.node, either="or" in call.name or call.name == "maximum")


@_rule("add")
def _add(reader: _Reader, call: Call) -> Reading:
    """0 + m; the sum of two bits is set where either is."""
    left, right = reader.read(call.first), reader.read(call.arg(1, "other"))
    return _both(left, right, call.node, either=True)


@_rule("logical_xor", "bitwise_xor", "__xor__", "sub", "rsub")
def _difference(reader: _Reader, call: Call) -> Reading:
    """1 - m and m ^ 1 negate; m ^ 0 and m - 0 don't."""
    left, right = reader.read(call.first), reader.read(call.arg(1, "other"))
    if call.name == "rsub":
        left, right = right, left
    if left.known == "constant" and right.known != "constant":
        if left.bit:
            return inverted(right)
        return right if "xor" in call.name else Reading("unknown", at=call.node)
    if right.known == "constant":
        if not right.bit:
            return left
        return inverted(left) if "xor" in call.name else Reading("unknown", at=call.node)
    return Reading("unknown", at=call.node)


@_rule("eq", "ne", "lt", "le", "gt", "ge")
def _compare(reader: _Reader, call: Call) -> Reading:
    """A test of bits (m == 0), or a comparison of key positions."""
    other = call.arg(1, "other")
    ranges = reader.ctx.ranges
    constant = ranges.of(other).constant if isinstance(other, (int, bool, Node)) else None
    if constant in (0, 1):
        tested = reader.read(call.first)
        if tested.known in ("hidden", "visible", "mixed") or ranges.of(call.first).within(BOOL):
            if (call.name, constant) in _TRUE_WHEN_SET:
                return tested
            if (call.name, constant) in _TRUE_WHEN_CLEAR:
                return inverted(tested)
    if call.name == "eq" and is_own_place(call, reader.ctx):
        return Reading("visible")
    found = compared(call, reader.ctx)
    if found is None:
        return Reading("unknown", at=call.node)
    return Reading(found.meaning, FIRST if found.first else NOTHING, region=found.region)


@_rule("tril", "triu")
def _triangle(reader: _Reader, call: Call) -> Reading:
    base, diagonal = reader.read(call.first), call.arg(1, "diagonal", default=0)
    if base.known == "constant" and base.bit == 1 and isinstance(diagonal, int):
        if call.name == "tril" and diagonal >= 0:
            return Reading("visible", FIRST | DIAGONAL)
        if call.name == "triu" and diagonal >= 1:
            return Reading("hidden", FIRST | DIAGONAL)
    return Reading("unknown", at=call.node)


@_rule("where")
def _where(reader: _Reader, call: Call) -> Reading:
    """where(c, x, y) = (c and x) or (not c and y), on bits."""
    chosen = reader.read(call.arg(0, "condition"))
    yes, no = reader.read(call.arg(1, "self", "input")), reader.read(call.arg(2, "other"))
    if yes.known == no.known == "constant" and yes.bit != no.bit:
        return chosen if yes.bit else inverted(chosen)
    if yes.known == "constant":
        return (
            _both(chosen, no, call.node, either=True)
            if yes.bit
            else _both(inverted(chosen), no, call.node, either=False)
        )
    if no.known == "constant":
        negated = inverted(chosen)
        return _both(negated, yes, call.node, either=True) if no.bit else _both(chosen, yes, call.node, either=False)
    return joined(yes, no, call.node, in_both)


@_rule("masked_fill")
def _masked_fill(reader: _Reader, call: Call) -> Reading:
    held, where, fill = reader.read(call.first), reader.read(call.arg(1, "mask")), reader.read(call.arg(2, "value"))
    if fill.known != "constant":
        return Reading("unknown", at=call.node)
    if held.known == "constant" and held.bit != fill.bit:
        return where if fill.bit else inverted(where)
    return _both(held, where if fill.bit else inverted(where), call.node, either=bool(fill.bit))


@_rule("cat", "stack")
def _cat(reader: _Reader, call: Call) -> Reading:
    """Along the keys a row sees what it sees of any part; along other dims what all parts show."""
    parts = [reader.read(part) for part in call.arg(0, "tensors") or ()]
    if not parts:
        return Reading("unknown", at=call.node)
    dim, shape = call.arg(1, "dim", default=0), shape_of(call.node) or ()
    keys = call.name == "cat" and dim in (-1, len(shape) - 1)

    def along_keys(before: Seen, after: Seen) -> Seen:
        return (FIRST if before == ALL else before & FIRST) | somewhere(call.node, before, after)

    result = parts[0]
    for part in parts[1:]:
        result = joined(result, part, call.node, along_keys if keys else in_both)
    return result


@_rule("scatter", "slice_scatter", "select_scatter")
def _written(reader: _Reader, call: Call) -> Reading:
    """Places of a mask are overwritten: a row still sees its own key where the written part shows it."""
    names = ("src", "value") if call.name == "scatter" else ("src",)
    source = call.arg(3 if call.name == "scatter" else 1, *names)
    whole = call.name != "scatter" or _in_columns(call, source, reader.ctx)

    def seen(_: Seen, after: Seen) -> Seen:
        return somewhere(call.node, after) if whole else NOTHING

    return joined(reader.read(call.first), reader.read(source), call.node, seen)


def _in_columns(call: Call, source: Any, ctx: Context) -> bool:
    """Every key of `source` goes to a column of its own, in its row."""
    index, shape = call.arg(2, "index"), shape_of(call.node) or ()
    last = call.arg(1, "dim") in (-1, len(shape) - 1)
    return last and counts_keys(index, ctx) and shape_of(index) == shape_of(source)


@_rule("constant_pad_nd")
def _pad(reader: _Reader, call: Call) -> Reading:
    fill = call.kwargs.get("value", call.args[2] if len(call.args) > 2 else 0)
    held, padding = reader.read(call.first), reader.read(int(fill) if isinstance(fill, (int, float)) else fill)
    return joined(held, padding, call.node, lambda before, _: somewhere(call.node, before))
