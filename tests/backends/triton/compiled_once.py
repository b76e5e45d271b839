"""Compiles SmolLM2's one-step layers and prints as JSON what stands around their wait."""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch

from specc.backends.triton.ops.linear import LINEAR
from tests.backends.triton.compiled_linear import launch
from tests.backends.triton.compiling import compiled
from tests.backends.triton.recorded import recording


def cases() -> Iterator[tuple[str, dict[str, int]]]:
    """By layer and rows: barriers behind the wait, and whether the next kernel may start before it."""
    for (hidden, features, gated), config in LINEAR.items():
        if not config.once(hidden):
            continue
        for rows in (1, 16):
            with recording() as launches:
                launch(hidden, features, gated, config, rows, torch.bfloat16)
            before, behind = compiled(launches[-1]).asm["ptx"].split("griddepcontrol.wait")
            early = int("griddepcontrol.launch_dependents" in before)
            yield f"{hidden} {features} {rows}", {"barriers": behind.count("bar.sync"), "early": early}


if __name__ == "__main__":
    print(json.dumps(dict(cases())))
