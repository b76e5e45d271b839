"""How attention over pages smaller than a tile reads them: prints the bytes of its asynchronous copies as JSON."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from specc.backends.triton.ops.attention_paged import rope_attention_paged_, tree_attention_paged
from tests.backends.triton.compiled_attention import HEADS
from tests.backends.triton.compiling import compiled
from tests.backends.triton.recorded import recording

COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global[^;]*?(0x[0-9a-f]+)")
BATCH, NODES = 8, 4


def calls(dim: int, page: int, capacity: int) -> list[Callable[[], Any]]:
    """A verify whose new rows are in the pools, and a layer's attention with its rotations and new rows."""
    (heads, shared), blocks = HEADS[dim], capacity // page
    pool = torch.empty(BATCH * blocks, page, shared, dim, dtype=torch.bfloat16)
    table, length = torch.empty(BATCH, blocks, dtype=torch.int32), torch.empty(BATCH, dtype=torch.int64)
    mask = torch.empty(BATCH, NODES, NODES, dtype=torch.bool)
    q, new = (torch.empty(BATCH, NODES, count, dim, dtype=torch.bfloat16) for count in (heads, shared))
    angle = torch.empty(BATCH, NODES, dim // 2, dtype=torch.bfloat16)
    pools = (pool, pool, table, length)
    return [
        partial(tree_attention_paged, q, *pools, mask, length[:, None].expand(-1, NODES), 0.1, 0),
        partial(rope_attention_paged_, q, new, new, angle, angle, *pools, None, mask, 0.1),
    ]


def copies(call: Callable[[], Any]) -> tuple[str, dict[int, int]]:
    """(the kernel that a call launches first, how many copies of how many bytes stand in it)."""
    with recording() as launches:
        call()
    sizes = COPY.findall(compiled(launches[0]).asm["ptx"])
    return launches[0].kernel.__name__, dict(Counter(int(size, 16) for size in sizes))


if __name__ == "__main__":
    print(json.dumps(dict(map(copies, calls(*map(int, sys.argv[1:]))))))
