"""The page: sections of results, of a trace and of the compiler, with its style and script inside it.

Nothing is loaded from anywhere. A content policy in the page forbids that too, and lets no style or script run but the
two whose sha256 it states: text of specs and result files is escaped, and if it were not, it still could do nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from specc import __version__
from specc.report import charts, tables
from specc.report.compiler import Compiled, passes_html, spec_html
from specc.report.markup import Html, anchor, details, element, joined, section, text
from specc.report.module_view import module_html
from specc.report.results import Results
from specc.report.timeline import timeline, trace_numbers
from specc.trace.read import Trace


@dataclass(frozen=True, slots=True)
class SpecView:
    """A spec with what the compiler made of it for one target."""

    name: str
    description: str
    target: str
    overrides: tuple[str, ...]
    text: str
    compiled: Compiled


def page(results: Sequence[Results], trace: Trace | None = None, spec: SpecView | None = None, title: str = "") -> str:
    """The whole document."""
    sections: list[tuple[str, str, Html]] = []
    shown = [item for item in results if item.heat_maps or item.curves or item.by_depth or item.tables]
    if shown:
        sections.append(("results", "Results", joined(_results(item) for item in shown)))
    if trace is not None:
        sections.append(("trace", "Trace", _trace(trace)))
    if spec is not None:
        made = spec.compiled
        sections.append(("spec", "Spec", _spec(spec)))
        sections.append(("passes", "Passes", _passes(made)))
        sections.append(("code", "Generated module", _module(made)))
    heading = title or (f"specc: {spec.name}" if spec is not None else "specc: results")
    links = [element("a", name, href=f"#{identity}") for identity, name, _ in sections]
    body = [
        element("header", element("h1", heading), element("nav", *links)),
        element("main", *(section(identity, name, content) for identity, name, content in sections)),
        element("footer", f"Written by specc {__version__}."),
    ]
    return _document(heading, body)


def _document(heading: str, body: Sequence[Html]) -> str:
    style, script = resource("page.css"), resource("page.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    head = [
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{text(policy)}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", heading),
        Html(f"<style>{style}</style>"),
    ]
    content = [element("head", *head), element("body", *body, Html(f"<script>{script}</script>"))]
    return f"<!doctype html>\n{element('html', *content, lang='en')}\n"


def resource(name: str) -> str:
    """A file of this package: the style sheet, the script."""
    return files("specc.report").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _results(found: Results) -> Html:
    """One result file: its charts, its tables, what made it."""
    declared = bool(found.title or found.heat_maps or found.curves or found.by_depth)
    parts: list[Html] = [element("p", found.note, class_="note")] if found.note else []
    if declared or any(item.columns for item in found.tables):
        parts += [tables.table(item) for item in found.tables]
    else:
        parts.append(tables.raw_table(found))
    parts += [charts.heat_map(item) for item in found.heat_maps]
    parts += [charts.curves(item) for item in found.curves]
    parts += [charts.by_depth(found.by_depth)] if found.by_depth else []
    heading = element("h3", found.title or found.name)
    return element("article", heading, *parts, tables.sources(found), id=anchor("results", found.name))


def _trace(trace: Trace) -> Html:
    first = trace.steps[0]
    named = f"{trace.path.name}, seed {first.seed}; spec {first.spec[:12]}, pipeline {first.pipeline[:12]} (sha256)."
    return joined([element("p", named, class_="note"), timeline(trace), trace_numbers(trace)])


def _spec(spec: SpecView) -> Html:
    parts = [element("p", spec.description)] if spec.description else []
    told = [f"target {spec.target}", *(f"--set {override}" for override in spec.overrides)]
    parts.append(element("p", *_codes(told)))
    return joined([*parts, spec_html(spec.text)])


def _codes(words: Sequence[str]) -> list[Html]:
    return [joined([element("code", word), " "]) for word in words]


def _passes(made: Compiled) -> Html:
    lead = "The program after every pass; `lower` is the naive one. A pass that changed nothing says why not."
    return joined([element("p", lead), passes_html(made.stages, made.spans)])


def _module(made: Compiled) -> Html:
    lead = (
        "Left the program that the module was printed from, right the module. An arrow leads from a node to the line "
        "that it became, and from a line back; pointing at one marks the other. A node without an arrow became no "
        "statement of a step: it is declared with the module's inputs, or nothing needs it."
    )
    content = module_html(made.source, made.origins, made.spans)
    return joined([element("p", lead), details(f"{made.source.count(chr(10))} lines", content, is_open=True)])


def output_name(output: Path) -> str:
    """A heading for a report without a spec."""
    return output.stem
