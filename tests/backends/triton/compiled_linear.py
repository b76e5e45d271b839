"""Compiles the linear layers' configurations of the table and prints what their programs need as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import torch

from specc.backends.triton.ops.linear import FLOAT32, LINEAR, MANY, LinearConfig, launch_linear
from tests.backends.triton.compiling import Resources
from tests.backends.triton.recorded import launched


def cases() -> Iterator[tuple[str, Resources]]:
    """One per distinct configuration and tile of rows, with everything fused that the layer can take in."""
    made: set[tuple[object, ...]] = set()
    few = [*LINEAR.items(), ((2048, 2048, False), FLOAT32)]
    table = [(*each, rows) for each in few for rows in (1, 32, 64) if rows <= max(32, each[1].block)] + [
        (*each, 128) for each in MANY.items()
    ]
    for (hidden, features, gated), config, rows in table:
        key = (config, gated, hidden, features > hidden, rows)
        if key not in made:
            made.add(key)
            dtype = torch.float32 if config is FLOAT32 else torch.bfloat16
            for name, used in launched(partial(launch, hidden, features, gated, config, rows, dtype)):
                yield f"{name} {hidden} {features} {rows} {config}", used


def launch(hidden: int, features: int, gated: bool, config: LinearConfig, rows: int, dtype: torch.dtype) -> None:
    """A call on tensors that hold nothing: a norm in front of layers that widen, a residual behind the others."""
    x, norm = torch.empty(rows, hidden, dtype=dtype), torch.empty(hidden, dtype=dtype)
    weight = torch.empty(features * (1 + gated), hidden, dtype=dtype)
    y = torch.empty(rows, features, dtype=dtype)
    widens = gated or features > hidden
    launch_linear(x, weight, None, norm if widens else None, 1e-6, gated, None if widens else y, y, config)


if __name__ == "__main__":
    print(json.dumps({name: asdict(used) for name, used in cases()}))
