"""Where each key and value of a spec was written, so that errors and IR nodes can point at the YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from specc.diagnostics import Span

Path = tuple[str | int, ...]

# YAML's line breaks; str.splitlines() also splits at form feeds and others, which YAML's line counts do not.
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Place:
    """The spans of one entry: its key (None for list items and the root) and its value.

    `block` says that the value is an indented collection, whose span is less telling than its key's.
    """

    key: Span | None
    value: Span
    block: bool = False


@dataclass(frozen=True, slots=True)
class SourceMap:
    """Spans by key path; `span("draft", "num_steps")` falls back to the nearest enclosing entry."""

    file: str
    places: Mapping[Path, Place] = field(default_factory=lambda: MappingProxyType({}))

    def span(self, *path: str | int) -> Span | None:
        """The value's span (the key's for an indented collection), of the path or its nearest parent."""
        place = self._nearest(path)
        if place is None:
            return None
        return place.key if place.block and place.key is not None else place.value

    def key_span(self, *path: str | int) -> Span | None:
        """The key's span of the path or its nearest parent (the value's where there is no key)."""
        place = self._nearest(path)
        if place is None:
            return None
        return place.key or place.value

    def has(self, *path: str | int) -> bool:
        """Whether the entry was written, in the file or in an override (a default was not)."""
        return path in self.places

    def _nearest(self, path: Path) -> Place | None:
        for length in range(len(path), -1, -1):
            place = self.places.get(path[:length])
            if place is not None:
                return place
        return None


def split_lines(text: str) -> list[str]:
    """The lines of a YAML text as YAML counts them, without their breaks."""
    return _LINE_BREAK.split(text)
