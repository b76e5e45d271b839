"""Reads a report as a browser would: elements, ids, links and text; what is not well formed is an error."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

VOID = frozenset({"meta", "br", "hr", "col", "input"})
PARTS = "html head title style body header nav main section article footer script"
CONTENT = "h1 h2 h3 h4 a details summary figure figcaption div dl dt dd code p ul ol li span pre strong"
TABLES_AND_DRAWINGS = "table thead tbody tr th td svg text rect line polyline circle"
KNOWN = VOID.union(PARTS.split(), CONTENT.split(), TABLES_AND_DRAWINGS.split())


class Reading(HTMLParser):
    """One page. `problems` is empty for a page that is well formed, links into itself only and loads nothing."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.page = page
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.texts: list[str] = []
        self.raw: dict[str, list[str]] = {"style": [], "script": []}
        self.policy = ""
        self.problems: list[str] = []
        self.feed(page)
        self.close()
        self.problems += [f"{name} is not closed" for name in self.open]
        self.problems += [f"{link} leads nowhere" for link in self.links if link[:1] != "#" or link[1:] not in self.ids]
        self.problems += [f"policy has no hash of the {name}" for name in self.raw if not self.allowed(name)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in KNOWN:
            self.problems.append(f"an element {tag}")
        self.problems += [f"{tag} has {key}" for key in found if key in ("src", "style", "srcset") or key[:2] == "on"]
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        if "id" in found:
            if found["id"] in self.ids:
                self.problems.append(f"two elements are {found['id']}")
            self.ids.add(str(found["id"]))
        if "href" in found:
            self.links.append(str(found["href"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"{tag} ends where it does not")

    def handle_data(self, data: str) -> None:
        where = self.open[-1] if self.open else ""
        if where in self.raw:
            self.raw[where].append(data)
        else:
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.problems.append("a comment")

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def allowed(self, name: str) -> bool:
        """Whether the page's policy lets this element run."""
        digest = base64.b64encode(hashlib.sha256("".join(self.raw[name]).encode()).digest()).decode()
        return re.search(rf"{name}-src 'sha256-{re.escape(digest)}'", self.policy) is not None
