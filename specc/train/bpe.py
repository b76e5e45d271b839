"""The tokenizer of the trained models: byte-level BPE, so that every text can be written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

END = "<|endoftext|>"
END_ID = 0
PIECES = r"'(?:s|t|re|ve|m|ll|d)| ?[\p{L}_]+|\p{N}| ?[^\s\p{L}\p{N}_]+|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How text is cut before merging: words, single digits (arithmetic), punctuation, line ends with indentation apart."""


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Byte-level BPE of `vocab_size` tokens, `END` (id 0) included, which opens and closes every document."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", pair=f"{END} $A {END} $B", special_tokens=[(END, END_ID)]
    )
    return tokenizer


def encode_all(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text, without `END`."""
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
