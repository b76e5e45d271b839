"""HTML as values: text is escaped where it becomes HTML, and nothing else does.

A report shows text of specs, prompts and result files, which may hold anything. `Html` is text that is HTML already;
everything else that `element` is given is escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

NAME = re.compile(r"[a-z][a-z0-9-]*")
VOID = frozenset({"br", "col", "hr", "input", "line", "meta", "path", "polyline", "rect", "circle"})
"""Elements that are written without content here: HTML's own, and shapes of SVG."""
SHAPES = frozenset({"line", "path", "polyline", "rect", "circle"})


class Html(str):
    """Text that is HTML: made by `element`, `text` and `joined`, never of somebody's input."""

    __slots__ = ()


Content = Html | str | int | float | None
Attribute = str | int | float | bool | None


def text(value: object) -> Html:
    """A value as text; characters that HTML or a browser would not take are replaced."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(visible("" if value is None else str(value)), quote=True))


def visible(value: str) -> str:
    """Text without characters that are invisible or change the direction: they become `\\x1b`, `\\u202e`."""
    return "".join(char if char in "\n\t" or char.isprintable() else ascii(char)[1:-1] for char in value)


def joined(parts: Iterable[Content], between: str = "") -> Html:
    """The parts, escaped where they are no HTML."""
    return Html(str(text(between)).join(text(part) for part in parts))


def element(tag: str, /, *content: Content, **attributes: Attribute) -> Html:
    """`<tag attribute="...">content</tag>`.

    A trailing `_` of an attribute's name is dropped (`class_`), other `_` become `-`; None and False leave it out, True
    writes the bare name. Raises ValueError for names that are none.
    """
    if not NAME.fullmatch(tag):
        raise ValueError(f"{tag!r} is no element")
    words = [tag]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        shown = "" if value is True else f'="{text(value)}"'
        words.append(f"{attribute}{shown}")
    head = " ".join(words)
    if tag in VOID and not content:
        return Html(f"<{head}/>" if tag in SHAPES else f"<{head}>")
    return Html(f"<{head}>{joined(content)}</{tag}>")


def anchor(*parts: object) -> str:
    """An id of letters, digits and dashes, the same for the same parts and others for others."""
    escaped = ("".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in str(part)) for part in parts)
    return "-".join(escaped)


def details(summary: Content, *content: Content, is_open: bool = False, **attributes: Attribute) -> Html:
    """A part that is opened by a click."""
    return element("details", element("summary", summary), *content, open=is_open, **attributes)


def section(identity: str, title: str, *content: Content) -> Html:
    """A section with its heading."""
    return element("section", element("h2", title), *content, id=identity)
