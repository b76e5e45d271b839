"""What recorded candidates say of smaller trees, against those trees drafted by the reference drafters."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specc.testing.draft_oracles import (
    dynamic_tree,
    expand_candidates,
    prompt_lookup_tree,
    static_tree,
)
from specc.testing.draft_tree import DraftTree
from specc.tune.choose import pruned_counts
from specc.tune.evidence import (
    MISSED,
    NO_TEXT,
    UNKNOWN,
    Recorded,
    TextSpan,
    accepted,
    accepted_static,
    replay,
)
from specc.tune.lookup import Decoded, Looked, Suffixes
from specc.tune.ranks import by_depth
from specc.tune.variants import Tree

VOCABULARY = 5
LEVELS, TOP_K = 3, 3


def drafter(seed: int):  # type: ignore[no-untyped-def]
    """A drafter whose log-probabilities are a function of the path, few and coarse so that scores tie."""

    def log_probs(path: tuple[int, ...]) -> Sequence[float]:
        digest = hashlib.sha256(f"{seed}:{path}".encode()).digest()
        weights = [1 + digest[token] % 4 for token in range(VOCABULARY)]
        return [math.log(weight / sum(weights)) for weight in weights]

    return log_probs


def recording(seeds: Sequence[int], truths: Sequence[Sequence[int]]) -> Recorded:
    """One position per seed, as the recorder keeps it."""
    found = [expand_candidates(drafter(seed), LEVELS, TOP_K) for seed in seeds]
    ends = [list(truth) + [-1] * (LEVELS - len(truth)) for truth in truths]
    return Recorded(
        [TextSpan("text", 0, len(seeds))],
        TOP_K,
        LEVELS,
        np.array([[one.token for one in row] for row in found]),
        np.array([[one.parent for one in row] for row in found]),
        np.array([[one.score for one in row] for row in found], dtype=np.float32),
        np.array(ends),
    )


def follow(tree: DraftTree, truth: Sequence[int]) -> int:
    """Accepted drafted tokens of a tree whose root precedes `truth`."""
    here, count = 0, 0
    for token in truth:
        fits = [
            node
            for node in range(1, len(tree.tokens))
            if tree.valid[node] and tree.parent[node] == here and tree.tokens[node] == token
        ]
        if not fits:
            break
        here, count = fits[0], count + 1
    return count


@st.composite
def position(draw: st.DrawFn) -> tuple[int, list[int]]:
    """A drafter's seed, and a text that mostly is the path of one of its candidates."""
    seed = draw(st.integers(0, 99))
    path = list(draw(st.sampled_from(expand_candidates(drafter(seed), LEVELS, TOP_K))).path)
    more = draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=LEVELS - len(path)))
    return seed, path + more


positions = st.lists(position(), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(positions, st.integers(1, 12), st.integers(1, LEVELS), st.integers(1, TOP_K))
def test_smaller_dynamic_trees_accept_what_the_recording_says(
    rows: list[tuple[int, list[int]]], nodes: int, steps: int, top_k: int
) -> None:
    evidence = recording([seed for seed, _ in rows], [truth for _, truth in rows])
    found = accepted(evidence.thresholds(top_k, steps), nodes)
    unknown = evidence.unknown(top_k, steps)
    for row, (seed, truth) in enumerate(rows):
        tree = dynamic_tree(drafter(seed), 0, steps, top_k, nodes).tree
        if unknown[row]:
            assert found[row] <= follow(tree, truth)
        else:
            assert found[row] == follow(tree, truth)
        assert not (unknown[row] and top_k == TOP_K)


@settings(max_examples=60, deadline=None)
@given(positions, st.integers(1, 12), st.integers(1, LEVELS), st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.booleans())
def test_pruned_trees_keep_what_the_recording_says(
    rows: list[tuple[int, list[int]]], nodes: int, steps: int, margin: float, floored: bool
) -> None:
    evidence = recording([seed for seed, _ in rows], [truth for _, truth in rows])
    floor = -2.0 if floored else None
    counts, kept = pruned_counts(evidence, Tree("dynamic", nodes, steps, TOP_K, (), margin), floor)
    for row, (seed, truth) in enumerate(rows):
        made = dynamic_tree(drafter(seed), 0, steps, TOP_K, nodes, margin, floor)
        assert kept[row] == len(made.chosen)
        assert counts[row] == follow(made.tree, truth)


CHOICES = ((0,), (1,), (2,), (0, 0), (0, 2), (1, 0), (0, 0, 0), (1, 0, 1))


@settings(max_examples=60, deadline=None)
@given(positions, st.integers(1, len(CHOICES)))
def test_static_trees_accept_what_the_recording_says(rows: list[tuple[int, list[int]]], count: int) -> None:
    evidence = recording([seed for seed, _ in rows], [truth for _, truth in rows])
    choices = CHOICES[:count]
    found, unknown = accepted_static(evidence.ranks, choices)
    for row, (seed, truth) in enumerate(rows):
        length = follow(static_tree(choices, drafter(seed), 0), truth)
        assert found[row] <= length if unknown[row] else found[row] == length


def test_a_frontier_that_was_not_expanded_is_called_unknown() -> None:
    """The two best of a level with top_k 2 need not be among the three best with top_k 3."""
    unknown = 0
    for seed in range(60):
        smaller = expand_candidates(drafter(seed), LEVELS, 2)
        evidence = recording([seed] * len(smaller), [one.path for one in smaller])
        counts, open_ended = accepted(evidence.thresholds(2, LEVELS), 99), evidence.unknown(2, LEVELS)
        for row, one in enumerate(smaller):
            assert open_ended[row] == (counts[row] < len(one.path))
        unknown += int(open_ended.sum())
    assert unknown > 0


def test_what_is_not_known_is_told_from_what_was_wrong() -> None:
    evidence = recording([3, 3, 3], [[], [0], [0]])
    assert evidence.ranks[0].tolist() == [NO_TEXT, MISSED, MISSED]
    first = [one for one in expand_candidates(drafter(3), LEVELS, TOP_K) if one.parent == -1]
    right = recording([3], [[first[1].token]])
    assert right.ranks[0, :2].tolist() == [1, NO_TEXT]
    # A node of level 2 that is not among the best of its level has no children in the recording.
    inner = expand_candidates(drafter(3), LEVELS, TOP_K)
    expanded = {one.parent for one in inner}
    closed = next(one for number, one in enumerate(inner) if len(one.path) == 2 and number not in expanded)
    left = recording([3], [[*closed.path, 0]])
    assert left.ranks[0, 2] == UNKNOWN
    assert by_depth(left.ranks, TOP_K)[2].unknown == 1
    assert by_depth(left.ranks, TOP_K)[2].trials == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(0, 3))
def test_a_replay_counts_as_a_run_does(counts: list[int], cut: int) -> None:
    spans = [TextSpan("a", 0, len(counts) - min(cut, len(counts) - 1))]
    spans += [TextSpan("b", spans[0].stop, len(counts))] if spans[0].stop < len(counts) else []
    found = replay(spans, np.array(counts))
    assert found.tokens == len(counts)
    steps, lengths = 0, []
    for span in spans:
        place = span.start
        while place < span.stop:
            lengths.append(min(counts[place] + 1, span.stop - place))
            place, steps = place + lengths[-1], steps + 1
    assert (found.steps, found.squares) == (steps, sum(length**2 for length in lengths))
    assert found.acceptance_length == sum(lengths) / steps


tokens = st.lists(st.integers(0, 2), min_size=4, max_size=24)


@settings(max_examples=80, deadline=None)
@example([2, 0, 2, 1, 2, 1, 2, 2, 0], 1, 3, 1, 3)  # of three matches two are the same, the fourth is not followed
@given(tokens, st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 6))
def test_prompt_lookup_accepts_what_the_drafter_would(
    text: list[int], start: int, top_k: int, steps: int, nodes: int
) -> None:
    made = Decoded("text", tuple(text[:start]), tuple(text[start:]))
    evidence = Looked([made], (1, 3), 3, 4, 6)
    counts = accepted(evidence.thresholds(top_k, steps), nodes)
    for place in range(len(counts)):
        known = text[: start + place + 1]
        ends = suffix_ends(known)
        ahead = text[start + place + 1 :]
        if len(ends) <= nodes:  # the compiled drafter follows at most `nodes` matches, the reference all
            assert counts[place] == follow(prompt_lookup_tree(known, 1, 3, nodes, steps, top_k), ahead)
        kept: list[tuple[int, ...]] = []
        for end in ends[:nodes]:
            for length in range(1, min(steps, len(known) - end) + 1):
                path = tuple(known[end : end + length])
                siblings = [other for other in kept if other[:-1] == path[:-1] and len(other) == length]
                if path not in kept and (len(siblings) >= top_k or len(kept) >= nodes):
                    break
                kept += [path] if path not in kept else []
        assert counts[place] == max((len(path) for path in kept if tuple(ahead[: len(path)]) == path), default=0)


def suffix_ends(known: Sequence[int]) -> list[int]:
    """All places behind occurrences of the longest suffix of 3 to 1 tokens, latest first."""
    for size in (3, 2, 1):
        found = [end for end in range(len(known) - 1, size - 1, -1) if known[end - size : end] == known[-size:]]
        if size < len(known) and found:
            return found
    return []


@settings(max_examples=60, deadline=None)
@given(tokens, st.integers(1, 5))
def test_the_index_of_suffixes_finds_the_latest_matches(text: list[int], most: int) -> None:
    suffixes = Suffixes(1, 3)
    for place, token in enumerate(text):
        suffixes.append(token)
        assert suffixes.matches(most) == suffix_ends(text[: place + 1])[:most]
