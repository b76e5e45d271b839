"""Corpus: documents of a recipe, without copies, without test prompts, split into training and held-out files."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specc.train.readers import Document, prompt_texts, read_files
from specc.train.recipe import Recipe

NGRAM_WORDS = 13
WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class SourceCount:
    """What one source gave: documents and UTF-8 bytes that were kept, and documents dropped by reason."""

    documents: int
    bytes: int
    copies: int
    contaminated: int


@dataclass(frozen=True, slots=True)
class Corpus:
    """Training documents in a fixed, mixed order; held-out documents by domain and name; counts by source.

    `overlap` is the share of the held-out documents' runs of 13 words that the training text has too, by domain.
    """

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]
    counts: dict[str, SourceCount]
    overlap: dict[str, float]


def build_corpus(recipe: Recipe, root: Path) -> Corpus:
    """Read, filter and split. The same texts give the same corpus on every machine."""
    forbidden = forbidden_ngrams(text for name in recipe.test_prompts for text in prompt_texts(root / name))
    seen: set[bytes] = set()
    kept: list[Document] = []
    counts: dict[str, SourceCount] = {}
    for source in recipe.sources:
        reasons: Counter[str] = Counter()
        size = 0
        folder = source.folder(root)
        documents = read_files(folder, source.reader, source.name, source.domain, source.exclude, source.max_file_bytes)
        for document in documents:
            reason = _reason_to_drop(document, seen, forbidden)
            reasons[reason] += 1
            if reason == "":
                kept.append(document)
                size += len(document.text.encode())
        counts[source.name] = SourceCount(reasons[""], size, reasons["copy"], reasons["contaminated"])
    train, held_out = split(kept, recipe.held_out_share, recipe.held_out_bytes)
    return Corpus(train, held_out, counts, held_out_overlap(train, held_out))


def _reason_to_drop(document: Document, seen: set[bytes], forbidden: frozenset[int]) -> str:
    digest = hashlib.sha256(document.text.encode()).digest()
    if digest in seen:
        return "copy"
    seen.add(digest)
    return "contaminated" if forbidden and shares_ngram(document.text, forbidden) else ""


def words_of(text: str) -> list[str]:
    """Words as contamination counts them: letters, digits and underscores, without case."""
    return WORD.findall(text.lower())


def _ngram_keys(words: Sequence[str]) -> Iterable[int]:
    for start in range(len(words) - NGRAM_WORDS + 1):
        piece = " ".join(words[start : start + NGRAM_WORDS])
        yield int.from_bytes(hashlib.blake2b(piece.encode(), digest_size=8).digest(), "big")


def forbidden_ngrams(texts: Iterable[str]) -> frozenset[int]:
    """Keys of every run of 13 words of the test prompts."""
    return frozenset(key for text in texts for key in _ngram_keys(words_of(text)))


def shares_ngram(text: str, forbidden: frozenset[int]) -> bool:
    """Whether the text repeats 13 words of a test prompt."""
    return any(key in forbidden for key in _ngram_keys(words_of(text)))


def held_out_overlap(train: Sequence[Document], held_out: Sequence[Document]) -> dict[str, float]:
    """How much of the held-out text (different runs of 13 words) stands in the training text word for word."""
    wanted = {domain: set[int]() for domain in sorted({document.domain for document in held_out})}
    for document in held_out:
        wanted[document.domain].update(_ngram_keys(words_of(document.text)))
    everything = frozenset().union(*wanted.values())
    found = {key for document in train for key in _ngram_keys(words_of(document.text)) if key in everything}
    return {domain: len(keys & found) / max(1, len(keys)) for domain, keys in wanted.items()}


def order_key(document: Document) -> bytes:
    """A fixed random order that depends on the name only, so that a file stays on its side of the split."""
    return hashlib.sha256(document.name.encode()).digest()


def split(
    documents: Sequence[Document], share: float, at_least: int
) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """(training, held-out): of each domain the first files in `order_key` order, up to the wanted bytes.

    A domain never gives more than half of its bytes (small corpora), and gives at least one file if it has two.
    """
    train: list[Document] = []
    held_out: list[Document] = []
    for domain in sorted({document.domain for document in documents}):
        mine = sorted((d for d in documents if d.domain == domain), key=order_key)
        sizes = [len(document.text.encode()) for document in mine]
        wanted = min(max(share * sum(sizes), at_least), sum(sizes) / 2)
        taken, count = 0, 0
        while count < len(mine) - 1 and taken < wanted:
            taken += sizes[count]
            count += 1
        held_out += mine[:count]
        train += mine[count:]
    return tuple(sorted(train, key=order_key)), tuple(sorted(held_out, key=lambda d: (d.domain, d.name)))
