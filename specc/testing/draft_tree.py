"""A draft tree of one row as plain tuples, and its drawing as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

PADDING_TOKEN = 0
PADDING_PARENT = 0


@dataclass(frozen=True, slots=True)
class DraftTree:
    """One row of a draft: N nodes, node 0 the root, padding nodes last (design 00, "Conventions").

    `tokens`, `parent` and `valid` have N entries each. `parent[0]` is -1; a padding node has token 0,
    parent 0 and valid False. Nothing is checked here, so that a broken tree can be drawn: see
    `invariants.check_parent`.
    """

    tokens: tuple[int, ...]
    parent: tuple[int, ...]
    valid: tuple[bool, ...]

    @property
    def num_nodes(self) -> int:
        """N: drafted nodes, the root and padding together."""
        return len(self.parent)

    @property
    def num_valid(self) -> int:
        """Nodes that are not padding, the root included."""
        return sum(self.valid)

    @property
    def has_padding(self) -> bool:
        """Whether at least one node is padding."""
        return not all(self.valid)

    def children(self, node: int) -> list[int]:
        """Return the valid children of `node` in index order."""
        return [i for i in range(1, len(self.parent)) if self.valid[i] and self.parent[i] == node]


def make_tree(tokens: Sequence[int], parent: Sequence[int], num_nodes: int | None = None) -> DraftTree:
    """Return a tree of these valid nodes, followed by padding up to `num_nodes`.

    Raises ValueError if the lists differ in length or are longer than `num_nodes`.
    """
    count = len(parent)
    size = count if num_nodes is None else num_nodes
    if len(tokens) != count or count > size:
        raise ValueError(f"{len(tokens)} tokens and {count} parents do not make a tree of {size} nodes")
    pad = size - count
    return DraftTree(
        tokens=(*tokens, *[PADDING_TOKEN] * pad),
        parent=(*parent, *[PADDING_PARENT] * pad),
        valid=(*[True] * count, *[False] * pad),
    )


def render_tree(tree: DraftTree, path: Sequence[int] = (), notes: Mapping[int, str] | None = None) -> str:
    """Draw a tree, one node a line: `index:token`, a star on the nodes of `path`, and a note beside a node.

    Works on broken trees too: nodes that can't be reached from node 0 are listed below the drawing.

        0:17 *
        ├─ 1:4
        └─ 2:9 *
           └─ 3:5
        padding: 4 5
    """
    marked = set(path)
    texts = notes or {}

    def label(node: int) -> str:
        token = tree.tokens[node] if node < len(tree.tokens) else "?"
        star = " *" if node in marked else ""
        note = f"  {texts[node]}" if node in texts else ""
        return f"{node}:{token}{star}{note}"

    lines, drawn = _branches(tree, label)
    padding = [str(i) for i, ok in enumerate(tree.valid) if not ok]
    if padding:
        lines.append(f"padding: {' '.join(padding)}")
    lost = [i for i, ok in enumerate(tree.valid) if ok and i not in drawn]
    lines.extend(f"unreachable: {label(i)} (parent {tree.parent[i]})" for i in lost)
    return "\n".join(lines)


def _branches(tree: DraftTree, label: Callable[[int], str]) -> tuple[list[str], set[int]]:
    """Return the lines below node 0, depth first, and the set of nodes drawn."""
    if not tree.parent:
        return ["(empty)"], set()
    lines: list[str] = [label(0)]
    drawn = {0}
    stack = [(child, "") for child in reversed(tree.children(0))]
    last_child = {kids[-1] for node in range(tree.num_nodes) if (kids := tree.children(node))}
    while stack:
        node, indent = stack.pop()
        if node in drawn:
            continue
        drawn.add(node)
        last = node in last_child
        lines.append(f"{indent}{'└─' if last else '├─'} {label(node)}")
        below = indent + ("   " if last else "│  ")
        stack.extend((child, below) for child in reversed(tree.children(node)))
    return lines, drawn
