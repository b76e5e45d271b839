"""Writes the modules that `check` runs on a GPU, so that the machine with the GPU needs torch and triton only.

    python -m tests.backends.triton.gpu.prepare FOLDER [--case NAME ...]

FOLDER gets one archive per case, CASE.tar.gz: triton32.py, triton16.py (bfloat16), reference32.py, reference64.py.
"""

from __future__ import annotations

import argparse
import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

from specc.driver import compile_spec
from specc.spec import LoadedSpec, from_mapping
from tests.backends.triton.modules import COMMITS, DRAFTS, Cell

CELLS = (
    Cell("llama", "plain", "length"),
    Cell("llama", "lookup tree", "path, deferred"),
    Cell("qwen3", "dynamic tree", "path, deferred"),
    Cell("pangu", "chain", "length"),
    Cell("llama", "static tree", "path", "true_q"),
    Cell("llama", "eagle", "path, deferred"),
    Cell("delta", "lookup tree", "windowed"),
    Cell("shared heads", "chain", "snapshots", schedule="serial"),
    Cell("delta", "lookup tree", "replay", "target_only", "replay"),
    Cell("hybrid", "dynamic tree", "deferred", schedule="hybrid"),
    Cell("experts", "lookup tree", "deferred"),
    Cell("pangu", "lookup tree", "path", page=16),
)
WIDE_LLAMA = {
    "num_hidden_layers": 2,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "intermediate_size": 1536,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
WIDE_DELTA = {
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "num_heads": 2,
    "head_dim": 256,
    "expand_v": 1,
    "intermediate_size": 704,
    "vocab_size": 1000,
}
WIDE_HEADS = WIDE_LLAMA | {"hidden_size": 512, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128}
WIDE: Mapping[str, tuple[dict[str, object], str, int]] = {
    "wide-llama": ({"family": "llama", "config": WIDE_LLAMA}, "path, deferred", 0),
    "wide-delta": ({"family": "gated_deltanet", "config": WIDE_DELTA}, "windowed", 0),
    "wide-pages-of-16": ({"family": "llama", "config": WIDE_LLAMA}, "path, deferred", 16),
    "wide-pages-of-64": ({"family": "llama", "config": WIDE_LLAMA}, "path, deferred", 64),
    "wide-pages-of-128": ({"family": "llama", "config": WIDE_LLAMA}, "path", 128),
    "wide-tree-of-64": ({"family": "llama", "config": WIDE_HEADS}, "path, deferred", 0),
}
TREES = {"wide-tree-of-64": (63, 16, 4)}
"""Layers of usual widths, capacities that attention reads in several parts; the last: rows of a page, 0: no pages."""
KINDS = {"triton32": "float32", "triton16": "bfloat16", "reference32": "float32", "reference64": "float64"}


def name_of(cell: Cell) -> str:
    """A file's name."""
    return re.sub(r"[^a-z0-9_]+", "-", str(cell))


def wide(name: str, dtype: str) -> LoadedSpec:
    """A spec of WIDE."""
    target, commit, page = WIDE[name]
    runtime: dict[str, object] = {"max_batch_size": 8, "max_sequence_length": 512, "dtype": dtype}
    if page:
        runtime |= {"kv_layout": "paged", "kv_block_size": page}
    if target["family"] == "gated_deltanet":
        runtime["state_dtype"] = "float64" if dtype == "float64" else "float32"
    tree = TREES.get(name, (15, 6, 3))
    draft = DRAFTS["lookup tree"] | dict(zip(("num_speculative_tokens", "num_steps", "top_k"), tree, strict=True))
    sections = {"target": target, "draft": draft, "commit": COMMITS[commit], "runtime": runtime}
    return from_mapping({"specc": 1, "name": name, **sections})


def spec_of(case: Cell | str, dtype: str) -> LoadedSpec:
    """The spec of a case, computing in `dtype`."""
    return wide(case, dtype) if isinstance(case, str) else case.loaded(dtype)


def write(case: Cell | str, folder: Path) -> None:
    """The archive of a case."""
    name = case if isinstance(case, str) else name_of(case)
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
        for kind, dtype in KINDS.items():
            target = "triton" if kind.startswith("triton") else "reference"
            text = compile_spec(spec_of(case, dtype), target, verify=False).source.encode()
            entry = tarfile.TarInfo(f"{kind}.py")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--case", action="append", default=[], help="part of a name; default: all")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for case in (*CELLS, *WIDE):
        name = case if isinstance(case, str) else name_of(case)
        if not args.case or any(part in name for part in args.case):
            try:
                write(case, args.folder)
            except (LookupError, RuntimeError, TypeError, ValueError) as problem:
                (args.folder / f"{name}.tar.gz").unlink()
                print(f"{name} is left out: {type(problem).__name__}: {problem}", flush=True)
            else:
                print(name, flush=True)


if __name__ == "__main__":
    main()
