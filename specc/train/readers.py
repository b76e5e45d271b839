"""Readers: files of a source -> documents of plain text, and the texts of test prompts."""

from __future__ import annotations

import fnmatch
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

Reader: TypeAlias = Literal["python", "question-answer", "book"]

CALCULATOR_NOTE = re.compile(r"<<[^<>]*>>")
BOOK_HEADER = re.compile(r"\A(?:#+ (?:Title|Author|Year):.*\n|\s*\n|-{3,}\s*\n)+")
MIN_CHARACTERS = 64
MAX_LINE_CHARACTERS = 1000
MAX_DIGIT_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Document:
    """One text; `name` is unique in the corpus and the same on every machine."""

    name: str
    domain: str
    text: str


def read_files(
    folder: Path, reader: Reader, prefix: str, domain: str, exclude: Sequence[str], max_bytes: int
) -> Iterator[Document]:
    """The documents of one source, in the order of their names."""
    for name, text in _READERS[reader](folder, tuple(exclude), max_bytes):
        text = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n") + "\n"
        if len(text) >= MIN_CHARACTERS:
            yield Document(f"{prefix}/{name}", domain, text)


def _texts(folder: Path, suffix: str, exclude: Sequence[str], max_bytes: int) -> Iterator[tuple[str, str]]:
    """Files with that suffix that are UTF-8 text of a permitted size."""
    for path in sorted(folder.rglob(f"*{suffix}")):
        name = path.relative_to(folder).as_posix()
        if any(fnmatch.fnmatch(f"/{name}", pattern) for pattern in exclude) or not path.is_file():
            continue
        data = path.read_bytes()
        if len(data) > max_bytes:
            continue
        try:
            yield name, data.decode("utf-8")
        except UnicodeDecodeError:
            continue


def _python(folder: Path, exclude: Sequence[str], max_bytes: int) -> Iterator[tuple[str, str]]:
    """Source files without generated tables: too many digits, or lines that nobody wrote."""
    for name, text in _texts(folder, ".py", exclude, max_bytes):
        digits = sum(character.isdigit() for character in text)
        longest = max(map(len, text.splitlines()), default=0)
        if digits <= MAX_DIGIT_SHARE * len(text) and longest <= MAX_LINE_CHARACTERS:
            yield name, text


def _books(folder: Path, exclude: Sequence[str], max_bytes: int) -> Iterator[tuple[str, str]]:
    for name, text in _texts(folder, ".md", exclude, max_bytes):
        lines = (line.rstrip() for line in BOOK_HEADER.sub("", text).splitlines())
        yield name, re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _questions(path: Path, exclude: Sequence[str], max_bytes: int) -> Iterator[tuple[str, str]]:
    """JSON lines with `question` and `answer`, written as the chat template of the model writes them."""
    for number, row in enumerate(json_lines(path)):
        answer = CALCULATOR_NOTE.sub("", str(row["answer"]))
        yield f"{number:05}", f"Question: {row['question']}\nAnswer: {answer}"


_READERS: Mapping[Reader, Callable[[Path, Sequence[str], int], Iterator[tuple[str, str]]]] = MappingProxyType(
    {"python": _python, "question-answer": _questions, "book": _books}
)


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a .jsonl or .jsonl.gz file."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    for line in data.decode("utf-8").split("\n"):
        if line.strip():
            yield json.loads(line)


PROMPT_KEYS = ("question", "answer", "prompt", "canonical_solution", "turns", "reference")


def prompt_texts(path: Path) -> Iterator[str]:
    """What a file of test prompts holds: the prompts and, where given, their reference answers."""
    for row in json_lines(path):
        for key in PROMPT_KEYS:
            value = row.get(key)
            if isinstance(value, str):
                yield CALCULATOR_NOTE.sub("", value)
            elif isinstance(value, list):
                yield from (str(item) for item in value)
