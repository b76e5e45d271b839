"""What values are called in generated code, and where a name is read."""

from __future__ import annotations

import re

import torch
from torch.fx import Node

# Nouns for nodes that carry FX's own name.
_NOUNS = {
    "add": "total",
    "sub": "difference",
    "mul": "product",
    "div": "quotient",
    "index": "picked",
    "where": "chosen",
    "unsqueeze": "column",
    "squeeze": "row",
    "cat": "joined",
    "getitem": "result",
    "embedding": "embedded",
    "linear": "projected",
    "rms_norm": "normed",
}


def mentions(text: str, name: str) -> bool:
    """True if the source `text` reads the local variable `name`."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) is not None


def is_automatic(node: Node) -> bool:
    """True if the node's name is the one that FX makes from its target."""
    base = re.sub(r"\W+", "_", node.graph._target_to_str(node.target)).strip("_")
    return re.fullmatch(rf"{re.escape(base)}(_\d+)*", node.name) is not None


def wanted_name(node: Node) -> str:
    """A readable name before it is made unique."""
    if not is_automatic(node):
        return node.name
    target = node.target
    base = target._schema.name.split("::")[1] if isinstance(target, torch._ops.OpOverload) else node.name
    base = re.sub(r"(_\d+)+$", "", base)
    return _NOUNS.get(base, base)
