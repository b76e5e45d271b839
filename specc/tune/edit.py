"""Changing a few keys in the text of a spec: comments, order and everything else stay as they were written.

Values are replaced at the places that YAML's parser gives. A key that goes away takes its line along, a new key comes
behind the last one of its section.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from specc.diagnostics import SpecError
from specc.spec import LoadedSpec, loads, to_mapping
from specc.spec.model import Spec
from specc.spec.nodes import Text, compose_nodes

Edit = tuple[int, int, str]
"""Characters from, to, and what comes in their place."""


class NotEditable(Exception):
    """The text has a form that is not edited in place, such as a section that is an alias."""


def edited(text: str, settings: Mapping[str, Any], file: str = "<spec>") -> str:
    """The text with dotted keys set to values (None: taken away). Raises NotEditable."""
    for key, value in settings.items():
        root, _ = compose_nodes(Text(text, file))
        if not isinstance(root, MappingNode):
            raise NotEditable("the spec is no mapping")
        start, stop, new = _edit(text, root, key.split("."), value)
        text = text[:start] + new + text[stop:]
    return text


def rewritten(source: str, output: Path, wanted: LoadedSpec, settings: Mapping[str, Any]) -> tuple[str, bool]:
    """A text for the file `output` that loads to `wanted`, and whether it is the source with changes; else it is
    written anew, without comments. Folders of checkpoints are named as seen from there."""
    folders = {"target.checkpoint": wanted.target_folder, "draft.checkpoint": wanted.draft_folder}
    base = output.absolute().parent
    if base.resolve() != wanted.base.absolute().resolve():
        moved = {key: os.path.relpath(folder, base) for key, folder in folders.items() if folder is not None}
        settings = {**settings, **moved}
    try:
        text = edited(source, settings, str(output))
        if _without_folders(loads(text, str(output), base=base).spec) == _without_folders(wanted.spec):
            return text, True
    except (NotEditable, SpecError, yaml.YAMLError):
        pass
    mapping = to_mapping(wanted.spec)
    if folders["draft.checkpoint"] is not None:
        mapping["draft"]["checkpoint"] = settings.get("draft.checkpoint", mapping["draft"].get("checkpoint"))
    return yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True, width=110), False


def _without_folders(spec: Spec) -> Spec:
    """The spec without where its checkpoints lie."""
    parts = {name: getattr(spec, name).model_copy(update={"checkpoint": None}) for name in ("target", "draft")}
    return spec.model_copy(update=parts)


def with_header(text: str, lines: Sequence[str]) -> str:
    """The text with comment lines in front, behind the line that editors read."""
    comments = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    first, _, rest = text.partition("\n")
    return f"{first}\n{comments}{rest}" if first.startswith("# yaml-language-server") else comments + text


def _edit(text: str, mapping: MappingNode, path: Sequence[str], value: Any) -> Edit:
    """The edit that sets `path` below `mapping`."""
    name, rest = path[0], path[1:]
    found = next((place for place, (key, _) in enumerate(mapping.value) if key.value == name), None)
    if found is None:
        inner: Any = value
        for part in reversed(rest):
            inner = {part: inner}
        return (0, 0, "") if value is None else _added(text, mapping, name, inner)
    key, node = mapping.value[found]
    if node.start_mark.index < key.end_mark.index:
        raise NotEditable(f"`{name}` is an alias")
    if rest:
        if isinstance(node, MappingNode):
            return _edit(text, node, rest, value)
        raise NotEditable(f"`{name}` is no mapping")
    if value is None:
        return _removed(text, mapping, found)
    if text[key.end_mark.index : node.start_mark.index].strip(" \n") != ":":
        raise NotEditable(f"`{name}` has an anchor or a tag")
    if isinstance(node, CollectionNode) and not node.flow_style:
        return key.end_mark.index, _end(node), f": {_written(value)}"
    return node.start_mark.index, node.end_mark.index, _written(value)


def _written(value: Any) -> str:
    """A value as one line of YAML."""
    if isinstance(value, str):
        return value if value.replace("_", "").replace("-", "").isalpha() else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_written(item) for item in value) + "]"
    return json.dumps(value)


def _end(node: Node) -> int:
    """Where the node's text ends: a block collection's own mark stands behind the lines that follow it."""
    if isinstance(node, CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        raise NotEditable("a block of text")
    return int(node.end_mark.index)


def _added(text: str, mapping: MappingNode, name: str, value: Any) -> Edit:
    """A new key behind the last one."""
    if not mapping.value:
        raise NotEditable("an empty mapping")
    if mapping.flow_style:
        end = _end(mapping.value[-1][1])
        return end, end, f", {name}: {_written(value)}"
    key, node = mapping.value[-1]
    if node.start_mark.index < key.end_mark.index:
        raise NotEditable("the last value is an alias")
    line = text.find("\n", _end(node))
    indent = " " * mapping.value[0][0].start_mark.column
    if line < 0:
        return len(text), len(text), f"\n{indent}{name}: {_written(value)}\n"
    return line + 1, line + 1, f"{indent}{name}: {_written(value)}\n"


def _removed(text: str, mapping: MappingNode, place: int) -> Edit:
    """Without a key: its lines of a block, with their comments; of a flow mapping the entry and one comma."""
    key, node = mapping.value[place]
    if len(mapping.value) == 1:
        raise NotEditable("the only key of its section")
    if not mapping.flow_style:
        start = text.rfind("\n", 0, key.start_mark.index) + 1
        line = text.find("\n", _end(node))
        return start, len(text) if line < 0 else line + 1, ""
    if place + 1 < len(mapping.value):
        return key.start_mark.index, mapping.value[place + 1][0].start_mark.index, ""
    return _end(mapping.value[place - 1][1]), _end(node), ""
