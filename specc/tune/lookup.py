"""Evidence for prompt lookup: the drafts are a function of the text alone, so that they are made here, on the host.

The rules are those of `specc.lower.drafts.lookup`: the longest matching suffix decides, later matches come first, and
with a budget of n nodes at most n matches are followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specc.tune.evidence import MISSED, NEVER, NO_TEXT, Bools, Ints, TextSpan

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A prompt and the tokens that the target made of it."""

    name: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


class Suffixes:
    """The places behind earlier occurrences of a growing text's last n-gram, by n."""

    def __init__(self, smallest: int, largest: int) -> None:
        self.sizes = range(largest, smallest - 1, -1)
        self.text: list[int] = []
        self._ends: dict[Path, list[int]] = {}

    def append(self, token: int) -> None:
        """The text ends with `token` now; what stood before it can be found from here on."""
        for size in self.sizes:
            if size <= len(self.text):
                self._ends.setdefault(tuple(self.text[-size:]), []).append(len(self.text))
        self.text.append(token)

    def matches(self, most: int) -> list[int]:
        """The latest `most` places behind occurrences of the longest suffix that occurred before, latest first."""
        for size in self.sizes:
            found = self._ends.get(tuple(self.text[-size:])) if size <= len(self.text) else None
            if found:
                return found[: -most - 1 : -1]
        return []


def trie(continuations: Sequence[Path], top_k: int, nodes: int) -> dict[Path, int]:
    """The nodes of the tree by their tokens, each with the least budget that does not hold it.

    Every continuation adds what is not there, unless its parent has `top_k` children; then it ends. A budget of n holds
    the first n nodes that come from the first n continuations, so a node's number is the larger of its place among the
    nodes and the place of its continuation.
    """
    number: dict[Path, int] = {}
    children: dict[Path, int] = {}
    for place, continuation in enumerate(continuations):
        for length in range(1, len(continuation) + 1):
            path, above = continuation[:length], continuation[: length - 1]
            if path in number:
                continue
            if children.get(above, 0) >= top_k or len(number) >= nodes:
                break
            children[above] = children.get(above, 0) + 1
            number[path] = max(len(number), place)
    return number


@dataclass(slots=True)
class Looked:
    """Evidence of prompt lookup over texts. `nodes` is the largest budget that is asked for."""

    texts: Sequence[Decoded]
    ngram: tuple[int, int]
    top_k: int
    levels: int
    nodes: int
    spans: list[TextSpan] = field(default_factory=list)
    _places: list[tuple[Path, list[Path]]] = field(default_factory=list, repr=False)
    _ranks: Ints | None = field(default=None, repr=False)
    _thresholds: dict[tuple[int, int], Ints] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for text in self.texts:
            start = len(self._places)
            suffixes = Suffixes(*self.ngram)
            for token in text.prompt:
                suffixes.append(token)
            for place, token in enumerate(text.tokens[:-1]):
                suffixes.append(token)
                truth = tuple(text.tokens[place + 1 : place + 1 + self.levels])
                known = suffixes.text
                ends = suffixes.matches(self.nodes)
                self._places.append((truth, [tuple(known[end : end + self.levels]) for end in ends]))
            self.spans.append(TextSpan(text.name, start, len(self._places)))

    @property
    def ranks(self) -> Ints:
        """Ranks are the order in which siblings were found, the latest occurrence first."""
        if self._ranks is None:
            self._ranks = np.full((len(self._places), self.levels), MISSED, dtype=np.int64)
            for row, (truth, continuations) in enumerate(self._places):
                siblings: dict[Path, list[Path]] = {}
                for path in trie(continuations, self.top_k, self.top_k * self.levels):
                    siblings.setdefault(path[:-1], []).append(path)
                for depth in range(self.levels):
                    if depth >= len(truth):
                        self._ranks[row, depth] = NO_TEXT
                        break
                    around = siblings.get(truth[:depth], [])
                    if truth[: depth + 1] not in around:
                        break
                    self._ranks[row, depth] = around.index(truth[: depth + 1])
        return self._ranks

    def thresholds(self, top_k: int, num_steps: int) -> Ints:
        """Numbers of the text's nodes in the tree of this top_k and num_steps."""
        key = (top_k, num_steps)
        if key not in self._thresholds:
            found = np.full((len(self._places), self.levels), NEVER, dtype=np.int64)
            for row, (truth, continuations) in enumerate(self._places):
                number = trie([path[:num_steps] for path in continuations], top_k, self.nodes)
                for depth in range(min(num_steps, len(truth))):
                    if truth[: depth + 1] not in number:
                        break
                    found[row, depth] = number[truth[: depth + 1]]
            self._thresholds[key] = found
        return self._thresholds[key]

    def unknown(self, top_k: int, num_steps: int) -> Bools:
        """Nothing is unknown: the drafts are made from the text."""
        return np.zeros(len(self._places), dtype=np.bool_)
