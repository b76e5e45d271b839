"""Which keys every query row is proved to see, by name of the place: so that no row is masked out as a whole.

"first" is key 0, "diagonal" key i of row i, "behind" the row's own key behind the committed ones; any other name is a
place that only one node knows of. Two masks show a common key only where they show the same place.
"""

from __future__ import annotations

from torch.fx import Node

Seen = frozenset[str]
NOTHING: Seen = frozenset()
ALL: Seen = frozenset({"*"})
FIRST: Seen = frozenset({"first"})
DIAGONAL: Seen = frozenset({"diagonal"})
BEHIND: Seen = frozenset({"behind"})


def in_both(left: Seen, right: Seen) -> Seen:
    """What is seen where both masks must show a key."""
    if left == ALL:
        return right
    return left if right == ALL else left & right


def in_either(left: Seen, right: Seen) -> Seen:
    """What is seen where one of two masks is enough."""
    return ALL if ALL in (left, right) else left | right


def somewhere(node: Node, *parts: Seen) -> Seen:
    """Keys that moved: a row still sees one, at a place that only `node` knows of."""
    return frozenset({node.name}) if any(parts) else NOTHING
