"""Reference drafting in plain Python: EAGLE-2 dynamic trees, static trees and prompt lookup.

Independent of the compiler and of torch. Scores are rounded to float32 after every addition, as design 03
demands.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specc.testing.draft_tree import DraftTree, make_tree

Drafter = Callable[[tuple[int, ...]], Sequence[float]]
"""Maps the drafted tokens below the root to the log-probabilities of the next token, [V]."""

_NEVER = -math.inf


def float32(value: float) -> float:
    """Round to the nearest float32."""
    result: float = struct.unpack("f", struct.pack("f", value))[0]
    return result


def ordered_score(value: float) -> float:
    """Return the value that scores are ordered by: NaN counts as -inf, so that both come last."""
    return _NEVER if math.isnan(value) else value


def best_indices(scores: Sequence[float], count: int) -> list[int]:
    """Return the `count` best indices by (score descending, index ascending), NaN and -inf last."""
    order = sorted(range(len(scores)), key=lambda i: (-ordered_score(scores[i]), i))
    return order[:count]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate of a dynamic tree. `parent` is a candidate index, -1 for a child of the root."""

    token: int
    parent: int
    path: tuple[int, ...]
    score: float


@dataclass(frozen=True, slots=True)
class DynamicTree:
    """A dynamic tree and what it was chosen from. `chosen` are candidate indices, ascending; `scores` has N
    entries (cumulative log-probability; 0.0 for the root and for padding)."""

    tree: DraftTree
    candidates: tuple[Candidate, ...]
    chosen: tuple[int, ...]
    scores: tuple[float, ...]


def expand_candidates(drafter: Drafter, num_steps: int, top_k: int) -> list[Candidate]:
    """Return all candidates in index order: level by level, frontier node by frontier node, best child first.

    Level 1 holds the root's top_k children. Each further level holds the top_k children of each frontier
    node; the frontier is the best top_k of the level before, best first (EAGLE-2, section 4.1).
    """
    candidates: list[Candidate] = []
    frontier = [-1]
    for _ in range(num_steps):
        level_start = len(candidates)
        for parent in frontier:
            path = candidates[parent].path if parent >= 0 else ()
            so_far = candidates[parent].score if parent >= 0 else 0.0
            own = [min(value, 0.0) if not math.isnan(value) else _NEVER for value in drafter(path)]
            for token in best_indices(own, top_k):
                score = float32(so_far + float32(own[token]))
                candidates.append(Candidate(token, parent, (*path, token), score))
        scores = [candidate.score for candidate in candidates[level_start:]]
        frontier = [level_start + i for i in best_indices(scores, top_k)]
    return candidates


def rerank(candidates: Sequence[Candidate], budget: int) -> list[int]:
    """Return the best `budget` candidates by (score desc, index asc), in index order (EAGLE-2, section
    4.2)."""
    return sorted(best_indices([candidate.score for candidate in candidates], budget))


def prune(
    candidates: Sequence[Candidate],
    chosen: Sequence[int],
    path_log_prob_margin: float | None = None,
    min_path_log_prob: float | None = None,
) -> list[int]:
    """Drop the chosen candidates below (best score - margin) or below the absolute threshold; float32
    arithmetic."""
    best = max((candidates[i].score for i in chosen), default=0.0)
    bars = [float32(best - path_log_prob_margin)] if path_log_prob_margin is not None else []
    bars += [float32(min_path_log_prob)] if min_path_log_prob is not None else []
    return [i for i in chosen if all(candidates[i].score >= bar for bar in bars)]


def closure(candidates: Sequence[Candidate], chosen: Sequence[int]) -> set[int]:
    """Return the chosen candidates and all their ancestors."""
    closed: set[int] = set()
    for i in chosen:
        while i >= 0:
            closed.add(i)
            i = candidates[i].parent
    return closed


def dynamic_tree(
    drafter: Drafter,
    root_token: int,
    num_steps: int,
    top_k: int,
    num_speculative_tokens: int,
    path_log_prob_margin: float | None = None,
    min_path_log_prob: float | None = None,
) -> DynamicTree:
    """Build an EAGLE-2 tree of num_speculative_tokens + 1 nodes from a drafter (design 03, "Draft tree").

    Fewer candidates than the budget, or pruned ones, leave padding nodes at the end.
    """
    candidates = expand_candidates(drafter, num_steps, top_k)
    chosen = rerank(candidates, num_speculative_tokens)
    chosen = prune(candidates, chosen, path_log_prob_margin, min_path_log_prob)
    node_of = {-1: 0} | {candidate: node for node, candidate in enumerate(chosen, start=1)}
    tokens = [root_token] + [candidates[i].token for i in chosen]
    parent = [-1] + [node_of[candidates[i].parent] for i in chosen]
    size = num_speculative_tokens + 1
    scores = [0.0] + [candidates[i].score for i in chosen]
    scores += [0.0] * (size - len(scores))
    return DynamicTree(make_tree(tokens, parent, size), tuple(candidates), tuple(chosen), tuple(scores))


def static_tree(
    choices: Sequence[Sequence[int]], drafter: Drafter, root_token: int, num_nodes: int | None = None
) -> DraftTree:
    """Build a static tree: choice [r1, …, rd] is the rd-th best child of the node of [r1, …, r(d-1)].

    `choices` are rank paths in (length, lexicographic) order, closed under prefixes; node i + 1 is
    choices[i].
    """
    node_of: dict[tuple[int, ...], int] = {(): 0}
    token_path: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}
    tokens, parent = [root_token], [-1]
    for node, choice in enumerate(choices, start=1):
        above, rank = tuple(choice[:-1]), choice[-1]
        token = best_indices(drafter(token_path[above]), rank + 1)[rank]
        node_of[tuple(choice)] = node
        token_path[tuple(choice)] = (*token_path[above], token)
        tokens.append(token)
        parent.append(node_of[above])
    return make_tree(tokens, parent, num_nodes)


def suffix_matches(context: Sequence[int], ngram_min: int, ngram_max: int) -> tuple[int, list[int]]:
    """Return (n, ends): the longest n in ngram_max..ngram_min for which the last n tokens occurred before,
    and the places right after those occurrences, latest first. (0, []) when there is none."""
    text = list(context)
    for n in range(min(ngram_max, len(text) - 1), ngram_min - 1, -1):
        suffix = text[-n:]
        ends = [end for end in range(len(text) - 1, n - 1, -1) if text[end - n : end] == suffix]
        if ends:
            return n, ends
    return 0, []


def prompt_lookup_chain(
    context: Sequence[int], ngram_min: int, ngram_max: int, num_speculative_tokens: int
) -> DraftTree:
    """Return the chain of tokens that followed the latest occurrence of the longest matching suffix.

    `context` ends with the root token. The continuation stops at the end of the context.
    """
    _, ends = suffix_matches(context, ngram_min, ngram_max)
    drafted = list(context[ends[0] : ends[0] + num_speculative_tokens]) if ends else []
    parent = [-1, *range(len(drafted))]
    return make_tree([context[-1], *drafted], parent, num_speculative_tokens + 1)


def prompt_lookup_tree(
    context: Sequence[int],
    ngram_min: int,
    ngram_max: int,
    num_speculative_tokens: int,
    num_steps: int,
    top_k: int,
) -> DraftTree:
    """Merge the continuations after every occurrence of the longest matching suffix into a tree.

    Occurrences are taken latest first. Each adds its continuation (at most num_steps tokens) to the tree:
    tokens already there are shared, a new one becomes a child unless its parent has top_k children or the
    budget is spent; then this continuation ends.
    """
    _, ends = suffix_matches(context, ngram_min, ngram_max)
    tokens, parent = [context[-1]], [-1]
    for end in ends:
        node = 0
        for token in context[end : end + num_steps]:
            children = [i for i in range(1, len(parent)) if parent[i] == node]
            same = [i for i in children if tokens[i] == token]
            if same:
                node = same[0]
                continue
            if len(children) >= top_k or len(tokens) > num_speculative_tokens:
                break
            tokens.append(token)
            parent.append(node)
            node = len(tokens) - 1
    return make_tree(tokens, parent, num_speculative_tokens + 1)
