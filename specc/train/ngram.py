"""The baseline: an interpolated n-gram model with modified Kneser-Ney smoothing on the same tokens.

Chen and Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling" (1999), section 3: three
discounts per order from the counts of counts; lower orders count distinct left neighbours instead of occurrences,
except after the start of a document, which has no left neighbour. Every document is preceded by order - 1 END tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specc.train.bpe import END_ID
from specc.train.dataset import HeldOut, Tokens

Keys = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
KEY_BITS = 63


@dataclass(frozen=True, slots=True)
class Level:
    """One order: sorted n-gram keys with (c - D(c)) / c(h); sorted histories with their interpolation weight."""

    keys: Keys
    discounted: Floats
    histories: Keys
    weight: Floats
    discounts: tuple[float, float, float]

    def probability(self, keys: Keys, bits: int, lower: Floats) -> Floats:
        """p(w | h) of the n-grams `keys`, given the lower order's probabilities."""
        found, place = lookup(self.histories, keys >> bits)
        weight = np.where(found, self.weight[place], 1.0)
        found, place = lookup(self.keys, keys)
        return np.where(found, self.discounted[place], 0.0) + weight * lower


@dataclass(frozen=True, slots=True)
class KneserNey:
    """A trained model; `levels[n - 1]` is order n."""

    levels: tuple[Level, ...]
    bits: int
    vocab_size: int

    @property
    def order(self) -> int:
        return len(self.levels)

    def log2_probabilities(self, tokens: Tokens) -> Floats:
        """log2 p of every token of a document and of the END after it, each given the order - 1 before."""
        padded = np.concatenate([np.full(self.order - 1, END_ID), tokens, [END_ID]]).astype(np.int64)
        probability = np.full(tokens.size + 1, 1.0 / self.vocab_size)
        for order, level in enumerate(self.levels, 1):
            keys = ngram_keys(padded, order, self.bits)[self.order - order :]
            probability = level.probability(keys, self.bits, probability)
        return np.log2(probability)


def ngram_keys(tokens: Keys, order: int, bits: int) -> Keys:
    """The n-gram that ends at each position from order - 1 on, packed into an integer, oldest token highest."""
    length = tokens.size - order + 1
    keys = np.zeros(length, dtype=np.int64)
    for offset in range(order):
        keys = (keys << bits) | tokens[offset : offset + length]
    return keys


def lookup(table: Keys, keys: Keys) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.intp]]:
    """Whether each key is in the sorted table, and its place (some valid place if not)."""
    place = np.minimum(np.searchsorted(table, keys), max(table.size - 1, 0))
    return table[place] == keys, place


def train_kneser_ney(stream: Tokens, vocab_size: int, order: int = 5) -> KneserNey:
    """Count and smooth; `stream` is END, document, END, …, END. ValueError if n-grams do not fit 63 bits."""
    bits = max(1, (vocab_size - 1).bit_length())
    if bits * order > KEY_BITS:
        raise ValueError(f"{order}-grams of {vocab_size} tokens do not fit {KEY_BITS} bits")
    tokens = np.repeat(stream, np.where(stream == END_ID, max(order - 1, 1), 1)).astype(np.int64)
    # Only the first END of a run ends a document; the others are padding, which nothing predicts.
    predicted = (tokens != END_ID) | (np.concatenate([[END_ID], tokens[:-1]]) != END_ID)
    return KneserNey(tuple(_levels(tokens, predicted, order, bits, vocab_size))[::-1], bits, vocab_size)


def _levels(tokens: Keys, predicted: npt.NDArray[np.bool_], order: int, bits: int, vocab_size: int) -> Iterator[Level]:
    """From the highest order down."""
    above: Keys | None = None
    for n in range(order, 0, -1):
        keys, counts = np.unique(ngram_keys(tokens, n, bits)[predicted[n - 1 :]], return_counts=True)
        if above is not None:
            suffixes, neighbours = np.unique(above & ((1 << bits * n) - 1), return_counts=True)
            found, place = lookup(suffixes, keys)
            at_start = (keys >> bits * (n - 1) == END_ID) & (n > 1)
            counts = np.where(at_start | ~found, counts, neighbours[place])
        yield smoothed_level(keys, counts, bits)
        above = keys


def smoothed_level(keys: Keys, counts: Keys, bits: int) -> Level:
    """Discount one order's counts and share what is taken away among all words of each history."""
    discounts = estimated_discounts(counts)
    taken = np.array([0.0, *discounts])[np.minimum(counts, 3)]
    histories, first = np.unique(keys >> bits, return_index=True)
    totals = np.add.reduceat(counts, first).astype(np.float64)
    weight = np.add.reduceat(taken, first) / totals
    lengths = np.diff([*first, keys.size])
    return Level(keys, (counts - taken) / np.repeat(totals, lengths), histories, weight, discounts)


def estimated_discounts(counts: Keys) -> tuple[float, float, float]:
    """D1, D2, D3+ from the numbers of n-grams that occur once to four times (Chen and Goodman, equation 17)."""
    once, twice, thrice, four = (max(int((counts == c).sum()), 1) for c in (1, 2, 3, 4))
    share = once / (once + 2 * twice)
    found = (1 - 2 * share * twice / once, 2 - 3 * share * thrice / twice, 3 - 4 * share * four / thrice)
    first, second, third = (min(max(d, 0.05), c - 0.05) for c, d in enumerate(found, 1))
    return first, second, third


def domain_bits(model: KneserNey, held_out: HeldOut) -> Floats:
    """-log2 p of the held-out documents, summed by domain."""
    bits = np.zeros(len(held_out.domains))
    for domain, tokens in zip(held_out.domain, held_out.documents(), strict=True):
        bits[domain] -= model.log2_probabilities(tokens).sum()
    return bits
