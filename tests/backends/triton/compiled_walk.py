"""Compiles walks over a chain for sm_90 and prints, as JSON, how their tensors lie in threads."""

from __future__ import annotations

import json
import re
import sys

from specc.backends.triton.ops.delta_launch import launch_walk, outputs_of, walk_tile
from specc.backends.triton.ops.delta_tables import WALK
from tests.backends.triton.compiled_kernels import operands
from tests.backends.triton.compiling import compiled
from tests.backends.triton.recorded import recording


def seen(keys: int) -> dict[str, dict[str, int]]:
    """By configuration of the table: changes of layout, and parts of the tile that lie as the order of sums expects
    (four neighbours in a thread, a row's threads in one warp) or otherwise."""
    state, rows = operands((8, 8) if keys == 256 else (16, 32), keys, 16)
    o, u = outputs_of(state, rows)
    found: dict[str, dict[str, int]] = {}
    for _, config in WALK[(keys, keys)]:
        block, _, across, _ = walk_tile(config, keys, keys)
        for name, after in (("verify", None), ("plain", state)):
            with recording() as launches:
                launch_walk(state, rows, o, u, after=after, config=config)
            text = compiled(launches[0]).asm["ttgir"]
            layouts = re.findall(r"^(#\w+) = #ttg\.blocked<(.*)>$", text, re.MULTILINE)
            right = f"sizePerThread = [1, 4], threadsPerWarp = [{128 // across}, {across // 4}]"
            lie = {name for name, how in layouts if right in how}
            tiles = re.findall(rf"tensor<{block}x{across}xf32, (#\w+)>", text)
            found[f"{name} {config}"] = {
                "conversions": text.count("ttg.convert_layout"),
                "parts": len([layout for layout in tiles if layout in lie]),
                "others": len([layout for layout in tiles if layout not in lie]),
            }
    return found


if __name__ == "__main__":
    print(json.dumps(seen(int(sys.argv[1]))))
