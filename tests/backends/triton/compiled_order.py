"""What compiled linear layers read before they wait for the kernel in front: prints it as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import torch

from specc.backends.triton.ops.linear import LINEAR
from specc.backends.triton.ops.linear_conv import linear_token_conv_gates_, linear_tree_conv_gates_
from tests.backends.triton.compiled_linear import launch
from tests.backends.triton.compiling import compiled
from tests.backends.triton.recorded import recording

POINTERS = {"x", "weight", "boxes", "bias", "norm", "residual", "partial"}
POINTERS |= {"window", "taps", "parent", "moves", "a_log", "dt_bias"}  # of a projection with its convolution
NAME = re.compile(r"%\w+")
READS = re.compile(r"(tt\.load|ttg\.async_copy_global_to_local|ttng\.async_tma_copy_global_to_local) (%\w+)")
WAIT = "griddepcontrol.wait"


def reads(ttgir: str) -> list[tuple[str, list[str]]]:
    """(op, kernel arguments that its pointers come from) of every read of memory, and the wait, in program order.

    Loops and branches are nested in this form of a kernel: what stands before the wait runs before it in the first
    step.
    """
    roots: dict[str, set[str]] = {}
    found: list[tuple[str, list[str]]] = []
    for line in ttgir.splitlines():
        if "tt.func" in line:
            roots = {f"%{name}": {name} for name in POINTERS}
            continue
        if WAIT in line:
            found.append(("wait", []))
        elif read := READS.search(line):
            found.append((read[1].split(".")[1], sorted(roots.get(read[2], set()))))
        elif "scf.for" in line:
            roots |= {made: roots.get(given, set()) for made, given in re.findall(r"(%\w+) = (%\w+)[,)]", line)}
        elif made := re.match(r"\s*(%\w+)(?::\d+)? = ", line):
            used = NAME.findall(line.split(" loc(")[0][made.end() :])
            roots[made[1]] = set().union(*(roots.get(name, set()) for name in used))
    return found


def cases() -> Iterator[tuple[str, dict[str, object]]]:
    """Every configuration of the table that loads x by hand, for one tile of rows and for two."""
    for (hidden, features, gated), config in LINEAR.items():
        for rows in (16, 32) if config.early else ():
            with recording() as launches:
                launch(hidden, features, gated, config, rows, torch.bfloat16)
            made = compiled(launches[-1])
            text = made.asm["ttgir"]
            yield f"{hidden} {features} {rows} {config}", {"stages": launches[-1].stages, "reads": reads(text)}


def mixers() -> Iterator[tuple[str, dict[str, object]]]:
    """GDN-1.3B's projection with its convolution and gates, for a token and for the nodes of a tree."""
    weight, taps, heads = (torch.empty(*shape, dtype=torch.bfloat16) for shape in ((8208, 2048), (6144, 1, 4), (8,)))
    window, norm = torch.empty(1, 3, 6144, dtype=torch.bfloat16), torch.empty(2048, dtype=torch.bfloat16)
    for nodes in (1, 16):
        x, product = torch.empty(1, nodes, 2048, dtype=torch.bfloat16), (weight, norm, 1e-6, taps, None)
        with recording() as launches:
            if nodes == 1:
                live = torch.ones(1, 1, dtype=torch.bool)
                linear_token_conv_gates_(window, x, *product, live, heads, heads, 1, 6144, 6152)
            else:
                parent_row = torch.zeros(1, nodes, dtype=torch.int64)
                linear_tree_conv_gates_(window, x, *product, parent_row, heads, heads, 1, 6144, 6152, None)
        text = compiled(launches[-1]).asm["ttgir"]
        yield f"mixer {nodes}", {"stages": launches[-1].stages, "reads": reads(text)}


if __name__ == "__main__":
    print(json.dumps(dict(cases()) | dict(mixers())))
