"""Findings of the pass as coded diagnostics: the interval, the legal one, the chain of nodes, and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.fx import Node

from specc.diagnostics import Diagnostic, Span, error
from specc.ir.ranges import Ranges
from specc.ir.ranges.bounds import INFINITY
from specc.ir.ranges.calls import dtype_of
from specc.ir.ranges.explain import origin
from specc.ir.ranges.indices import IndexUse, interval_of
from specc.ir.ranges.interval import Interval, limits
from specc.passes.rewrite_negative_indices.uses import Policy


def operand_name(use: IndexUse) -> str:
    """The index as it stands in messages."""
    return use.operand.name if isinstance(use.operand, Node) else str(use.operand)


def describe(use: IndexUse, ranges: Ranges) -> str:
    """One line: where, what the index may be, what is legal, and the nodes it comes from."""
    chain = " <- ".join(origin(use.operand, ranges, use.legal))
    return (
        f"`{use.node.name}`: index `{operand_name(use)}` of {use.op} may be {interval_of(use, ranges)}, "
        f"`{use.table.name}` allows {use.legal}" + (f"; {chain}" if chain else "")
    )


def untyped(nodes: Sequence[Node]) -> Diagnostic:
    """Nodes without recorded values: nothing can be proved of their sizes."""
    names = ", ".join(f"`{node.name}`" for node in nodes[:4])
    return error(
        "SPC322",
        f"the graph has no shapes: {names} carry no fake value",
        help="give `example_inputs`, or export the function with torch.export",
    )


def violation(use: IndexUse, ranges: Ranges, policy: Policy, spans: Mapping[str, Span]) -> Diagnostic:
    """The finding for an index that is neither proved nor rewritten."""
    interval = interval_of(use, ranges)
    code, message, remedy = _classify(use, interval, policy)
    notes = [f"`{use.table.name}` has rows {use.legal} there; the index is in {interval}"]
    notes += [f"it comes from {line}" for line in origin(use.operand, ranges, use.legal)]
    place = _user_line(use.node)
    if place:
        notes.append(place)
    span = next((spans[key] for key in use.node.meta.get("keys", ()) if key in spans), None)
    return error(code, message, span, help=remedy, notes=notes)


def _is_unknown(use: IndexUse, interval: Interval) -> bool:
    whole = limits(dtype_of(use.operand))
    return interval.low == whole.low and interval.high == whole.high


def _classify(use: IndexUse, interval: Interval, policy: Policy) -> tuple[str, str, str]:
    name, op = operand_name(use), f"{use.op} (`{use.node.name}`)"
    if _is_unknown(use, interval):
        return "SPC322", f"nothing is known of index `{name}` of {op}", "declare the range of the input it comes from"
    too_high = not interval.high <= (INFINITY if use.semantics == "clamp" else use.legal.high)
    if too_high or (use.semantics != "raise" and not interval.low >= -use.size):
        remedy = "declare a narrower range of the input it comes from, or clamp the index"
        return "SPC321", f"index `{name}` of {op} may be outside `{use.table.name}`: it is in {interval}", remedy
    meaning = interval.sentinels
    message = f"index `{name}` of {op} may be {interval.low}, and {use.op} does not wrap around"
    if meaning == {"committed"}:
        return (
            "SPC320",
            message,
            "put the committed context into row 0 (a dummy root) and add 1 to the index",
        )
    if meaning == {"wrap"}:
        return "SPC320", message, "index with x[i], which wraps around, or add the size to a negative index yourself"
    if meaning == {"pad"} and policy.mask_padding:
        return "SPC320", message, "use the form that is not in place, so that the padding can be masked"
    remedy = "declare what -1 means, e.g. ranges={'…': ValueRange(-1, high, 'pad')} with mask_padding, or clamp it"
    return "SPC320", message, remedy


def _user_line(node: Node) -> str | None:
    """The last line of the recorded stack trace: where a user's function makes the node."""
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    places = [position for position, line in enumerate(lines) if line.startswith("File ")]
    return "made at " + ": ".join(lines[places[-1] : places[-1] + 2]) if places else None
