"""Reference answers for trees, acceptance and commit, in plain Python.

Deliberately independent: lists and loops over one row, no tensors, no code shared with the compiler. Slow
and obvious on purpose. Rules are those of design 00 ("Conventions") and 03.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from specc.testing.draft_tree import DraftTree

Row = TypeVar("Row")


def path_to(tree: DraftTree, node: int) -> list[int]:
    """Return the nodes from the root to `node`, both included. A padding node's path is itself alone."""
    if not tree.valid[node]:
        return [node]
    path = [node]
    while path[0] != 0:
        path.insert(0, tree.parent[path[0]])
    return path


def depth(tree: DraftTree) -> list[int]:
    """Return each node's number of proper ancestors: 0 for the root and for padding."""
    return [len(path_to(tree, node)) - 1 for node in range(tree.num_nodes)]


def ancestors(tree: DraftTree, node: int) -> set[int]:
    """Return `node` and its ancestors (padding: itself only)."""
    return set(path_to(tree, node))


def ancestor_mask(tree: DraftTree) -> list[list[bool]]:
    """Return mask[i][j], True where node i sees node j: ancestors and self, [N, N]."""
    rows = [ancestors(tree, node) for node in range(tree.num_nodes)]
    return [[j in row for j in range(tree.num_nodes)] for row in rows]


def packed_mask(tree: DraftTree) -> list[int]:
    """Return the mask with one integer per row: bit j of row i is mask[i][j]."""
    return [sum(1 << j for j in ancestors(tree, node)) for node in range(tree.num_nodes)]


def positions(tree: DraftTree, prefix_length: int) -> list[int]:
    """Return prefix_length + depth for each node."""
    return [prefix_length + d for d in depth(tree)]


def first_child(tree: DraftTree) -> list[int]:
    """Return each node's first valid child, -1 where there is none."""
    return [min(tree.children(node), default=-1) for node in range(tree.num_nodes)]


def next_sibling(tree: DraftTree) -> list[int]:
    """Return each node's next valid sibling, -1 where there is none (the root and padding have none)."""
    answer = []
    for node in range(tree.num_nodes):
        is_child = node > 0 and tree.valid[node]
        later = [i for i in tree.children(tree.parent[node]) if i > node] if is_child else []
        answer.append(min(later, default=-1))
    return answer


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What one step accepts in one row.

    `path` has num_steps + 1 entries: path[0] = 0, the accepted nodes, then 0. `accept_length` counts the
    accepted drafted nodes. `bonus` is emitted after them. `stopped`: a stop token or the token limit ended
    generation.
    """

    path: tuple[int, ...]
    accept_length: int
    bonus: int
    stopped: bool

    def emitted(self, tree: DraftTree) -> list[int]:
        """Return the tokens that this step adds to the text: accepted drafts, then the bonus."""
        return [tree.tokens[i] for i in self.path[1 : self.accept_length + 1]] + [self.bonus]


def finish(
    tree: DraftTree,
    nodes: Sequence[int],
    bonus: int,
    num_steps: int,
    stop_tokens: Collection[int] = (),
    tokens_left: int | None = None,
) -> Acceptance:
    """Apply stop tokens and the token limit to a walk (`nodes`: the accepted drafted nodes in order).

    If emitted token j (1-based) is a stop token, or is the last one allowed, then accept_length := j - 1
    and the bonus is that token: nothing after it is emitted or committed. `tokens_left` is at least 1, None
    for no limit.
    """
    tokens = [tree.tokens[i] for i in nodes] + [bonus]
    for j, token in enumerate(tokens, start=1):
        if token in stop_tokens or j == tokens_left:
            return Acceptance(_padded(nodes[: j - 1], num_steps), j - 1, token, True)
    return Acceptance(_padded(nodes, num_steps), len(nodes), bonus, False)


def _padded(nodes: Sequence[int], num_steps: int) -> tuple[int, ...]:
    if len(nodes) > num_steps:
        raise ValueError(f"a path of {len(nodes)} accepted nodes is longer than num_steps = {num_steps}")
    return (0, *nodes, *[0] * (num_steps - len(nodes)))


def greedy_accept(
    tree: DraftTree,
    target_argmax: Sequence[int],
    num_steps: int,
    stop_tokens: Collection[int] = (),
    tokens_left: int | None = None,
) -> Acceptance:
    """Walk from the root to the child whose token is the target's argmax there, until there is none.

    `target_argmax[i]` is the target's next token after node i, [N]. Children are tried in index order. The
    bonus is the argmax at the last node reached.
    """
    node = 0
    nodes: list[int] = []
    while True:
        matches = [child for child in tree.children(node) if tree.tokens[child] == target_argmax[node]]
        if not matches:
            return finish(tree, nodes, target_argmax[node], num_steps, stop_tokens, tokens_left)
        node = matches[0]
        nodes.append(node)


def typical_threshold(probabilities: Sequence[float], epsilon: float, alpha: float) -> float:
    """Return min(epsilon, alpha * exp(-H(p))), H in nats (Medusa, "typical acceptance")."""
    entropy = -sum(p * math.log(p) for p in probabilities if p > 0.0)
    return min(epsilon, alpha * math.exp(-entropy))


def typical_walk(tree: DraftTree, probabilities: Sequence[Sequence[float]], epsilon: float, alpha: float) -> list[int]:
    """Return the accepted drafted nodes of typical acceptance.

    At each node the first child in index order whose probability under the target there exceeds the
    threshold is taken. `probabilities[i]` is the target's distribution after node i, [N, V].
    """
    node = 0
    nodes: list[int] = []
    while True:
        bar = typical_threshold(probabilities[node], epsilon, alpha)
        likely = [child for child in tree.children(node) if probabilities[node][tree.tokens[child]] > bar]
        if not likely:
            return nodes
        node = likely[0]
        nodes.append(node)


def commit_gather(committed: Sequence[Row], candidates: Sequence[Row], accepted: Acceptance) -> list[Row]:
    """Return the committed rows after a step: the rows so far, then those of the root and the accepted
    nodes."""
    return list(committed) + [candidates[i] for i in accepted.path[: accepted.accept_length + 1]]


def compact_rows(rows: Sequence[Row], length: int, accepted: Acceptance, order: str = "ascending") -> list[Row]:
    """Return the rows after an in-place copy, row by row, of candidate path[k] to place k.

    `rows` holds `length` committed rows, then the N candidates. Only "ascending" is right; "descending"
    overwrites rows that are still needed, and is here so that tests can tell the two apart.
    """
    if order not in ("ascending", "descending"):
        raise ValueError(f"order is ascending or descending, not {order!r}")
    copied = list(rows)
    places = range(accepted.accept_length + 1)
    for k in places if order == "ascending" else reversed(places):
        copied[length + k] = copied[length + accepted.path[k]]
    return copied


def overlaps(accepted: Acceptance) -> bool:
    """Whether some row is both read and written by the compaction, at different steps of it (order
    matters)."""
    pairs = [(k, accepted.path[k]) for k in range(accepted.accept_length + 1) if accepted.path[k] != k]
    return bool({k for k, _ in pairs} & {source for _, source in pairs})


def in_place_already(accepted: Acceptance) -> bool:
    """Whether the accepted path is 0, 1, …, accept_length, so that a fast reorder has nothing to move."""
    return list(accepted.path[: accepted.accept_length + 1]) == list(range(accepted.accept_length + 1))


def acceptance_length(accepted: Sequence[int]) -> float:
    """Return tau = mean(accept_length) + 1 over live steps (design 00: the bonus counts)."""
    return sum(accepted) / len(accepted) + 1
