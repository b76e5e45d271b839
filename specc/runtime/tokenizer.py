"""Text <-> token ids for a model folder: tokenizer.json, the chat template, stop tokens, streamed text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specc.diagnostics import DiagnosticError, error
from specc.models.families import LAYOUT, read_config

Message = Mapping[str, str]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
OWN_TEMPLATE = "give plain text prompts (--raw), or put chat_template.jinja into the folder"
MESSAGES = 'write [{"role": "user", "content": "…"}, …]'
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The tokenizer of one model folder.

    `stop_tokens` are the ids that end a generation, sorted. `chat_template` is a Jinja text, or None.
    """

    backend: tokenizers.Tokenizer
    stop_tokens: tuple[int, ...]
    chat_template: str | None
    special_tokens: Mapping[str, str]

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json and, where present, tokenizer_config.json, chat_template.jinja, generation_config.json.

        Raises DiagnosticError: SPC401 for malformed JSON, SPC440 without a usable tokenizer.json.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise _refused("SPC440", f"{folder} has no tokenizer.json", LAYOUT)
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as problem:
            if type(problem) is not Exception:  # `tokenizers` raises the bare class for every malformed file
                raise
            raise _refused("SPC440", f"{path} cannot be loaded: {problem}", "copy the file again") from None
        settings = _optional(folder, "tokenizer_config.json")
        special = {name: _token_text(settings.get(name)) for name in SPECIAL_TOKENS}
        return cls(backend, _stop_tokens(folder), _template(folder, settings), special)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of plain text; the tokenizer's own prefix (bos) is added unless told otherwise."""
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; incomplete UTF-8 becomes U+FFFD."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def encode_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a chat rendered by the model's template (SPC441, SPC442)."""
        text = self.render_chat(messages, add_generation_prompt=add_generation_prompt)
        return self.encode(text, add_special_tokens=False)

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The chat as the template's text. The template runs in a sandbox that cannot change what it is given."""
        checked = check_messages(messages)
        if self.chat_template is None:
            raise _refused("SPC441", "the model folder has no chat template", OWN_TEMPLATE)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_template_error
        try:
            template = environment.from_string(self.chat_template)
            return template.render(messages=checked, add_generation_prompt=add_generation_prompt, **self.special_tokens)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as problem:
            raise _refused("SPC441", f"the chat template failed: {problem}", OWN_TEMPLATE) from None

    def stream(self) -> TextStream:
        """A new detokenizer for one generated text."""
        return TextStream(self)


class TextStream:
    """Turns a growing list of tokens into text, piece by piece.

    What `push` and `finish` return, concatenated, is `decode` of all the tokens. Nothing is returned twice and
    no half character is returned: text that ends in U+FFFD waits for the next token (a token may end inside a
    character). Only the tokens since the last returned piece are decoded again.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = 0
        self._shown = 0

    def push(self, ids: Sequence[int]) -> str:
        """The text that these further tokens complete."""
        self._tokens.extend(ids)
        return self._advance(final=False)

    def finish(self) -> str:
        """What was held back, with incomplete characters as U+FFFD."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        """Decode from one settled piece before the new tokens, so that decoders that look back see the same."""
        shown = self._tokenizer.decode(self._tokens[self._start : self._shown])
        text = self._tokenizer.decode(self._tokens[self._start :])
        piece = text[len(shown) :]
        # Tokens without text of their own yet (a leading blank, half a character) stay with the next ones.
        if not piece or (text.endswith(REPLACEMENT) and not final):
            return ""
        self._start, self._shown = self._shown, len(self._tokens)
        return piece


def check_messages(messages: object) -> list[dict[str, str]]:
    """A non-empty list of {role, content} with text in both; SPC442 otherwise."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise _refused("SPC442", "messages must be a non-empty list of {role, content}", MESSAGES)
    checked = []
    for position, message in enumerate(messages):
        fields = message if isinstance(message, Mapping) else {}
        role, content = fields.get("role"), fields.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            raise _refused("SPC442", f"message {position + 1} must have text in `role` and `content`", MESSAGES)
        checked.append({"role": role, "content": content})
    return checked


def _stop_tokens(folder: Path) -> tuple[int, ...]:
    """`eos_token_id` of generation_config.json, else of config.json: one id or a list."""
    for name in ("generation_config.json", "config.json"):
        value = _optional(folder, name).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        if ids and all(type(item) is int and item >= 0 for item in ids):
            return tuple(sorted(set(ids)))
    return ()


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else `chat_template` (a text, or a list of named ones: `default`)."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as problem:
            raise _refused("SPC441", f"{path} cannot be read: {problem}", "save the file as UTF-8") from None
    value = settings.get("chat_template")
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _token_text(value: object) -> str:
    """A special token is written as text or as {content: …}."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _optional(folder: Path, name: str) -> dict[str, Any]:
    return read_config(folder, name) if (folder / name).is_file() else {}


def _raise_template_error(message: str) -> None:
    raise jinja2.TemplateError(message)


def _refused(code: str, message: str, help: str) -> DiagnosticError:
    return DiagnosticError([error(code, message, help=help)])
