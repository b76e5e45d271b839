"""Make the examples count: draft trees around the plain continuation, with planted errors.

Random drafts are almost never accepted (2 branch accepts in 480 steps with a vocabulary of 97), so a check
on random drafts exercises nothing. Here the drafted tree contains a prefix of what plain decoding gives,
hidden among decoys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from specc.testing.draft_tree import DraftTree, make_tree
from specc.testing.oracles import Acceptance, in_place_already


@dataclass(frozen=True, slots=True)
class PlantedShape:
    """What a planted tree may look like, and how often.

    `num_nodes` is N (with the root), `num_steps` the deepest path, `top_k` the children per node. The
    probabilities: `nothing_right`: no drafted node is right; `early_error`: at each further level, the
    right path ends there; `decoy_first`: a decoy comes before the right child; `short`: fewer nodes than N
    (padding).
    """

    num_nodes: int
    num_steps: int
    top_k: int
    nothing_right: float = 0.08
    early_error: float = 0.15
    decoy_first: float = 0.5
    short: float = 0.3


@dataclass(slots=True)
class _Node:
    token: int
    level: int
    children: list[_Node] = field(default_factory=list)


def plant_tree(continuation: Sequence[int], vocab_size: int, shape: PlantedShape, rng: Random) -> DraftTree:
    """Draw a tree whose root is continuation[0] and in which a prefix of continuation[1:] is a path.

    `continuation` is the root token and what plain decoding emits after it; as many of its tokens are
    planted as depth, budget and the drawn errors allow. Siblings have different tokens, decoys never equal
    the right token. Nodes are numbered in a random topological order, so that the right path is scattered.
    """
    root = _Node(continuation[0], 0)
    budget = shape.num_nodes - 1
    if rng.random() < shape.short:
        budget = rng.randint(0, budget)
    right = _right_length(continuation, shape, budget, rng)
    spine = [root]
    for level in range(1, right + 1):
        child = _Node(continuation[level], level)
        spine[-1].children.append(child)
        spine.append(child)
    for _ in range(budget - right):
        if not _add_decoy(spine, continuation, vocab_size, shape, rng):
            break
    return _numbered(root, shape, rng)


def _right_length(continuation: Sequence[int], shape: PlantedShape, budget: int, rng: Random) -> int:
    longest = min(shape.num_steps, len(continuation) - 1, budget)
    if longest < 1 or rng.random() < shape.nothing_right:
        return 0
    length = 1
    while length < longest and rng.random() >= shape.early_error:
        length += 1
    # One node is left for a decoy where the budget allows, or else long right paths would always be chains.
    return length - 1 if length == budget and length > 2 and rng.random() < 0.5 else length


def _add_decoy(
    spine: list[_Node], continuation: Sequence[int], vocab_size: int, shape: PlantedShape, rng: Random
) -> bool:
    """Add one wrong node below some node with room, return whether there was room."""
    nodes: list[_Node] = []
    stack = [spine[0]]
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(node.children)
    on_spine = {id(node) for node in spine}
    open_nodes = [n for n in nodes if n.level < shape.num_steps and len(n.children) < shape.top_k]
    rng.shuffle(open_nodes)
    # Siblings of the right path first, half of the time: only they make an accepted branch.
    if rng.random() < shape.decoy_first:
        open_nodes.sort(key=lambda n: id(n) not in on_spine)
    for node in open_nodes:
        taken = {child.token for child in node.children}
        if id(node) in on_spine and node.level + 1 < len(continuation):
            taken.add(continuation[node.level + 1])
        free = [token for token in range(vocab_size) if token not in taken]
        if free:
            place = 0 if rng.random() < shape.decoy_first else len(node.children)
            node.children.insert(place, _Node(rng.choice(free), node.level + 1))
            return True
    return False


def _numbered(root: _Node, shape: PlantedShape, rng: Random) -> DraftTree:
    """Number the nodes in a random topological order that keeps the order of siblings."""
    tokens, parent = [root.token], [-1]
    queues = [(0, list(root.children))] if root.children else []
    while queues:
        pick = rng.randrange(len(queues))
        above, waiting = queues[pick]
        node = waiting.pop(0)
        if not waiting:
            queues.pop(pick)
        tokens.append(node.token)
        parent.append(above)
        if node.children:
            queues.append((len(tokens) - 1, list(node.children)))
    return make_tree(tokens, parent, shape.num_nodes)


@dataclass(slots=True)
class Exercise:
    """Counts what a run of steps exercised. One step = one row of one verify call, finished and padding
    rows too."""

    steps: int = 0
    accept_two: int = 0
    accept_branch: int = 0
    padding: int = 0
    accept_none: int = 0

    def record(self, tree: DraftTree, accepted: Acceptance) -> None:
        """Count a live row. A branch is accepted when the path isn't 0, 1, …, so that a commit must move
        rows."""
        self.steps += 1
        self.accept_two += accepted.accept_length >= 2
        self.accept_branch += not in_place_already(accepted)
        self.padding += tree.has_padding
        self.accept_none += accepted.accept_length == 0

    def record_idle(self) -> None:
        """Count a finished row or a row without a request."""
        self.steps += 1
        self.padding += 1

    def add(self, other: Exercise) -> None:
        """Add another run's counts."""
        self.steps += other.steps
        self.accept_two += other.accept_two
        self.accept_branch += other.accept_branch
        self.padding += other.padding
        self.accept_none += other.accept_none

    def shortfalls(self, two: float = 0.30, branch: float = 0.15, padding: float = 0.10) -> list[str]:
        """Return what was exercised too rarely (design 03, "Make the examples count"), as readable lines."""
        if self.steps == 0:
            return ["no step was run"]
        wanted = (
            ("steps that accept >= 2", self.accept_two, two),
            ("steps that accept a branch", self.accept_branch, branch),
            ("steps with padding nodes or a finished row", self.padding, padding),
        )
        return [
            f"{name}: {count} of {self.steps} = {count / self.steps:.1%}, at least {share:.0%} needed"
            for name, count, share in wanted
            if count < share * self.steps
        ]

    def require(self, two: float = 0.30, branch: float = 0.15, padding: float = 0.10) -> None:
        """Raise AssertionError naming each shortfall: examples that exercise nothing prove nothing."""
        missing = self.shortfalls(two, branch, padding)
        if missing:
            raise AssertionError("the examples don't count: " + "; ".join(missing))
