"""What the ones of a mask mean: readings are right by evaluation, mixtures and unknown sources are told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from specc.backends.ascend.contracts.context import Context, Facts
from specc.backends.ascend.contracts.polarity import Reading, read_mask
from specc.ir.ranges import analyse

ROWS, KEYS = 3, 6
Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of a tree bool [Q,KV], True where a key is seen, and lengths int64 [1]."""


@dataclass(frozen=True)
class Expression:
    """A mask, what its ones mean by construction, and how it is written."""

    make: Mask
    meaning: str
    text: str

    def flipped(self, make: Mask, how: str) -> Expression:
        return Expression(make, {"hidden": "visible", "visible": "hidden"}.get(self.meaning, self.meaning), how)


def columns() -> torch.Tensor:
    return torch.arange(KEYS)


def rows() -> torch.Tensor:
    return torch.arange(ROWS).unsqueeze(1)


ATOMS = (
    Expression(lambda tree, length: columns() <= rows(), "visible", "key <= query"),
    Expression(lambda tree, length: rows() >= columns(), "visible", "query >= key"),
    Expression(lambda tree, length: columns() > rows(), "hidden", "key > query"),
    Expression(lambda tree, length: (columns() < length).expand(ROWS, KEYS), "visible", "key < length"),
    Expression(lambda tree, length: (columns() >= length).expand(ROWS, KEYS), "hidden", "key >= length"),
    Expression(lambda tree, length: columns() > rows() - 2, "visible", "key > query - 2"),
    Expression(lambda tree, length: rows() - columns() >= 0, "visible", "query - key >= 0"),
    Expression(lambda tree, length: rows() - columns() < 0, "hidden", "query - key < 0"),
    Expression(lambda tree, length: (columns() - length < 0).expand(ROWS, KEYS), "visible", "key - length < 0"),
    Expression(lambda tree, length: rows() - columns() >= 2, "hidden", "query - key >= 2"),
    Expression(lambda tree, length: rows() - columns() < 2, "visible", "query - key < 2"),
    Expression(lambda tree, length: columns() - rows() > 0, "hidden", "key - query > 0"),
    Expression(lambda tree, length: torch.ones(ROWS, KEYS, dtype=torch.bool).tril(1), "visible", "tril"),
    Expression(lambda tree, length: torch.ones(ROWS, KEYS, dtype=torch.bool).triu(1), "hidden", "triu"),
    Expression(lambda tree, length: columns() - length <= rows(), "visible", "key - length <= query"),
    Expression(lambda tree, length: columns() + 3 <= rows() + 3, "visible", "key + 3 <= query + 3"),
    Expression(lambda tree, length: columns() == rows() + 1, "visible", "key == number"),
    Expression(lambda tree, length: tree, "visible", "tree"),
)


def negated(of: Expression, way: int) -> Expression:
    ways: list[Mask] = [
        lambda tree, length: torch.logical_not(of.make(tree, length)),
        lambda tree, length: ~of.make(tree, length).bool(),
        lambda tree, length: of.make(tree, length) == 0,
        lambda tree, length: 1 - of.make(tree, length).to(torch.int8),
        lambda tree, length: of.make(tree, length).bool() ^ True,
        lambda tree, length: torch.where(of.make(tree, length).bool(), 0, 1),
        lambda tree, length: torch.ones(ROWS, KEYS, dtype=torch.int8).masked_fill(of.make(tree, length).bool(), 0),
    ]
    return of.flipped(ways[way % len(ways)], f"not {of.text}")


def kept(of: Expression, way: int) -> Expression:
    ways: list[Mask] = [
        lambda tree, length: of.make(tree, length).to(torch.int8),
        lambda tree, length: of.make(tree, length).unsqueeze(0).expand(2, ROWS, KEYS)[1],
        lambda tree, length: of.make(tree, length).to(torch.uint8) != 0,
        lambda tree, length: torch.where(of.make(tree, length).bool(), 1, 0),
        lambda tree, length: torch.zeros(ROWS, KEYS, dtype=torch.int8) + of.make(tree, length).to(torch.int8),
        lambda tree, length: of.make(tree, length).reshape(1, ROWS, 1, KEYS).squeeze(2).squeeze(0),
    ]
    return Expression(ways[way % len(ways)], of.meaning, f"same {of.text}")


def small(mask: torch.Tensor) -> torch.Tensor:
    return mask.to(torch.int8)


def behind_a_length(of: Expression) -> Expression:
    """A mask for the keys from a length on only: those before it are another mask's."""

    def make(tree: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        return (columns() - length >= 0) & of.make(tree, length).bool()

    return Expression(make, "mixed" if of.meaning == "mixed" else of.meaning, f"behind {of.text}")


def both(one: Expression, two: Expression, way: int) -> Expression:
    ways: list[Mask] = [
        lambda tree, length: one.make(tree, length).bool() & two.make(tree, length).bool(),
        lambda tree, length: one.make(tree, length).bool() | two.make(tree, length).bool(),
        lambda tree, length: torch.maximum(small(one.make(tree, length)), small(two.make(tree, length))),
        lambda tree, length: small(one.make(tree, length)) * small(two.make(tree, length)),
        lambda tree, length: torch.cat(
            [one.make(tree, length).bool()[:, :2], two.make(tree, length).bool()[:, : KEYS - 2]], -1
        ),
    ]
    meaning = one.meaning if one.meaning == two.meaning else "mixed"
    meaning = "mixed" if "mixed" in (one.meaning, two.meaning) else meaning
    return Expression(ways[way % len(ways)], meaning, f"({one.text} . {two.text})")


EXPRESSIONS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.builds(negated, inner, st.integers(0, 6)),
        st.builds(kept, inner, st.integers(0, 5)),
        st.builds(behind_a_length, inner),
        st.builds(both, inner, inner, st.integers(0, 4)),
    ),
    max_leaves=4,
)


def reading(make: Mask, **facts: Any) -> Reading:
    """What the checker says of a mask that is traced with a tree whose ones are seen, and a length in [0, KEYS]."""
    graph = make_fx(make, tracing_mode="fake")(
        torch.zeros(ROWS, KEYS, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    )
    tree, length = (node for node in graph.graph.nodes if node.op == "placeholder")
    facts = {"masks": {tree.name: "visible"}} | facts
    context = Context("main", graph, analyse(graph, {length.name: (0, KEYS)}), Facts(**facts))
    return read_mask(graph.graph.output_node().args[0], context)


@given(expression=EXPRESSIONS)
@settings(max_examples=60, deadline=None)
def test_reading_is_what_the_mask_means(expression: Expression) -> None:
    assert reading(expression.make).known == expression.meaning


@given(expression=EXPRESSIONS, length=st.integers(0, KEYS), bits=st.integers(0, 2 ** (ROWS * KEYS) - 1))
@settings(max_examples=60, deadline=None)
def test_keys_that_a_reading_promises_are_seen(expression: Expression, length: int, bits: int) -> None:
    """For any tree and length: where a reading says that every row sees a key, no row is masked out as a whole."""
    found = reading(expression.make)
    tree = torch.tensor([bits >> place & 1 for place in range(ROWS * KEYS)], dtype=torch.bool).reshape(ROWS, KEYS)
    mask = expression.make(tree, torch.tensor([length])).bool()
    visible = mask if found.known == "visible" else ~mask
    if found.known in ("hidden", "visible") and found.seen:
        assert bool(visible.any(-1).all())
        assert "first" not in found.seen or bool(visible[:, 0].all())


@pytest.mark.parametrize("make", [
    lambda tree, length: torch.cumsum(tree, -1) > 1,  # a count
    lambda tree, length: length - columns() < 1,  # behind a length, or a window of one key
    lambda tree, length: columns() > length - 1,  # behind a length, or a window of one key
    lambda tree, length: torch.zeros(ROWS, KEYS, dtype=torch.int64) == length,  # no positions
    lambda tree, length: rows() > columns().unsqueeze(0).t()[:3],  # queries against queries
    lambda tree, length: ~tree.to(torch.int8),  # -2 and -1
    lambda tree, length: tree.to(torch.int8) - 1,
    lambda tree, length: torch.ones(ROWS, KEYS).tril(-1),  # not even its own key, or a mask of pairs
    lambda tree, length: torch.sort(tree.to(torch.int8), -1).values,
])  # fmt: skip
def test_what_no_rule_covers_is_unknown(make: Mask) -> None:
    found = reading(make)
    assert found.known == "unknown"
    assert found.at is not None


def test_input_without_a_declaration_is_unknown_and_named() -> None:
    found = reading(lambda tree, length: ~tree, masks={})
    assert found.known == "unknown"
    assert found.at is not None
    assert found.at.op == "placeholder"


def test_declaration_of_an_inner_node_wins() -> None:
    def padded_on_the_left(tree: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return (columns() >= start).expand(ROWS, KEYS)

    assert reading(padded_on_the_left).known == "hidden"  # a bound is taken as the end of what may be seen
    assert reading(padded_on_the_left, masks={"ge": "visible"}).known == "visible"


@pytest.mark.parametrize(("make", "bit"), [
    (lambda tree, length: torch.zeros(ROWS, KEYS), 0),
    (lambda tree, length: torch.ones(ROWS, KEYS), 1),
    (lambda tree, length: torch.full((ROWS, KEYS), 1), 1),
    (lambda tree, length: ~torch.zeros(ROWS, KEYS, dtype=torch.bool), 1),
])  # fmt: skip
def test_constant_masks_have_no_meaning_but_a_value(make: Mask, bit: int) -> None:
    found = reading(make)
    assert (found.known, found.bit) == ("constant", bit)
