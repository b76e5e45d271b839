"""Whether a training text shares 13 words in a row with a test prompt. Such texts are dropped and counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.diagnostics import DiagnosticError, error
from specc.train.readers import prompt_texts

NGRAM_WORDS = 13
WORD = re.compile(r"[^\W_]+")
TEST_SETS = ("mt_bench/question.jsonl", "humaneval/HumanEval.jsonl.gz", "gsm8k/test.jsonl")
HASH_SEED = 13

Keys = npt.NDArray[np.uint64]


def words_of(text: str) -> list[str]:
    """Lower-case runs of letters and digits."""
    return WORD.findall(text.lower())


class Overlap:
    """All runs of 13 words of some texts, as 64-bit keys.

    Words are numbered as they come (0: a word of no test text) and a run's key is a sum of numbers times fixed random
    factors modulo 2^64: two different runs have the same key with a probability of about 2^-60, and a text is looked
    through without a loop over its runs.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._numbers: dict[str, int] = {}
        # Odd factors: no factor loses the high digits of a number.
        drawn = np.random.default_rng(HASH_SEED).integers(0, 1 << 63, NGRAM_WORDS, dtype=np.uint64)
        self._factors: Keys = drawn * np.uint64(2) + np.uint64(1)
        found = [self._keys([self._number(word) for word in words_of(text)]) for text in texts]
        self._known: Keys = np.unique(np.concatenate(found)) if found else np.zeros(0, np.uint64)

    def _number(self, word: str) -> int:
        return self._numbers.setdefault(word, len(self._numbers) + 1)

    def _keys(self, numbers: Sequence[int]) -> Keys:
        if len(numbers) < NGRAM_WORDS:
            return np.zeros(0, np.uint64)
        runs = np.lib.stride_tricks.sliding_window_view(np.array(numbers, np.uint64), NGRAM_WORDS)
        keys: Keys = (runs * self._factors).sum(-1, dtype=np.uint64)
        return keys

    def __len__(self) -> int:
        return len(self._known)

    def shared_by(self, text: str) -> bool:
        """Whether the text has a run of 13 words that one of the texts has."""
        numbers: Any = self._numbers
        keys = self._keys([numbers.get(word, 0) for word in words_of(text)])
        if not len(keys) or not len(self._known):
            return False
        places = np.searchsorted(self._known, keys).clip(max=len(self._known) - 1)
        return bool((self._known[places] == keys).any())


def overlap_with_tests(data: Path) -> Overlap:
    """The test prompts of MT-Bench, HumanEval and GSM8K in `data`, with their reference answers. SPC471 if absent."""
    absent = [name for name in TEST_SETS if not (data / name).is_file()]
    if absent:
        message = f"{data} has no {', '.join(absent)}: training text is checked against these test prompts"
        raise DiagnosticError([error("SPC471", message, help="name the folder that has them with --data DIR")])
    return Overlap(text for name in TEST_SETS for text in prompt_texts(data / name))
