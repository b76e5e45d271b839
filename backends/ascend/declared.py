"""Constants of a generated Ascend module that its host code goes by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule, Node

from specc.backends.ascend.draws import row_draws
from specc.backends.printing.by_layer import layered_slots
from specc.backends.printing.literals import literal
from specc.backends.printing.liveness import output_node
from specc.ir.edit import modules
from specc.ir.op import info
from specc.program import DecodeProgram, input_ports, output_ports

SHOWN = ("tokens", "parent", "valid", "path", "accept_length", "bonus", "emitted_tokens", "emitted", "stopped")
"""Results that the host reads of a whole step; logits, laws and features stay on the device."""
PREFILL_CHUNK = 512
ROW_DRAWS = '''
class RowDraws(NamedTuple):
    """The draws of a draft: every row's offset from `length` and its number, and the size of the vocabulary."""

    offsets: list[int]
    draws: list[int]
    size: int
'''


def declared(program: DecodeProgram) -> str:
    """The constants, as source."""
    graphs = program.graphs
    rows = row_draws(graphs["draft"]) if "draft" in graphs else None
    made = "None" if rows is None else f"RowDraws({', '.join(literal(part) for part in rows)})"
    chunk = program.attributes.get("prefill_chunk", PREFILL_CHUNK)
    ports = input_ports(graphs["commit"]) if "commit" in graphs else {}
    commits = tuple(port.removeprefix("input:") for port in ports if port.startswith("input:"))
    constants = "\n".join(
        [
            "# Results of a whole step that the host reads: name -> columns (0: one number a row), dtype.",
            f"RECORD: dict[str, tuple[int, torch.dtype]] = {literal(record_fields(program))}",
            "# What the commit graph reads of Verified and Accepted.",
            f"COMMIT_INPUTS: tuple[str, ...] = {literal(commits)}",
            "# Whether draft, verify, accept and commit are one graph.",
            f"COMMIT_FUSED: bool = {commit_fused(program)}",
            "# Whether a commit can leave anything for a flush.",
            f"PENDING: bool = {'flush' in graphs and bool(changed_slots(graphs['flush']))}",
            "# Slots [layers,batch,rows,…] whose rows an operator addresses across the whole batch.",
            f"POOLS: tuple[str, ...] = {literal(pools(program))}",
            "# The most tokens that one prefill takes.",
            f"PREFILL_CHUNK: int = {literal(chunk)}",
            "# Steps that draw random numbers -> positions and draws of their table.",
            f"UNIFORMS: dict[str, tuple[int, int]] = {literal(uniforms(program))}",
        ]
    )
    return "\n\n\n".join([constants, ROW_DRAWS.strip(), f"ROW_DRAWS: RowDraws | None = {made}"])


def record_fields(program: DecodeProgram) -> dict[str, tuple[int, Any]]:
    """The fields of a step's record, of those results that the program has."""
    found: dict[str, tuple[int, Any]] = {}
    for step in ("draft", "accept"):
        for name, value in _results(program, step):
            fake = value.meta["val"]
            found[name] = (int(fake.shape[1]) if fake.dim() == 2 else 0, fake.dtype)
    return {name: found[name] for name in SHOWN if name in found}


def _results(program: DecodeProgram, step: str) -> Iterator[tuple[str, Node]]:
    if step in program.graphs:
        module = program.graphs[step]
        values: Any = output_node(module).args[0]
        for port, value in zip(output_ports(module), values, strict=True):
            if port.kind == "result":
                yield port.name, value


def changed_slots(module: GraphModule) -> frozenset[str]:
    """The slots that a step gives a new value."""
    values: Any = output_node(module).args[0]
    places = input_ports(module)
    ports = zip(output_ports(module), values, strict=True)
    return frozenset(
        port.name for port, value in ports if port.kind == "slot" and value is not places.get(f"slot:{port.name}")
    )


def commit_fused(program: DecodeProgram) -> bool:
    """Whether a commit leaves the layered slots alone that the steps before it in the same graph have written."""
    graphs = program.graphs
    before = [changed_slots(graphs[step]) for step in ("draft", "verify", "accept") if step in graphs]
    last = changed_slots(graphs["commit"]) if "commit" in graphs else frozenset[str]()
    return not (layered_slots(program) & last & frozenset[str]().union(*before))


def pools(program: DecodeProgram) -> tuple[str, ...]:
    """The slots that the recurrent operator works on by rows: those of one dim more than a state."""
    return tuple(name for name, slot in program.slots.items() if slot.role == "committed" and len(slot.shape) == 6)


def uniforms(program: DecodeProgram) -> dict[str, tuple[int, int]]:
    """The tables of the steps that draw: one position for a prefill and a plain step, every depth for a walk."""
    attributes = program.attributes
    walk = (int(attributes.get("max_path", 1)) + 1, int(attributes.get("nodes", 1)) + 1)
    sizes = {"prefill": (1, 1), "decode": (1, 1), "accept": walk}
    return {step: size for step, size in sizes.items() if step in program.graphs and _draws(program.graphs[step])}


def _draws(module: GraphModule) -> bool:
    declared_ops = (info(node.target) for item in modules(module) for node in item.graph.nodes)
    return any(entry is not None and entry.name == "counter_uniform" for entry in declared_ops)
