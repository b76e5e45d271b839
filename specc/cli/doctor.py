"""`specc doctor`: which parts this installation can use. Nothing heavy is imported to find out."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from specc import __version__
from specc.cli.common import add_json
from specc.runtime.cache import MODELS_FOLDER, cache_root, is_complete

REQUIRED = ("torch", "pydantic", "PyYAML", "numpy", "safetensors", "tokenizers", "jinja2", "rich", "hypothesis")
OPTIONAL = {
    "triton": "the triton backend",
    "torch_npu": "the ascend backend on an NPU",
    "onnxscript": "the onnx target",
    "onnxruntime": "runs ONNX exports in tests",
    "torch-mlir": "the mlir target",
    "iree-base-compiler": "runs MLIR exports in tests",
    "gguf": "specc fetch",
    "transformers": "comparisons in tests and specc/bench",
}
TARGETS = {
    "reference": "plain PyTorch, CPU or GPU",
    "triton": "kernels and CUDA graphs for NVIDIA GPUs",
    "ascend": "torch_npu in graph mode; what can be checked of it here: specc doctor --ascend",
    "onnx": "ONNX graphs of every step",
    "mlir": "linalg on tensors of every step",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ascend", action="store_true", help="the test ladder of the Ascend backend, rung by rung")
    parser.add_argument(
        "--ascend-python",
        type=Path,
        metavar="FILE",
        help="the Python of an environment with triton-ascend; default: the one that `make ascend-kernels` makes",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.ascend or args.ascend_python is not None:
        from specc.cli.doctor_ascend import report as ladder

        return ladder(args.ascend_python, args.json)
    required = {name: _version(name) for name in REQUIRED}
    optional = {name: _version(name) for name in OPTIONAL}
    nvidia = Path("/proc/driver/nvidia/version").exists()
    cache, models = cache_root(), fetched_models()
    missing = [name for name, version in required.items() if version is None]
    if args.json:
        report = {
            "specc": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "required": required,
            "optional": optional,
            "nvidia_driver": nvidia,
            "targets": sorted(TARGETS),
            "cores": os.cpu_count(),
            "cache": str(cache),
            "models": models,
            "missing": missing,
        }
        print(json.dumps(report))
    else:
        print(f"specc {__version__}, Python {platform.python_version()}, {platform.platform()}")
        for name, version in required.items():
            print(f"  {name:12} {version or 'MISSING'}")
        for name, version in optional.items():
            print(f"  {name:12} {version or 'not installed'}  ({OPTIONAL[name]})")
        print(f"  {os.cpu_count()} CPU cores; NVIDIA driver {'found' if nvidia else 'not found'}")
        for name, text in TARGETS.items():
            print(f"  target {name}: {text}")
        print(f"  fetched models in {cache}: {', '.join(models) or 'none (specc fetch smollm2-135m-instruct)'}")
    if missing:
        print(f"missing: pip install {' '.join(missing)}", file=sys.stderr)
        return 1
    return 0


def fetched_models() -> list[str]:
    """Names of the complete models in the cache folder."""
    folder = cache_root() / MODELS_FOLDER
    return sorted(path.name for path in folder.iterdir() if is_complete(path)) if folder.is_dir() else []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
