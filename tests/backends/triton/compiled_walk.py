"""Compiles walks over a chain and of a single token for sm_90 and prints, as JSON, how their tensors lie in threads."""

from __future__ import annotations

import json
import re
import sys

from specc.backends.triton.ops.delta_launch import launch_walk, outputs_of, walk_tile
from specc.backends.triton.ops.delta_tables import SINGLE, WALK
from tests.backends.triton.compiled_kernels import operands
from tests.backends.triton.compiling import compiled
from tests.backends.triton.recorded import recording


def seen(keys: int) -> dict[str, dict[str, int]]:
    """By configuration of the tables: changes of layout, barriers, and tensors of the tile that lie as the order of
    sums expects (one number in a thread, a row's threads side by side in a warp) or otherwise."""
    found: dict[str, dict[str, int]] = {}
    cases = [(16, config, name) for _, config in WALK[(keys, keys)] for name in ("verify", "plain")]
    for nodes, config, name in [*cases, (1, SINGLE[(keys, keys)], "single")]:
        state, rows = operands((8, 8) if keys == 256 else (16, 32), keys, nodes)
        o, u = outputs_of(state, rows)
        across = walk_tile(config, keys, keys)[3]
        with recording() as launches:
            launch_walk(state, rows, o, u, after=None if name == "verify" else state, config=config)
        text = compiled(launches[-1]).asm["ttgir"]
        layouts = re.findall(r"^(#\w+) = #ttg\.blocked<(.*)>$", text, re.MULTILINE)
        right = f"sizePerThread = [1, 1], threadsPerWarp = [{128 // across}, {across // 4}]"
        lie = {layout for layout, how in layouts if right in how and "order = [1, 0]" in how}
        tiles = re.findall(rf"tensor<\d+x{across // 4}xf32, (#\w+)>", text)
        found[f"{name} {config}"] = {
            "conversions": text.count("ttg.convert_layout"),
            "barriers": text.count("gpu.barrier") + text.count("ttg.barrier") if name == "single" else 0,
            "parts": len([layout for layout in tiles if layout in lie]),
            "others": len([layout for layout in tiles if layout not in lie]),
        }
    return found


if __name__ == "__main__":
    print(json.dumps(seen(int(sys.argv[1]))))
