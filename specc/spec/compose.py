"""PyYAML's node graph to plain values with spans, by YAML 1.2 core rules.

Resolving and constructing is done here because PyYAML's own rules are those of YAML 1.1: `1e-3` is text, `on`
and `no` are booleans, `12:30` is 750. All findings are collected; an entry that can't be used is left out of
the value and its path recorded in `Composed.broken`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from specc.diagnostics import Diagnostic, Span, SpecError, error
from specc.spec.nodes import MAX_DEPTH, PLAIN, PREFIX, Text, compose_nodes, too_deep
from specc.spec.scalars import BadScalar, Scalar, resolve_plain, resolve_tagged
from specc.spec.source import Path, Place

MAX_NODES = 20_000

_MERGE = "<<"


@dataclass(frozen=True, slots=True)
class Composed:
    """The value of a document, the places of its entries, and what was wrong with it."""

    value: Any
    places: Mapping[Path, Place]
    diagnostics: tuple[Diagnostic, ...]
    broken: frozenset[Path]


def compose(text: Text) -> Composed:
    """Read one YAML document. Raises SpecError where no value can be had at all, as in a syntax error."""
    return _Constructor(text).document()


class _Constructor:
    """One document's construction: values, spans and findings. Used once."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.places: dict[Path, Place] = {}
        self.diagnostics: list[Diagnostic] = []
        self.broken: set[Path] = set()
        self.visited = 0
        self.open: set[int] = set()

    def document(self) -> Composed:
        node, self.diagnostics = compose_nodes(self.text)
        if node is None:
            empty = error("SPC013", "the spec is empty", self.text.at(0, 0), help="start with `specc: 1` and `name: …`")
            return Composed(None, MappingProxyType({}), (empty,), frozenset({()}))
        value = self._build(node, (), None)
        return Composed(value, MappingProxyType(self.places), tuple(self.diagnostics), frozenset(self.broken))

    def _build(self, node: Node, path: Path, key: Span | None) -> Any:
        """The value of `node`; UNUSABLE (and a finding) where it has none."""
        self.visited += 1
        block = isinstance(node, CollectionNode) and not node.flow_style
        self.places.setdefault(path, Place(key, self.text.span(node), block))
        if self.visited > MAX_NODES:
            raise SpecError([*self.diagnostics, self._too_many(node)])
        if id(node) in self.open:
            self._reject(path, self._recursive(node))
            return None
        if len(self.open) >= MAX_DEPTH:
            raise SpecError([*self.diagnostics, too_deep(self.text.span(node))])
        self.open.add(id(node))
        try:
            if isinstance(node, ScalarNode):
                return self._scalar(node, path)
            if node.tag not in (PREFIX + "seq", PREFIX + "map"):
                self._reject(path, self._unknown_tag(node))
                return None
            if isinstance(node, SequenceNode):
                return self._sequence(node, path)
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            raise TypeError(f"unexpected YAML node {type(node).__name__}")
        finally:
            self.open.discard(id(node))

    def _scalar(self, node: ScalarNode, path: Path) -> Scalar:
        try:
            if node.tag == PLAIN:
                return resolve_plain(node.value)
            if node.tag.startswith(PREFIX):
                return resolve_tagged(node.tag.removeprefix(PREFIX), node.value)
            self._reject(path, self._unknown_tag(node))
            return None
        except LookupError:
            self._reject(path, self._unknown_tag(node))
            return None
        except BadScalar as problem:
            finding = error(problem.code, problem.message, self.text.span(node), label=problem.label, help=problem.help)
            self._reject(path, finding)
            return None

    def _sequence(self, node: SequenceNode, path: Path) -> list[Any]:
        return [self._build(item, (*path, index), None) for index, item in enumerate(node.value)]

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merges: list[Node] = []
        seen: dict[str, Span] = {}
        for key_node, value_node in node.value:
            name = self._key(key_node, path)
            if name is None:
                continue
            span = self.text.span(key_node)
            if name in seen:
                self.diagnostics.append(self._duplicate(name, span, seen[name]))
                continue
            seen[name] = span
            if name == _MERGE and key_node.tag == PLAIN:
                merges.append(value_node)
                continue
            value = self._build(value_node, (*path, name), span)
            if (*path, name) not in self.broken:
                own[name] = value
        merged: dict[str, Any] = {}
        for merge in merges:
            self._merge(merge, path, seen, merged)
        return merged | own

    def _merge(self, node: Node, path: Path, seen: Mapping[str, Span], merged: dict[str, Any]) -> None:
        """Add the entries of `<<`'s mappings that the mapping itself, and earlier merges, do not have."""
        sources = node.value if isinstance(node, SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, MappingNode) or id(source) in self.open:
                self.diagnostics.append(
                    error(
                        "SPC011",
                        "`<<` takes a mapping or a list of mappings",
                        self.text.span(source),
                        label="not a mapping that can be merged here",
                        help="write `<<: *name`, where `&name` marks a mapping above",
                    )
                )
                continue
            outer, self.places = self.places, {}
            values = self._build(source, path, None)
            inner, self.places = self.places, outer
            added = [name for name in values if name not in seen and name not in merged]
            merged.update({name: values[name] for name in added})
            size = len(path)
            for known, place in inner.items():
                if len(known) > size and known[size] in added:
                    self.places[known] = place

    def _key(self, node: Node, path: Path) -> str | None:
        """A mapping's key as text; None (and a finding) where it is anything else."""
        if isinstance(node, ScalarNode):
            if node.tag == PREFIX + "str":
                return str(node.value)
            if node.tag == PLAIN:
                try:
                    name = resolve_plain(node.value)
                except BadScalar:
                    name = None
                if isinstance(name, str):
                    return name
        shown = node.value if isinstance(node, ScalarNode) else "a collection"
        self.diagnostics.append(
            error(
                "SPC010",
                f"a key must be text, but this one is {shown}" if shown else "a key must be text, not empty",
                self.text.span(node),
                label="not text",
                help="the keys of a spec are plain names such as `draft`",
            )
        )
        self.broken.add((*path, str(shown)))
        return None

    def _reject(self, path: Path, finding: Diagnostic) -> None:
        self.diagnostics.append(finding)
        self.broken.add(path)

    def _duplicate(self, name: str, span: Span, first: Span) -> Diagnostic:
        return error(
            "SPC006",
            f"duplicate key `{name}`",
            span,
            label=f"already given on line {first.line}",
            help="keep one of the two; YAML readers disagree about which one counts",
        )

    def _unknown_tag(self, node: Node) -> Diagnostic:
        tag = node.tag.replace(PREFIX, "!!", 1)
        return error(
            "SPC005",
            f"unknown tag `{tag}`",
            self.text.span(node),
            label="tags can't be used here",
            help="remove the tag: a spec holds only text, numbers, booleans, null, lists and mappings",
        )

    def _recursive(self, node: Node) -> Diagnostic:
        return error(
            "SPC008",
            "this alias contains itself",
            self.text.span(node),
            label="the anchor's own content refers to it",
            help="write the value out",
        )

    def _too_many(self, node: Node) -> Diagnostic:
        return error(
            "SPC007",
            f"this file holds more than {MAX_NODES} values, aliases written out",
            self.text.span(node),
            label="the limit is reached here",
            help="a spec needs a few dozen values",
        )
