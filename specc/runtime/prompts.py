"""Prompts: the shipped demonstration set, and files given with --prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.diagnostics import Diagnostic, DiagnosticError, Span, error
from specc.runtime.tokenizer import Tokenizer, check_messages

DEMO_PROMPTS = Path(__file__).with_name("demo_prompts.jsonl")
DEMO_TEXTS = Path(__file__).with_name("demo_texts.jsonl")
MAX_BYTES = 64 << 20
MAX_SHOWN = 20
PROMPTS_HELP = "give a text file with one prompt per line, or a .jsonl file"
EXPECTED = "expected one of `prompt`, `messages`, `turns` or `question`"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to decode.

    `turns` are the user's messages in order; `messages` is what stands before them (a system message, or a
    given chat whose last message is the user's). `raw` prompts are continued as they are, without the chat
    template (HumanEval). `repetitive` marks texts on which prompt lookup should pay.
    """

    name: str
    turns: tuple[str, ...]
    messages: tuple[Mapping[str, str], ...] = ()
    category: str = ""
    repetitive: bool = False
    raw: bool = False

    def first_ids(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids of the first turn: by the chat template unless `raw` or the model has none."""
        if self.raw or (tokenizer.chat_template is None and not self.messages):
            return tokenizer.encode(self.turns[0])
        opening = [{"role": "user", "content": self.turns[0]}] if self.turns else []
        return tokenizer.encode_chat([*self.messages, *opening])


def demo_prompts() -> list[Prompt]:
    """The prompts of the project: chat, repetitive code, summarising, arithmetic, a list, and more."""
    return load_prompts(DEMO_PROMPTS)


def demo_texts() -> list[Prompt]:
    """Beginnings of texts for models that are no assistants: code, a word problem, prose."""
    return load_prompts(DEMO_TEXTS)


def load_prompts(path: Path) -> list[Prompt]:
    """Read a prompts file: `.jsonl` one object per line, any other one prompt per line; blank lines are skipped.

    Objects have `prompt` (HumanEval's too: with a `task_id` it is continued as it is), `messages`, `turns`
    (MT-Bench) or `question` (GSM8K), and optionally `name`, `category`, `repetitive` and `raw`. Raises
    DiagnosticError with every bad line (SPC450 to SPC452).
    """
    lines = _lines(path)
    prompts: list[Prompt] = []
    findings: list[Diagnostic] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            prompts.append(Prompt(name=f"{path.stem}-{number}", turns=(line,)))
            continue
        try:
            prompts.append(_from_object(json.loads(line), f"{path.stem}-{number}"))
        except (ValueError, RecursionError, DiagnosticError) as problem:
            text = problem.diagnostics[0].message if isinstance(problem, DiagnosticError) else str(problem)
            span = Span(str(path), number, 1, len(line) + 1, line)
            findings.append(error("SPC451", text, span, help=PROMPTS_HELP))
    if findings:
        more = len(findings) - MAX_SHOWN
        rest = [error("SPC451", f"{more} more lines of {path} are no prompts", help=PROMPTS_HELP)] if more > 0 else []
        raise DiagnosticError(findings[:MAX_SHOWN] + rest)
    if not prompts:
        raise DiagnosticError([error("SPC452", f"{path} has no prompts", help=PROMPTS_HELP)])
    return prompts


def one_prompt(text: str) -> Prompt:
    """The prompt of the command line. Raises DiagnosticError: SPC452 if empty, SPC450 if it is not UTF-8."""
    if not text:
        raise DiagnosticError([error("SPC452", "the prompt is empty", help="give a text: --prompt TEXT")])
    try:
        text.encode()
    except UnicodeEncodeError:
        help_text = "give the text in UTF-8, or in a file with --prompts"
        raise DiagnosticError([error("SPC450", "the prompt is not UTF-8 text", help=help_text)]) from None
    return Prompt("prompt", (text,))


def _lines(path: Path) -> list[str]:
    """Lines by newline only: other separators (U+2028) may stand inside a JSON text."""
    try:
        if path.stat().st_size > MAX_BYTES:
            message = f"{path} is larger than {MAX_BYTES} bytes"
            raise DiagnosticError([error("SPC450", message, help="give a smaller file")])
        return path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise DiagnosticError([error("SPC450", f"{path} does not exist", help=PROMPTS_HELP)]) from None
    except OSError as problem:
        message = f"{path} cannot be read: {problem.strerror}"
        raise DiagnosticError([error("SPC450", message, help=PROMPTS_HELP)]) from None
    except ValueError as problem:
        message = f"{path} is not UTF-8 text: {problem}"
        raise DiagnosticError([error("SPC450", message, help="save the file as UTF-8")]) from None


def _from_object(value: Any, default_name: str) -> Prompt:
    """One line's prompt. Raises ValueError or DiagnosticError with a text for the user."""
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {EXPECTED}")
    found = [key for key in ("prompt", "messages", "turns", "question") if key in value]
    if len(found) != 1:
        raise ValueError(f"has {' and '.join(f'`{key}`' for key in found)}: {EXPECTED}" if found else EXPECTED)
    name = next((str(value[key]) for key in ("name", "task_id", "question_id") if key in value), default_name)
    category, repetitive = value.get("category", ""), value.get("repetitive", False)
    raw = value.get("raw", "task_id" in value)
    if not isinstance(category, str) or not isinstance(repetitive, bool) or not isinstance(raw, bool):
        raise ValueError("`category` must be text, `repetitive` and `raw` must be true or false")
    messages: tuple[Mapping[str, str], ...] = ()
    turns: tuple[str, ...] = ()
    if found == ["messages"]:
        messages = tuple(check_messages(value["messages"]))
    elif found == ["turns"]:
        turns = _texts(value["turns"])
    else:
        turns = _texts([value[found[0]]])
    return Prompt(name, turns, messages, category, repetitive, raw)


def _texts(values: Any) -> tuple[str, ...]:
    """A non-empty list of non-empty texts."""
    if not isinstance(values, list) or not values or not all(isinstance(item, str) and item for item in values):
        raise ValueError("a prompt must be a text that is not empty (`turns`: a list of such texts)")
    return tuple(values)
