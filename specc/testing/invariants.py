"""The integer invariants as checks on plain lists, for one row at a time.

Each check takes what a program computed and raises `InvariantViolation` with the offending node, the tree
drawn as text and the invariant's statement. The invariants that need a model to be run are in `specc
check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from specc.invariants import INVARIANT_NAMES, INVARIANTS, Applies, Equality, Invariant, applicable, invariant
from specc.testing import oracles
from specc.testing.draft_tree import PADDING_PARENT, PADDING_TOKEN, DraftTree, render_tree

__all__ = [
    "CHECKS",
    "INVARIANTS",
    "INVARIANT_NAMES",
    "Applies",
    "Equality",
    "Invariant",
    "InvariantViolation",
    "applicable",
    "check_ancestor_closed",
    "check_blocks",
    "check_commit",
    "check_distinct_siblings",
    "check_indices",
    "check_length",
    "check_mask",
    "check_padding",
    "check_parent",
    "check_path",
    "check_positions",
    "check_superset",
    "check_vocabulary_map",
    "invariant",
]


class InvariantViolation(AssertionError):
    """An invariant does not hold. `id` is "I1" to "I28"; `tree` is the tree that shows it, if there is
    one."""

    def __init__(self, id: str, message: str, tree: DraftTree | None = None, path: Sequence[int] = ()) -> None:
        entry = invariant(id)
        self.id, self.message, self.tree = entry.id, message, tree
        drawing = "" if tree is None else "\n" + render_tree(tree, path)
        super().__init__(f"{entry.id} {entry.name}: {message}\n  ({entry.statement}){drawing}")


def check_parent(tree: DraftTree) -> None:
    """I1: node 0 alone is the root, and parent[i] < i for every drafted node."""
    if not tree.parent or not (len(tree.tokens) == len(tree.parent) == len(tree.valid)):
        sizes = (len(tree.tokens), len(tree.parent), len(tree.valid))
        raise InvariantViolation("I1", f"tokens, parent, valid have lengths {sizes}", tree)
    if tree.parent[0] != -1 or not tree.valid[0]:
        raise InvariantViolation("I1", f"node 0 has parent {tree.parent[0]}, valid {tree.valid[0]}", tree)
    for node in range(1, tree.num_nodes):
        if tree.valid[node] and not 0 <= tree.parent[node] < node:
            raise InvariantViolation("I1", f"node {node} has parent {tree.parent[node]}", tree)


def check_padding(tree: DraftTree) -> None:
    """I14, its static part: padding nodes come last, with token 0, parent 0; no valid node hangs below
    one."""
    for node in range(1, tree.num_nodes):
        if tree.valid[node]:
            if not tree.valid[node - 1]:
                raise InvariantViolation("I14", f"valid node {node} follows a padding node", tree)
            if not tree.valid[tree.parent[node]]:
                raise InvariantViolation("I14", f"node {node} hangs below a padding node", tree)
        elif (tree.tokens[node], tree.parent[node]) != (PADDING_TOKEN, PADDING_PARENT):
            got = f"token {tree.tokens[node]}, parent {tree.parent[node]}"
            raise InvariantViolation("I14", f"padding node {node} has {got}", tree)


def check_ancestor_closed(parent: Sequence[int], kept: Iterable[int]) -> None:
    """I2: with a kept candidate its parent is kept. `parent` is in candidate indices, -1 for children of
    the root."""
    chosen = set(kept)
    for node in sorted(chosen):
        if parent[node] >= 0 and parent[node] not in chosen:
            raise InvariantViolation("I2", f"candidate {node} is kept without its parent {parent[node]}")


def check_mask(tree: DraftTree, mask: Sequence[Sequence[bool]]) -> None:
    """I3: each row of the [N, N] mask is the node's ancestors and itself."""
    if len(mask) != tree.num_nodes or any(len(row) != tree.num_nodes for row in mask):
        raise InvariantViolation("I3", f"the mask is not {tree.num_nodes} x {tree.num_nodes}", tree)
    for node, row in enumerate(mask):
        expected = oracles.ancestors(tree, node)
        seen = {j for j, bit in enumerate(row) if bit}
        if seen != expected:
            text = f"node {node} sees {sorted(seen)}, its path is {sorted(expected)}"
            raise InvariantViolation("I3", text, tree, oracles.path_to(tree, node))


def check_positions(tree: DraftTree, positions: Sequence[int], prefix_length: int) -> None:
    """I4: position = prefix length + depth for every valid node (padding is exempt)."""
    expected = oracles.positions(tree, prefix_length)
    for node in range(tree.num_nodes):
        if tree.valid[node] and positions[node] != expected[node]:
            text = f"node {node} is at position {positions[node]}, not {expected[node]}"
            raise InvariantViolation("I4", text, tree, oracles.path_to(tree, node))


def check_distinct_siblings(tree: DraftTree) -> None:
    """I5: the children of one node have different tokens."""
    for node in range(tree.num_nodes):
        tokens = [tree.tokens[child] for child in tree.children(node)]
        if len(set(tokens)) < len(tokens):
            raise InvariantViolation("I5", f"the children of node {node} have tokens {tokens}", tree)


def check_indices(indices: Iterable[int], size: int, what: str = "index") -> None:
    """I6: every index is in [0, size)."""
    for place, index in enumerate(indices):
        if not 0 <= index < size:
            raise InvariantViolation("I6", f"{what} {place} is {index}, outside [0, {size})")


def check_path(tree: DraftTree, path: Sequence[int], accept_length: int) -> None:
    """I7: path[0] = 0, each accepted node is valid and a child of the one before, then zeros."""
    if not 0 <= accept_length < len(path):
        text = f"accept_length is {accept_length} with a path of {len(path)} entries"
        raise InvariantViolation("I7", text, tree, path)
    if path[0] != 0:
        raise InvariantViolation("I7", f"the path starts at node {path[0]}", tree, path)
    for k in range(1, len(path)):
        node = path[k]
        if k > accept_length:
            if node != 0:
                raise InvariantViolation("I7", f"path[{k}] is {node} behind the accepted part", tree, path)
        elif not 0 < node < tree.num_nodes or not tree.valid[node] or tree.parent[node] != path[k - 1]:
            raise InvariantViolation("I7", f"path[{k}] = {node} is no child of {path[k - 1]}", tree, path)


def check_commit(
    before: Sequence[Any],
    candidates: Sequence[Any],
    after: Sequence[Any],
    path: Sequence[int],
    accept_length: int,
) -> None:
    """I8: the first length + accept_length + 1 rows after a commit are the old rows, then the path's rows."""
    rows = [candidates[node] for node in path[: accept_length + 1]]
    expected = [*before, *rows]
    for place, row in enumerate(expected):
        if place >= len(after) or after[place] != row:
            got = after[place] if place < len(after) else "missing"
            raise InvariantViolation("I8", f"row {place} is {got!r}, not {row!r} (path {list(path)})")


def check_length(before: int, after: int, accept_length: int, live: bool = True) -> None:
    """I9: length advances by accept_length + 1; that of a finished row or a row without a request doesn't."""
    step = accept_length + 1 if live else 0
    if after != before + step:
        raise InvariantViolation("I9", f"length went from {before} to {after}, not by {step}")


def check_blocks(allocated: Iterable[int], committed: Iterable[int], freed: Iterable[int]) -> None:
    """I10: the blocks allocated in a step are those committed and those freed, each once."""
    kept, released = list(committed), list(freed)
    if sorted(allocated) != sorted(kept + released):
        raise InvariantViolation("I10", f"allocated {sorted(allocated)}, kept {kept}, freed {released}")


def check_vocabulary_map(d2t: Sequence[int], t2d: Sequence[bool]) -> None:
    """I15: target id = draft id + d2t[draft id]; ids are in range, increase, and are those that t2d marks."""
    targets = [draft + offset for draft, offset in enumerate(d2t)]
    for draft, token in enumerate(targets):
        if not 0 <= token < len(t2d):
            raise InvariantViolation("I15", f"draft token {draft} maps to {token}, outside [0, {len(t2d)})")
    if len(set(targets)) < len(targets):
        raise InvariantViolation("I15", "two draft tokens map to one target token")
    if set(targets) != {token for token, marked in enumerate(t2d) if marked}:
        raise InvariantViolation("I15", "t2d marks other target tokens than d2t reaches")


def check_superset(smaller: int, larger: int, tree: DraftTree | None = None) -> None:
    """I26: under greedy acceptance, a tree that contains another one accepts at least as many nodes."""
    if larger < smaller:
        raise InvariantViolation("I26", f"the larger tree accepts {larger}, the one inside it {smaller}", tree)


CHECKS: dict[str, Callable[..., None]] = {
    "acyclic": check_parent,
    "ancestor-closed": check_ancestor_closed,
    "mask-ancestors": check_mask,
    "positions": check_positions,
    "distinct-siblings": check_distinct_siblings,
    "index-range": check_indices,
    "path-valid": check_path,
    "commit-gather": check_commit,
    "length-advance": check_length,
    "paged-blocks": check_blocks,
    "padding-inert": check_padding,
    "vocabulary-map": check_vocabulary_map,
    "superset-tree": check_superset,
}
"""The checks on plain lists by invariant name."""
