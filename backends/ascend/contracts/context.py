"""What every check gets, and how a finding is written: the op, the YAML keys behind it, the passes, the remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node

from specc.diagnostics import Diagnostic, Span, error
from specc.ir.edit import bodies, loop_parts
from specc.ir.port import Port
from specc.ir.printer import graph_lines
from specc.ir.ranges import Ranges
from specc.ir.ranges.bounds import ZERO, Bound, integer, of_size, symbol

Stage = Literal["decode", "prefill"]
Meaning = Literal["hidden", "visible"]
"""What 1 (True) says of a key in a mask: hidden is masked out, as NPU attention wants it; visible is the opposite."""
CONTEXT_LINES = 3


@dataclass(frozen=True, slots=True)
class Facts:
    """What the caller knows and the graph can't show.

    `masks`: input name -> what its ones mean. `unique`: names of inputs or nodes whose rows never repeat within a
    call. `printed`: whether the caller writes this aten node in other ops when it prints, so that its missing converter
    does not matter. `attributes`: those of the program.
    """

    masks: Mapping[str, Meaning] = field(default_factory=dict)
    unique: frozenset[str] = frozenset()
    printed: Callable[[Node], bool] = lambda node: False
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Context:
    """One graph under test. `found` is keyed by node and code: a contract is reported once per node."""

    name: str
    module: GraphModule
    ranges: Ranges
    facts: Facts
    stage: Stage = "decode"
    spans: Mapping[str, Span] = field(default_factory=dict)
    is_program: bool = False
    found: dict[tuple[Node, str], Diagnostic] = field(default_factory=dict)
    carried: dict[Node, tuple[Any, Any]] = field(default_factory=dict)
    """Placeholders of values that a loop carries -> (what they start with, what the body hands on)."""

    def __post_init__(self) -> None:
        for node, _ in bodies(self.module):
            parts = loop_parts(node)
            trio = zip(parts.carried_inside, parts.carried, parts.carried_out, strict=True)
            self.carried |= {inside: (start, after) for inside, start, after in trio}

    def refuse(self, code: str, node: Node, message: str, help: str, *notes: str) -> None:
        """Record that `node` breaks the contract `code`; `message` continues after the node's name."""
        if (node, code) in self.found:
            return
        keys = node.meta.get("keys", ())
        span = next((self.spans[key] for key in keys if key in self.spans), None)
        background = [*notes, self._excerpt(node)]
        if keys:
            background.append(f"comes from the spec's {', '.join(f'`{key}`' for key in keys)}")
        if node.meta.get("passes"):
            background.append(f"made by {', '.join(node.meta['passes'])}")
        place = user_line(node)
        if place:
            background.append(place)
        text = f"in graph `{self.name}`: `{node.name}`: {message}"
        self.found[node, code] = error(code, text, span, help=help, notes=background)

    def refused(self, node: Node, *codes: str) -> bool:
        """Whether one of these was already found at the node: what follows from it is not reported too."""
        return any((node, code) in self.found for code in codes)

    def outer(self, node: Node) -> Node:
        """The node outside of loops that a loop's placeholder stands for; itself where the loop changes it."""
        while node.op == "placeholder" and node in self.ranges.outer and node not in self.carried:
            node = self.ranges.outer[node]
        return node

    def _excerpt(self, node: Node) -> str:
        """The IR around the node; one line where the graph is not a program's."""
        if not self.is_program:
            return f"the node: {node.format_node()}"
        lines = graph_lines(self.module, self.name)
        at = next((number for number, (_, owner) in enumerate(lines) if owner is node), None)
        if at is None:
            return f"the node `{node.name}` is not printed"
        first = max(0, at - CONTEXT_LINES)
        shown = enumerate(lines[first : at + CONTEXT_LINES + 1], first)
        return "\n".join(["the IR there:", *(f"{'>' if number == at else ' '} {text}" for number, (text, _) in shown)])


def input_names(node: Node) -> tuple[str, ...]:
    """The names under which an input can be declared: its own, and that of its port with and without the kind."""
    port = node.meta.get("port")
    names = (node.name, str(node.target))
    return (*names, port.name, f"{port.kind}:{port.name}") if isinstance(port, Port) else names


def static(size: Any) -> int | None:
    """A dimension as a number, None where it is symbolic."""
    bound: Bound = of_size(size)
    return bound.constant


def at_most(bound: Bound, facts: Facts) -> Bound:
    """An upper end with T at its largest: a program's prompts come in pieces of at most `prefill_chunk` rows."""
    chunk = facts.attributes.get("prefill_chunk")
    if not chunk or bound.infinite or any(factor < 0 for names, factor in bound.terms if "T" in names):
        return bound
    total = ZERO
    for names, factor in bound.terms:
        product = integer(factor)
        for name in names:
            product = product * (integer(int(chunk)) if name == "T" else symbol(name))
        total = total + product
    return total


def sizes(tensor: torch.Tensor) -> str:
    """`[1, 1, 16, B]`, for messages."""
    return f"[{', '.join(str(of_size(size)) for size in tensor.shape)}]"


def user_line(node: Node) -> str | None:
    """The last line of the recorded stack trace: where a user's function makes the node."""
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    places = [position for position, line in enumerate(lines) if line.startswith("File ")]
    return "made at " + ": ".join(lines[places[-1] : places[-1] + 2]) if places else None


def words(text: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(text.split())
