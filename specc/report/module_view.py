"""The generated module beside the program that it was printed from: each node has links to its lines, and back."""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch.fx import Node

from specc.backends.printing.origins import Origins, lines_of_nodes, statement_lines
from specc.diagnostics import Span
from specc.ir.printer import graph_lines
from specc.report.compiler import spec_link
from specc.report.markup import Html, details, element, joined, text

MAX_LINKS = 4


@dataclass(slots=True)
class Links:
    """Numbers of IR lines and of the module's lines (both from 1) that belong together."""

    to_lines: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    to_nodes: dict[int, list[int]] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    """First line of a statement -> the IR line that it was printed for."""

    def add(self, node: int, lines: Sequence[tuple[int, int]]) -> None:
        """IR line `node` was printed as these (first, last) lines."""
        self.to_lines[node] = list(lines)
        for first, last in lines:
            for line in range(first, last + 1):
                self.to_nodes.setdefault(line, []).append(node)


@dataclass(frozen=True, slots=True)
class Listing:
    """The IR lines of one step with the node of each, and the number of the first."""

    step: str
    first: int
    lines: tuple[tuple[str, Node | None], ...]


def linked(source: str, origins: Origins) -> tuple[list[Listing], Links]:
    """The steps' programs as they were printed, and what belongs to what."""
    lines_of, statements = lines_of_nodes(source, origins), statement_lines(source)
    links, listings, number = Links(), list[Listing](), 1
    for step, origin in origins.steps.items():
        lines = tuple(graph_lines(origin.graph, step))
        listings.append(Listing(step, number, lines))
        numbers = {node: place for place, (_, node) in enumerate(lines, number) if node is not None}
        for node, place in numbers.items():
            if node in lines_of[step]:
                links.add(place, lines_of[step][node])
        if lines_of[step]:
            for statement, nodes in origin.statements.items():
                owner = [numbers[node] for node in nodes if node in numbers]
                if owner:
                    links.owners[statements[step][statement][0]] = owner[-1]
        number += len(lines)
    return listings, links


def module_html(source: str, origins: Origins, spans: Mapping[str, Span]) -> Html:
    """Both listings side by side (one above the other on a narrow screen)."""
    listings, links = linked(source, origins)
    program = [
        details(
            joined([element("code", listing.step), element("span", f" {len(listing.lines)} lines", class_="unit")]),
            _program(listing, links, spans),
            is_open=True,
        )
        for listing in listings
    ]
    left = element("div", element("h3", "Program"), *program, class_="pane", id="program", tabindex="0")
    code = element("pre", element("code", _code(source, links)), class_="listing")
    right = element("div", element("h3", "Module"), code, class_="pane", id="module", tabindex="0")
    return element("div", left, right, class_="panes")


def _program(listing: Listing, links: Links, spans: Mapping[str, Span]) -> Html:
    rows = []
    for offset, (line, node) in enumerate(listing.lines):
        number = listing.first + offset
        body, _, comment = line.partition("  # ")
        shown: list[Html | str] = [body]
        targets = links.to_lines.get(number, [])
        shown += [_link(f"L{first}", f"\u2192{first}", "to-line") for first, _ in targets[:MAX_LINKS]]
        if comment:
            shown.append(element("span", f"  # {comment}", class_="comment"))
        if node is not None:
            shown += [" ", spec_link(node.meta.get("keys", ()), spans)]
        lines = " ".join(str(place) for first, last in targets for place in range(first, last + 1))
        rows.append(element("span", *shown, id=f"N{number}", data_lines=lines or None))
    return element("pre", element("code", joined(rows, "\n")))


def _link(target: str, shown: str, kind: str) -> Html:
    return element("a", shown, href=f"#{target}", class_=kind)


def _code(source: str, links: Links) -> Html:
    """The module's lines, numbered, coloured, with links to the nodes."""
    coloured = _coloured(source)
    rows = []
    for number, line in enumerate(coloured, 1):
        nodes = links.to_nodes.get(number, [])
        back = [_link(f"N{links.owners[number]}", "\u2190", "to-node")] if number in links.owners else []
        shown = " ".join(map(str, nodes)) or None
        rows.append(
            element("span", line, *back, id=f"L{number}", class_="numbered", data_line=number, data_nodes=shown)
        )
    return joined(rows, "\n")


def _coloured(source: str) -> Iterator[Html]:
    """The lines of Python source; names of the module's own functions are links to them."""
    defined = {
        item.name: item.lineno for item in ast.parse(source).body if isinstance(item, (ast.FunctionDef, ast.ClassDef))
    }
    rows: dict[int, list[Html]] = {}
    lines = source.split("\n")
    done = (1, 0)

    def put(row: int, start: int, end: int, kind: str = "", target: str = "") -> None:
        piece = text(lines[row - 1][start:end])
        if target:
            piece = element("a", piece, href=target, class_="own")
        elif kind:
            piece = element("span", piece, class_=kind)
        rows.setdefault(row, []).append(piece)

    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind, target = _token_kind(token, defined)
        if token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER, tokenize.INDENT, tokenize.DEDENT):
            continue
        if token.start[0] > done[0]:
            done = (token.start[0], 0)
        put(token.start[0], done[1], token.start[1])
        for row in range(token.start[0], token.end[0] + 1):
            begin = token.start[1] if row == token.start[0] else 0
            put(row, begin, token.end[1] if row == token.end[0] else len(lines[row - 1]), kind, target)
        done = token.end
    for row in range(1, len(lines) + (lines[-1] != "")):
        yield joined(rows.get(row, []))


def _token_kind(token: tokenize.TokenInfo, defined: Mapping[str, int]) -> tuple[str, str]:
    """(class, link) of a token."""
    if token.type == tokenize.COMMENT:
        return "comment", ""
    if token.type == tokenize.STRING:
        return "string", ""
    if token.type == tokenize.NAME and keyword.iskeyword(token.string):
        return "keyword", ""
    if token.type == tokenize.NAME and token.string in defined and token.start[0] != defined[token.string]:
        return "", f"#L{defined[token.string]}"
    return "", ""
