"""Prints, for a token's kernel and the walk, how the tensors that they add up lie in threads: the order of sums."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from specc.backends.triton.ops.delta_launch import Rows, launch_walk, outputs_of
from specc.backends.triton.ops.delta_step import TILE, delta_step_
from specc.backends.triton.ops.delta_tables import walk_config
from tests.backends.triton.compiled_kernels import operands, token
from tests.backends.triton.compiling import compiled
from tests.backends.triton.recorded import recording


def sums(call: Callable[[], Any]) -> list[str]:
    """Columns and layout of every matrix whose rows the one kernel of `call` sums, in order; a token prepares one row
    where a walk prepares several."""
    with recording() as launches:
        call()
    (launch,) = launches
    text = compiled(launch).asm["ttgir"]
    layouts = dict(re.findall(r"^#(\w+) = (#ttg\..*)$", text, re.MULTILINE))
    found = re.findall(r"\}\) : \(tensor<\d+x(\d+x\w+), #(.*?)>\) ->", text)
    return [f"{shape} {re.sub(r'blocked[0-9]*', lambda m: layouts[m[0]], layout)}" for shape, layout in found]


if __name__ == "__main__":
    keys, batch = int(sys.argv[1]), int(sys.argv[2])
    heads = (8, 8) if keys == 256 else (16, 32)
    _, one = operands(heads, keys, 1)
    state, rows = torch.empty(batch, heads[1], keys, keys), Rows(*(x[:1].expand(batch, *x.shape[1:]) for x in one))
    o, u = outputs_of(state, rows)
    config = walk_config(keys, keys, batch * heads[1])
    config = replace(config, bv=min(config.bv, TILE // keys))
    walk = partial(launch_walk, state, rows, o, u, after=state, config=config)
    print(json.dumps([sums(partial(delta_step_, *token(heads, keys, batch))), sums(walk)]))
