"""Tokens of the IR text, each with its place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from torch.fx import Node

from specc.diagnostics import DiagnosticError, Span, error
from specc.ir.dims import TEXT_DTYPE, parse_dim

Kind = Literal["string", "node", "body", "number", "word", "punctuation", "comment", "newline", "end"]
MAX_DEPTH = 64
_TOKEN = re.compile(
    r"""(?P<space>[ \t]+)|(?P<comment>\#[^\n]*)|(?P<newline>\n)|(?P<string>"(?:[^"\\\n]|\\.)*")
    |%(?P<node>[A-Za-z_]\w*)|(?P<body>@)|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<word>-?[A-Za-z_][A-Za-z0-9_.-]*)|(?P<punctuation>\.\.\.|[{}()\[\]=,:*])""",
    re.VERBOSE | re.ASCII,
)
_CONSTANTS = {"None": None, "True": True, "False": False, "inf": float("inf"), "-inf": float("-inf")}
_SCALARS = {"int": 0, "float": 0.0, "bool": False, "none": None}


@dataclass(frozen=True, slots=True)
class Token:
    """`text` without the sigil of nodes; offsets count characters from the start of the text."""

    kind: Kind
    text: str
    start: int
    stop: int


class Reader:
    """A cursor over the tokens, with literals and types; every error is a DiagnosticError with a span."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.tokens = list(self._tokenize())
        self.at = 0
        self.depth = 0

    def _tokenize(self) -> Iterator[Token]:
        at = 0
        while at < len(self.text):
            match = _TOKEN.match(self.text, at)
            if match is None or match.lastgroup is None:
                self.fail("SPC301", f"unexpected character {self.text[at]!r}", Token("end", "", at, at + 1))
            if match.lastgroup != "space":
                kind: Any = match.lastgroup
                yield Token(kind, match.group(match.lastgroup), at, match.end())
            at = match.end()
        yield Token("end", "", at, at)

    def span(self, token: Token) -> Span:
        """Where the token stands."""
        first = self.text.rfind("\n", 0, token.start) + 1
        last = self.text.find("\n", token.start)
        line = self.text.count("\n", 0, token.start) + 1
        source = self.text[first : len(self.text) if last < 0 else last]
        return Span(self.file, line, token.start - first + 1, token.stop - first + 1, source)

    def fail(self, code: str, message: str, token: Token | None = None, help: str = "") -> NoReturn:
        """Raise a DiagnosticError at the token (the current one)."""
        place = self.span(self.current if token is None else token)
        raise DiagnosticError([error(code, message, place, help=help)])

    @property
    def current(self) -> Token:
        """The token under the cursor."""
        return self.tokens[self.at]

    def take(self) -> Token:
        """The current token; moves on."""
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def sees(self, text: str) -> bool:
        """True where the current token is this punctuation or word."""
        return self.current.text == text and self.current.kind in ("punctuation", "word", "body")

    def accept(self, text: str) -> bool:
        """Take the token where it is this punctuation or word."""
        if self.sees(text):
            self.take()
            return True
        return False

    def expect(self, text: str) -> Token:
        """Take this punctuation or word, or fail."""
        if not self.sees(text):
            self.fail("SPC301", f"expected `{text}`")
        return self.take()

    def kind(self, kind: Kind, what: str) -> Token:
        """Take a token of this kind, or fail."""
        if self.current.kind != kind:
            self.fail("SPC301", f"expected {what}")
        return self.take()

    def name(self) -> str:
        """A plain word, or a JSON string."""
        if self.current.kind == "string":
            return self._string()
        return self.kind("word", "a name").text

    def integer(self) -> int:
        """A whole number."""
        token = self.kind("number", "a whole number")
        value = self._number(token)
        if type(value) is not int:
            self.fail("SPC301", "expected a whole number", token)
        return value

    def end_line(self) -> str:
        """The end of a line; returns its comment ('' without one) and skips empty lines."""
        comment = self.take().text if self.current.kind == "comment" else ""
        if self.current.kind not in ("newline", "end"):
            self.fail("SPC301", "expected the end of the line")
        self.skip_lines()
        return comment

    def skip_lines(self) -> None:
        """Skip line ends and lines that hold only a comment."""
        while self.current.kind in ("newline", "comment"):
            self.take()

    def _string(self) -> str:
        token = self.take()
        try:
            return str(json.loads(token.text))
        except json.JSONDecodeError:
            self.fail("SPC301", "bad escape in a string", token)

    def _number(self, token: Token) -> int | float:
        try:
            return int(token.text) if re.fullmatch(r"-?\d+", token.text) else float(token.text)
        except ValueError:
            self.fail("SPC301", "a number of too many digits", token)

    def type(self) -> Any:
        """A type as a fake value: `f32[B,4]`, `(…, …)`, `30 x f32[4]`, `int`, `none`; `?` can't be read."""
        with _Nested(self):
            if self.current.kind == "number":
                count = self.integer()
                self.expect("x")
                if not 0 <= count <= 100_000:
                    self.fail("SPC301", "too many parts in a tuple type")
                return (self.type(),) * count
            if self.accept("("):
                return tuple(self._until(")", self.type))
            token = self.kind("word", "a type")
            if token.text in _SCALARS and not self.sees("["):
                return _SCALARS[token.text]
            if token.text not in TEXT_DTYPE:
                self.fail("SPC302", f"unknown type `{token.text}`", token)
            return self._tensor(TEXT_DTYPE[token.text])

    def declared(self) -> tuple[tuple[int, ...], torch.dtype]:
        """A tensor type as (shape, dtype)."""
        start = self.current
        value = self.type()
        if not isinstance(value, torch.Tensor):
            self.fail("SPC301", "expected a tensor type", start)
        return tuple(value.shape), value.dtype

    def _tensor(self, dtype: torch.dtype) -> torch.Tensor:
        from_bracket = self.expect("[")
        shape = self._until("]", self._dim)
        total = 1
        for size in shape:
            total *= max(size, 1)
        if min(shape, default=0) < 0 or total >= 2**60:
            self.fail("SPC301", "a shape that no tensor can have", from_bracket)
        return self.make_fake(shape, dtype)

    def make_fake(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        """Overridden where fakes must live in a mode."""
        return torch.empty(shape, dtype=dtype, device="meta")

    def _dim(self) -> int:
        start = self.current
        text = self.take().text
        while self.accept("*"):
            text += "*" + self.take().text
        try:
            return parse_dim(text)
        except ValueError:
            self.fail("SPC301", f"`{text}` is not a size", start)

    def _until(self, closing: str, item: Any) -> list[Any]:
        """Items separated by commas up to the closing bracket, which is taken; a trailing comma is fine."""
        items = []
        while not self.accept(closing):
            items.append(item())
            if not self.sees(closing):
                self.expect(",")
        return items

    def items(self, closing: str) -> list[Any]:
        """Literals up to the closing bracket."""
        return self._until(closing, self.literal)

    def literal(self) -> Any:
        """An argument, see `text.literal_text`."""
        with _Nested(self):
            token = self.current
            if token.kind == "node":
                return self.node(self.take())
            if token.kind == "number":
                return self._number(self.take())
            if token.kind == "string":
                return self._string()
            if self.accept("["):
                return self.items("]")
            if self.accept("("):
                return tuple(self.items(")"))
            if self.accept("{"):
                return dict(self._until("}", self._pair))
            if self.accept("..."):
                return ...
            return self._word(self.kind("word", "a value"))

    def node(self, token: Token) -> Node:
        """The node that a token names."""
        self.fail("SPC302", f"no node `%{token.text}` here", token)

    def _pair(self) -> tuple[Any, Any]:
        start = self.current
        key = self.literal()
        if not isinstance(key, (str, int, float, bool)):
            self.fail("SPC301", "a key is a string or a number", start)
        self.expect(":")
        return key, self.literal()

    def _word(self, token: Token) -> Any:
        text = token.text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if text == "nan":
            return float("nan")
        if text in TEXT_DTYPE:
            return TEXT_DTYPE[text]
        if text == "slice" and self.accept("("):
            bounds = self.items(")")
            return slice(*bounds) if len(bounds) == 3 else self.fail("SPC301", "a slice has three parts", token)
        if text == "device" and self.accept("("):
            return self._device(token, self.items(")"))
        if text.startswith("torch."):
            value = getattr(torch, text.removeprefix("torch."), None)
            if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
                return value
        if text == "py":
            self.fail("SPC302", "this value has no text form; it can be printed but not read back", token)
        self.fail("SPC302", f"unknown value `{text}`", token)

    def _device(self, token: Token, arguments: list[Any]) -> torch.device:
        try:
            return torch.device(*arguments)
        except (RuntimeError, TypeError):
            self.fail("SPC302", "unknown device", token)


class _Nested:
    """Bounds the nesting of brackets, so that hostile text can't exhaust the stack."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __enter__(self) -> None:
        self.reader.depth += 1
        if self.reader.depth > MAX_DEPTH:
            self.reader.fail("SPC301", f"nested more than {MAX_DEPTH} deep")

    def __exit__(self, *_: object) -> None:
        self.reader.depth -= 1
