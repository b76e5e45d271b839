"""Hypothesis strategies for draft trees, batches of them, and what surrounds them.

Every strategy shrinks towards small trees, early parents and small tokens, so that a counterexample is a
small tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from specc.testing.draft_tree import DraftTree, make_tree


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """B draft trees of N nodes each and their committed lengths, [B]."""

    trees: tuple[DraftTree, ...]
    prefix_lengths: tuple[int, ...]

    @property
    def tokens(self) -> list[list[int]]:
        """Tokens as nested lists, [B, N]."""
        return [list(tree.tokens) for tree in self.trees]

    @property
    def parent(self) -> list[list[int]]:
        """Parents as nested lists, [B, N]."""
        return [list(tree.parent) for tree in self.trees]

    @property
    def valid(self) -> list[list[bool]]:
        """Validity as nested lists, [B, N]."""
        return [list(tree.valid) for tree in self.trees]


def vocabularies(min_size: int = 4, max_size: int = 12) -> st.SearchStrategy[int]:
    """Vocabulary sizes: small, so that drafts collide with the target's choices and with each other."""
    return st.integers(min_size, max_size)


def prefix_lengths(max_length: int = 40) -> st.SearchStrategy[int]:
    """Committed lengths, the root not counted: 0 (a prompt of one token) to `max_length`."""
    return st.integers(0, max_length)


@st.composite
def parents(
    draw: st.DrawFn,
    min_nodes: int = 1,
    max_nodes: int = 16,
    max_depth: int | None = None,
    max_children: int | None = None,
) -> list[int]:
    """Parent lists of valid nodes: topologically ordered, -1 for node 0 and for it alone.

    `max_depth` bounds levels below the root, `max_children` the children of one node. A tree that has no
    room left for another node is returned short, but never below one node.
    """
    size = draw(st.integers(min_nodes, max_nodes))
    parent, depths, fan_out = [-1], [0], [0]
    for node in range(1, size):
        open_nodes = [
            i
            for i in range(node)
            if (max_depth is None or depths[i] < max_depth) and (max_children is None or fan_out[i] < max_children)
        ]
        if not open_nodes:
            break
        chosen = draw(st.sampled_from(open_nodes))
        parent.append(chosen)
        depths.append(depths[chosen] + 1)
        fan_out[chosen] += 1
        fan_out.append(0)
    return parent


def chain_parents(num_nodes: int) -> list[int]:
    """Return the parents of a chain: -1, 0, 1, …"""
    return list(range(-1, num_nodes - 1))


def star_parents(num_nodes: int) -> list[int]:
    """Return the parents of a depth-1 tree: -1, 0, 0, …"""
    return [-1] + [0] * (num_nodes - 1)


@st.composite
def node_tokens(draw: st.DrawFn, parent: Sequence[int], vocab_size: int) -> list[int]:
    """Tokens in [0, vocab_size) for these parents, different among siblings.

    Raises ValueError when a node has more children than there are tokens.
    """
    if max((list(parent).count(p) for p in set(parent)), default=0) > vocab_size:
        raise ValueError(f"a node has more children than the {vocab_size} tokens of the vocabulary")
    tokens: list[int] = []
    taken: dict[int, set[int]] = {}
    for p in parent:
        used = taken.setdefault(p, set())
        token = draw(st.sampled_from([t for t in range(vocab_size) if t not in used]))
        used.add(token)
        tokens.append(token)
    return tokens


@st.composite
def draft_trees(
    draw: st.DrawFn,
    num_nodes: int | None = None,
    max_nodes: int = 16,
    vocab_size: int = 8,
    max_depth: int | None = None,
    max_children: int | None = None,
    padding: bool = True,
) -> DraftTree:
    """Draft trees: general ones, chains, stars, the lone root, with padding nodes last.

    `num_nodes` fixes N (else it is drawn up to `max_nodes`); with `padding` False every node is valid
    unless the depth and width bounds leave no room.
    """
    size = num_nodes if num_nodes is not None else draw(st.integers(1, max_nodes))
    width = min(max_children if max_children is not None else vocab_size, vocab_size)
    least = 1 if padding else size
    shape = draw(st.sampled_from(("general", "chain", "star")))
    if shape == "general":
        parent = draw(parents(least, size, max_depth, width))
    else:
        count = draw(st.integers(least, size))
        limit = max_depth if shape == "chain" else width
        count = count if limit is None else min(count, limit + 1)
        parent = chain_parents(count) if shape == "chain" else star_parents(count)
        if shape == "star" and max_depth == 0:
            parent = [-1]
    return make_tree(draw(node_tokens(parent, vocab_size)), parent, size)


def chain_trees(num_nodes: int, vocab_size: int = 8) -> st.SearchStrategy[DraftTree]:
    """Chains of exactly `num_nodes` valid nodes."""
    parent = chain_parents(num_nodes)
    return node_tokens(parent, vocab_size).map(lambda tokens: make_tree(tokens, parent))


def star_trees(num_nodes: int, vocab_size: int = 8) -> st.SearchStrategy[DraftTree]:
    """Depth-1 trees of exactly `num_nodes` valid nodes."""
    parent = star_parents(num_nodes)
    return node_tokens(parent, vocab_size).map(lambda tokens: make_tree(tokens, parent))


@st.composite
def choices(draw: st.DrawFn, max_choices: int = 15, max_depth: int = 4, top_k: int = 4) -> list[list[int]]:
    """Static `choices`: rank paths, prefix-closed, no duplicates, sorted by (length, ranks).

    A path [.., r] may come without its elder siblings [.., r - 1] (legal, and a known source of bugs).
    """
    target = draw(st.integers(1, max_choices))
    paths: set[tuple[int, ...]] = set()
    for _ in range(target):
        above = draw(st.sampled_from(sorted(p for p in paths | {()} if len(p) < max_depth)))
        paths.add((*above, draw(st.integers(0, top_k - 1))))
    return [list(path) for path in sorted(paths, key=lambda path: (len(path), path))]


@st.composite
def draft_batches(
    draw: st.DrawFn,
    max_batch: int = 3,
    max_nodes: int = 12,
    vocab_size: int = 8,
    max_depth: int | None = None,
    max_children: int | None = None,
    max_prefix: int = 20,
) -> DraftBatch:
    """Batches of trees of one N with ragged numbers of valid nodes and ragged committed lengths."""
    rows = draw(st.integers(1, max_batch))
    size = draw(st.integers(1, max_nodes))
    one = draft_trees(num_nodes=size, vocab_size=vocab_size, max_depth=max_depth, max_children=max_children)
    return DraftBatch(
        trees=tuple(draw(one) for _ in range(rows)),
        prefix_lengths=tuple(draw(prefix_lengths(max_prefix)) for _ in range(rows)),
    )
