"""Prompts to train drafters on: what users would send, without anything that tests ask.

- `gsm8k`: the questions of GSM8K's training part;
- `stubs`: functions of the standard library to be completed;
- `user_turns`: for chat models, messages that the model itself writes in the user's place (temperature 1);
- `second_turns`: the model's own next user message behind its answer to one of those;
- `beginnings`: for models that are no assistants, beginnings of texts that they were trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from specc.diagnostics import DiagnosticError, error
from specc.output import write_text
from specc.runtime.tokenizer import Tokenizer
from specc.train.bpe import END_ID
from specc.train.dataset import load_dataset
from specc.train.draft.stubs import library_files, library_stubs
from specc.train.readers import json_lines

Tokens: TypeAlias = npt.NDArray[Any]
"""Ids of one document, of some integer type."""
GSM8K_TRAIN = "gsm8k/train.jsonl.gz"
MARKS = ("\ue000first\ue000", "\ue000second\ue000", "\ue000third\ue000")
MIN_BEGINNING, MAX_BEGINNING = 20, 60
SIMPLE = "train a head for a model whose template writes one message after the other"
AS_MESSAGE = 4
PIECE = 300
"""Tokens between the places of a document where beginnings are taken."""
LOOKED_AT = 140
"""Tokens of a document that a beginning is cut from."""
LIBRARY_CHARACTERS = 20_000
"""Of every source of the standard library."""


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """What a chat template writes around messages: before the first user message, between a user message and an answer
    that is there, between that and the next user message, and behind the last one, where the model goes on.
    `assistant`: a stop token ends the user's message, so that the model can be asked to write one itself.
    """

    before_user: str
    before_answer: str
    after_answer: str
    after_last: str
    assistant: bool

    def conversation(self, messages: Sequence[str]) -> str:
        """Messages in turn, the user's first: text up to where the other one goes on."""
        text = self.before_user
        for number, message in enumerate(messages):
            last = self.after_last if number + 1 == len(messages) else self.before_answer
            text += message + (self.after_answer if number % 2 else last)
        return text


def chat_frame(tokenizer: Tokenizer) -> ChatFrame | None:
    """The frame of the model's template; None without one. SPC441 for templates that do more than join messages."""
    if tokenizer.chat_template is None:
        return None
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, MARKS, strict=True)]
    text = tokenizer.render_chat(messages)
    pieces: list[str] = []
    for mark in MARKS:
        piece, found, text = text.partition(mark)
        if not found:
            message = "the chat template does not write messages one after the other"
            raise DiagnosticError([error("SPC441", message, help=SIMPLE)])
        pieces.append(piece)
    alone = tokenizer.render_chat(messages[:1]).partition(MARKS[0])
    if (alone[0], alone[2]) != (pieces[0], text):
        message = "the chat template writes the only message unlike the first of several"
        raise DiagnosticError([error("SPC441", message, help=SIMPLE)])
    stops = [str(tokenizer.backend.id_to_token(token)) for token in tokenizer.stop_tokens]
    return ChatFrame(pieces[0], pieces[1], pieces[2], text, bool(stops) and text.startswith(tuple(stops)))


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """One prompt: `messages` in turn with the user's first, or with `raw` one text to go on with."""

    source: str
    messages: tuple[str, ...]
    raw: bool = False

    def text(self, frame: ChatFrame | None) -> str:
        """What is tokenised."""
        return self.messages[0] if self.raw or frame is None else frame.conversation(self.messages)

    @property
    def words(self) -> str:
        """What is compared with test prompts."""
        return "\n".join(self.messages)


def encode_prompts(tokenizer: Tokenizer, frame: ChatFrame | None, prompts: Sequence[TrainingPrompt]) -> list[list[int]]:
    """Token ids as the runtime makes them: templates bring their own special tokens, raw texts get the tokenizer's."""
    texts = [prompt.text(frame) for prompt in prompts]
    raw = [prompt.raw or frame is None for prompt in prompts]
    encoded: dict[int, list[int]] = {}
    for special in (False, True):
        chosen = [number for number, is_raw in enumerate(raw) if is_raw == special]
        found = tokenizer.backend.encode_batch([texts[number] for number in chosen], add_special_tokens=special)
        encoded |= {number: list(item.ids) for number, item in zip(chosen, found, strict=True)}
    return [encoded[number] for number in range(len(prompts))]


def gsm8k_prompts(data: Path, count: int) -> list[TrainingPrompt]:
    """Questions of GSM8K's training part. SPC471 if it is not in `data`."""
    path = data / GSM8K_TRAIN
    if not path.is_file():
        raise DiagnosticError([error("SPC471", f"{data} has no {GSM8K_TRAIN}", help="name its folder with --data DIR")])
    return [TrainingPrompt("gsm8k", (str(row["question"]),)) for row in islice(json_lines(path), count)]


def stub_prompts(count: int, frame: ChatFrame | None, root: Path | None = None) -> list[TrainingPrompt]:
    """Stubs: texts to go on with, as HumanEval is asked; for assistants every fourth is a user's message."""
    assistant = frame is not None and frame.assistant
    return [
        TrainingPrompt("stubs", (stub,), raw=not assistant or number % AS_MESSAGE != AS_MESSAGE - 1)
        for number, stub in enumerate(library_stubs(count, root))
    ]


def beginning_prompts(tokenizer: Tokenizer, corpus: Path | None, count: int) -> list[TrainingPrompt]:
    """The first 20 to 60 tokens from different places of documents: of all the beginnings, then 300 tokens on, ….

    Documents are those of a prepared corpus, without its questions (they have a source of their own); without a corpus,
    the sources of the standard library.
    """
    documents = list(islice(_library(tokenizer), max(count, 1)) if corpus is None else _corpus(corpus))
    longest = max(map(len, documents), default=0)
    places = ((document, start) for start in range(0, longest, PIECE) for document in documents)
    prompts = (_beginning(tokenizer, document, start) for document, start in places if start + PIECE <= len(document))
    return list(islice((prompt for prompt in prompts if prompt is not None), count))


def _beginning(tokenizer: Tokenizer, document: Tokens, start: int) -> TrainingPrompt | None:
    text = tokenizer.decode(document[start : start + LOOKED_AT].tolist())
    if start:
        text = text.partition("\n")[2]
    size = MIN_BEGINNING + int.from_bytes(hashlib.sha256(text.encode()).digest()[:2], "big") % (
        MAX_BEGINNING - MIN_BEGINNING + 1
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    shown = tokenizer.decode(ids[:size])
    return TrainingPrompt("beginnings", (shown,), raw=True) if len(ids) >= MIN_BEGINNING else None


def _corpus(folder: Path) -> Iterator[Tokens]:
    """Training documents of a prepared corpus, in its own mixed order."""
    data = load_dataset(folder)
    sources = data.facts["recipe"]["sources"]
    questions = {source["domain"] for source in sources if source["reader"] == "question-answer"}
    left_out = [number for number, name in enumerate(data.held_out.domains) if name in questions]
    ends = (data.train == END_ID).nonzero()[0]
    for first, last, domain in zip(ends[:-1], ends[1:], data.train_domain, strict=True):
        if domain not in left_out:
            yield data.train[first + 1 : last]


def _library(tokenizer: Tokenizer) -> Iterator[Tokens]:
    for path in library_files():
        text = path.read_text("utf-8", errors="replace")[:LIBRARY_CHARACTERS]
        yield np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.uint32)


def write_prompts(path: Path, prompts: Iterable[TrainingPrompt]) -> None:
    """One JSON object per line: source, messages, and raw where true."""
    rows = ({"source": p.source, "messages": p.messages} | ({"raw": True} if p.raw else {}) for p in prompts)
    write_text(path, "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows))


def read_prompts(path: Path) -> list[TrainingPrompt]:
    """What `write_prompts` wrote. SPC478 for anything else."""
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
        return [TrainingPrompt(row["source"], tuple(row["messages"]), bool(row.get("raw", False))) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        message = f"{path} is no list of training prompts: {problem}"
        raise DiagnosticError([error("SPC478", message, help="remove it: it is made again")]) from None
