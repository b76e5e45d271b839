"""Drafts of a given quality: trees of one shape around a known text, right with a given probability per token.

The law of a draft, with one number p: of the children of a node on the text's path the first is right with
probability p; each further one is right with probability p where its elder siblings are wrong. So p is the chance that
a drafted token is right, for a chain per depth; a node with k children goes on with probability 1 - (1 - p)^k. p = 1 is
the oracle: the first path is the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from specc.testing.draft_tree import DraftTree, make_tree


def children_of(parent: Sequence[int]) -> list[list[int]]:
    """The children of every node of a tree, elder first. `parent[0]` is -1, others are lower nodes."""
    found: list[list[int]] = [[] for _ in parent]
    for node, above in enumerate(parent):
        if node:
            found[above].append(node)
    return found


def depth_of(parent: Sequence[int]) -> int:
    """Drafted nodes on the longest path."""
    level = [0] * len(parent)
    for node, above in enumerate(parent):
        if node:
            level[node] = level[above] + 1
    return max(level)


def expected_acceptance_length(parent: Sequence[int], p: float) -> float:
    """The mean of accepted tokens and the bonus under the law of this module."""
    accepted = [0.0] * len(parent)
    children = children_of(parent)
    for node in reversed(range(len(parent))):
        accepted[node] = sum(p * (1 - p) ** rank * (1 + accepted[below]) for rank, below in enumerate(children[node]))
    return 1 + accepted[0]


def right_path(parent: Sequence[int], longest: int, p: float, rng: Random) -> list[int]:
    """The drafted nodes that are to be right, from below the root on, at most `longest`: drawn by the law."""
    children, path, node = children_of(parent), list[int](), 0
    while len(path) < longest:
        chosen = next((below for below in children[node] if rng.random() < p), None)
        if chosen is None:
            break
        path.append(chosen)
        node = chosen
    return path


def planted(parent: Sequence[int], text: Sequence[int], vocabulary: int, p: float, rng: Random) -> DraftTree:
    """A draft of this shape: `text` is the root token and what plain decoding goes on with.

    Nodes off the right path get drawn tokens; siblings differ, and no wrong node below the right path has the text's
    token. Raises ValueError if the vocabulary is too small for that.
    """
    right = {node: text[level + 1] for level, node in enumerate(right_path(parent, len(text) - 1, p, rng))}
    tokens = [text[0], *(right.get(node, -1) for node in range(1, len(parent)))]
    spine = [0, *right]
    for node, below in enumerate(children_of(parent)):
        level = spine.index(node) if node in spine else -1
        taken = {tokens[child] for child in below if tokens[child] >= 0}
        if 0 <= level < len(text) - 1:
            taken.add(text[level + 1])
        if len(taken) + len(below) > vocabulary:
            raise ValueError(f"{len(below)} siblings need more than {vocabulary} tokens")
        for child in below:
            if tokens[child] < 0:
                tokens[child] = _other(taken, vocabulary, rng)
                taken.add(tokens[child])
    return make_tree(tokens, parent)


def _other(taken: set[int], vocabulary: int, rng: Random) -> int:
    while (token := rng.randrange(vocabulary)) in taken:
        pass
    return token


def break_even(points: Sequence[tuple[float, float]]) -> float | None:
    """The smallest p from which the speed-up stays at least 1, between measured points (p, speed-up) on a line.

    None: it does not at the largest p. The smallest p itself if it does everywhere.
    """
    ordered = sorted(points)
    if not ordered or ordered[-1][1] < 1:
        return None
    for (p, gain), (q, more) in reversed(list(pairwise(ordered))):
        if gain < 1 <= more:
            return p + (q - p) * (1 - gain) / (more - gain)
    return ordered[0][0]
