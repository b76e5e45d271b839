"""The Kneser-Ney baseline: probabilities sum to one, and equal a direct implementation with dictionaries."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.train.ngram import KneserNey, estimated_discounts, train_kneser_ney

VOCABULARY = 6
END = 0
documents = st.lists(st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=12), min_size=1, max_size=8)


def train(texts: list[list[int]], order: int) -> KneserNey:
    stream = [END, *(token for text in texts for token in (*text, END))]
    return train_kneser_ney(np.array(stream, dtype=np.uint16), VOCABULARY, order)


@given(texts=documents, order=st.integers(1, 5), history=st.lists(st.integers(1, VOCABULARY - 1), max_size=6))
def test_probabilities_sum_to_one(texts: list[list[int]], order: int, history: list[int]) -> None:
    model = train(texts, order)
    found = [model.log2_probabilities(np.array([*history, word]))[len(history)] for word in range(VOCABULARY)]
    assert sum(2.0**value for value in found) == pytest.approx(1.0, abs=1e-9)


class Direct:
    """The same model by dictionaries and recursion."""

    def __init__(self, texts: list[list[int]], order: int) -> None:
        self.order = order
        raw: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order + 1)]
        for text in texts:
            padded = [END] * (order - 1) + text + [END]
            for place in range(order - 1, len(padded)):
                for n in range(1, order + 1):
                    raw[n][tuple(padded[place - n + 1 : place + 1])] += 1
        self.counts: list[dict[tuple[int, ...], int]] = [{} for _ in range(order + 1)]
        self.counts[order] = dict(raw[order])
        for n in range(1, order):
            left = Counter(gram[1:] for gram in raw[n + 1])
            self.counts[n] = {gram: count if n > 1 and gram[0] == END else left[gram] for gram, count in raw[n].items()}
        self.discounts = [estimated_discounts(np.array(list(c.values()))) if c else (0, 0, 0) for c in self.counts]
        self.followers: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        for n in range(1, order + 1):
            for gram, count in self.counts[n].items():
                self.followers[gram[:-1]].append((n, count))

    def discount(self, n: int, count: int) -> float:
        return 0.0 if count == 0 else self.discounts[n][min(count, 3) - 1]

    def probability(self, history: tuple[int, ...], word: int) -> float:
        n = len(history) + 1
        lower = 1 / VOCABULARY if n == 1 else self.probability(history[1:], word)
        seen = [count for level, count in self.followers[history] if level == n]
        if not seen:
            return lower
        count = self.counts[n].get((*history, word), 0)
        taken = sum(self.discount(n, c) for c in seen)
        return (count - self.discount(n, count) + taken * lower) / sum(seen)


@given(texts=documents, order=st.integers(1, 4), text=st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=8))
def test_equals_a_direct_implementation(texts: list[list[int]], order: int, text: list[int]) -> None:
    direct = Direct(texts, order)
    padded = [END] * (order - 1) + text + [END]
    expected = [
        math.log2(direct.probability(tuple(padded[place - order + 1 : place]), padded[place]))
        for place in range(order - 1, len(padded))
    ]
    np.testing.assert_allclose(train(texts, order).log2_probabilities(np.array(text)), expected, rtol=1e-9)


def test_repeated_text_is_predicted_better_by_longer_grams() -> None:
    random = np.random.default_rng(0)
    phrase = [int(x) for x in random.integers(1, VOCABULARY, 12)]
    texts = [phrase] * 20 + [[int(x) for x in random.integers(1, VOCABULARY, 12)] for _ in range(20)]
    bits = [-train(texts, order).log2_probabilities(np.array(phrase)).sum() for order in (1, 2, 3, 5)]
    assert bits == sorted(bits, reverse=True)


def test_too_large_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit 63 bits"):
        train_kneser_ney(np.array([0, 1, 0], dtype=np.uint16), 1 << 13, 5)
