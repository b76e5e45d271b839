"""Prepared data: the corpus as token arrays in a folder that training only has to read.

    corpus/train.npz     tokens (uint16): END, document, END, document, …, END; domain of each document
    corpus/held_out.npz  tokens, starts, bytes, domain of each held-out document
    corpus/tokenizer.json, corpus/corpus.json (recipe, counts, what was dropped)

The folder is built under a temporary name and renamed, so that it is whole or absent.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from specc.diagnostics import DiagnosticError, error
from specc.output import cannot_write, make_folder, reason_of
from specc.train.bpe import END_ID, encode_all, train_tokenizer
from specc.train.corpus import Corpus, build_corpus
from specc.train.readers import Document
from specc.train.recipe import Recipe, check_sources

Tokens = npt.NDArray[np.uint16]
BATCH_DOCUMENTS = 256
MAX_VOCABULARY = 1 << 16


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out documents: `tokens[starts[i]:starts[i + 1]]` without END, UTF-8 bytes and domain number of each."""

    tokens: Tokens
    starts: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    domain: npt.NDArray[np.int64]
    domains: tuple[str, ...]

    def documents(self) -> Iterator[Tokens]:
        """The documents' tokens."""
        for start, stop in zip(self.starts[:-1], self.starts[1:], strict=True):
            yield self.tokens[start:stop]

    def bytes_of(self, domain: int) -> int:
        """UTF-8 bytes of a domain."""
        return int(self.bytes[self.domain == domain].sum())


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training stream and the domain number of each of its documents, held-out documents, vocabulary size, and
    `facts` for the model card.
    """

    train: Tokens
    train_domain: npt.NDArray[np.int64]
    held_out: HeldOut
    vocab_size: int
    folder: Path
    facts: dict[str, Any]


def domain_stream(data: Dataset, domain: int) -> Tokens:
    """The documents of one domain, as END, document, END, …, END."""
    ends = np.flatnonzero(data.train == END_ID)
    chosen = np.repeat(data.train_domain == domain, np.diff(ends))
    return np.concatenate([data.train[:1], data.train[1:][chosen]])


def prepare(recipe: Recipe, root: Path, folder: Path, vocab_size: int) -> Dataset:
    """Build the folder unless it is there; returns what it holds. SPC471 if sources are missing, SPC460 if
    it can't be written: then nothing of it is left."""
    if not folder.is_dir():
        check_sources(recipe, root)
        corpus = build_corpus(recipe, root)
        if not corpus.train or not corpus.held_out:
            message = f"the recipe `{recipe.name}` gives too few documents to split"
            raise DiagnosticError([error("SPC471", message, help="add sources to the recipe")])
        temporary = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
        make_folder(temporary)
        try:
            _write(temporary, corpus, recipe, vocab_size)
            os.replace(temporary, folder)
        except OSError as problem:
            raise cannot_write(folder, reason_of(problem), "make room; the same command begins anew") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return load_dataset(folder)


def _write(folder: Path, corpus: Corpus, recipe: Recipe, vocab_size: int) -> None:
    tokenizer = train_tokenizer((document.text for document in corpus.train), vocab_size)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    stream = stream_of(tokenizer, corpus.train)
    domains = sorted({document.domain for document in corpus.held_out})
    domain = np.array([domains.index(document.domain) for document in corpus.train])
    np.savez_compressed(folder / "train.npz", tokens=stream, domain=domain)
    np.savez_compressed(folder / "held_out.npz", **held_out_arrays(tokenizer, corpus.held_out))
    facts = {
        "recipe": asdict(recipe),
        "vocab_size": tokenizer.get_vocab_size(),
        "domains": domains,
        "counts": {name: asdict(count) for name, count in corpus.counts.items()},
        "train_documents": len(corpus.train),
        "train_tokens": int(stream.size) - 1,
        "train_bytes": sum(len(document.text.encode()) for document in corpus.train),
        "held_out_overlap": corpus.overlap,
        "held_out_names": [document.name for document in corpus.held_out],
    }
    (folder / "corpus.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def stream_of(tokenizer: tokenizers.Tokenizer, documents: Sequence[Document]) -> Tokens:
    """END, document, END, document, …, END."""
    pieces: list[Tokens] = [np.array([END_ID], dtype=np.uint16)]
    for start in range(0, len(documents), BATCH_DOCUMENTS):
        batch = [document.text for document in documents[start : start + BATCH_DOCUMENTS]]
        pieces += [np.array([*ids, END_ID], dtype=np.uint16) for ids in encode_all(tokenizer, batch)]
    return np.concatenate(pieces)


def held_out_arrays(tokenizer: tokenizers.Tokenizer, documents: Sequence[Document]) -> dict[str, Any]:
    """The arrays of `HeldOut`, by name."""
    encoded = encode_all(tokenizer, [document.text for document in documents])
    domains = sorted({document.domain for document in documents})
    return {
        "tokens": np.concatenate([np.array(ids, dtype=np.uint16) for ids in encoded]),
        "starts": np.cumsum([0, *(len(ids) for ids in encoded)]),
        "bytes": np.array([len(document.text.encode()) for document in documents]),
        "domain": np.array([domains.index(document.domain) for document in documents]),
    }


def load_held_out(path: Path, domains: Sequence[str]) -> HeldOut:
    """Read `held_out.npz`."""
    with np.load(path, allow_pickle=False) as file:
        return HeldOut(file["tokens"], file["starts"], file["bytes"], file["domain"], tuple(domains))


def load_dataset(folder: Path) -> Dataset:
    """Read a prepared folder. SPC472 if it is not one."""
    try:
        facts = json.loads((folder / "corpus.json").read_text("utf-8"))
        with np.load(folder / "train.npz", allow_pickle=False) as file:
            train, domain = file["tokens"], file["domain"]
        held_out = load_held_out(folder / "held_out.npz", facts["domains"])
        return Dataset(train, domain, held_out, int(facts["vocab_size"]), folder, facts)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        message = f"{folder} is no prepared corpus: {problem}"
        raise DiagnosticError(
            [error("SPC472", message, help="give a folder that `specc train target` prepared, or remove it")]
        ) from None
