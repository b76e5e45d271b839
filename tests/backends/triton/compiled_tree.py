"""Compiles the tree's second phase for sm_90 and prints, as JSON, which results of the first it loads too early."""

from __future__ import annotations

import json
import re
import sys

from specc.backends.triton.ops.delta_launch import Pending, launch_tree, outputs_of
from tests.backends.triton.compiled_kernels import operands
from tests.backends.triton.compiling import compiled
from tests.backends.triton.recorded import recording

LOADS = ("tt.load", "ttg.async_copy_global_to_local")
WAIT = "griddepcontrol.wait"


def early(text: str, pointer: str) -> list[str]:
    """Names of the loads through a pointer that stand in front of the first wait."""
    derived, found = {pointer}, []
    for line in text.partition(WAIT)[0].splitlines():
        made = re.match(r"\s*(%[\w#]+) = (\S+) (.*)", line)
        if made and derived & set(re.findall(r"%[\w#]+", made[3])):
            if made[2] in LOADS:
                found.append(made[1])
            else:
                derived.add(made[1])
    return found


def seen(keys: int) -> dict[str, dict[str, object]]:
    """For a verify without and with factors pending: the number of waits, and what is loaded in front of the first."""
    state, rows = operands((8, 8), keys, 16)
    state, rows = state.repeat(16, 1, 1, 1), type(rows)(*(x.repeat(16, *[1] * (x.dim() - 1)) for x in rows))
    o, u = outputs_of(state, rows)
    count = rows.g[:, 0, 0].long()
    found: dict[str, dict[str, object]] = {}
    waiting = {"verify": None} | {
        name: Pending(rows.k, u, rows.g, None, count, window) for name, window in (("deferred", 1), ("windowed", 3))
    }
    for name, pending in waiting.items():
        with recording() as launches:
            launch_tree(state, rows, None, o, u, pending)
        text = compiled(launches[-1]).asm["ttgir"]
        found[f"{launches[-1].kernel.__name__} {name}"] = {"waits": text.count(WAIT), "early": early(text, "%work")}
    return found


if __name__ == "__main__":
    print(json.dumps(seen(int(sys.argv[1]))))
