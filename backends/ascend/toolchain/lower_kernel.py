"""Run by the Python of triton-ascend's environment, with nothing but its packages: compile kernels, report as JSON.

Reads a list of cases from the standard input (see `cases.Case.request`), writes a list of results in the same order:
`stage` that was reached last ("parse", "linalg", "hivm"), `mix_mode`, `linalg_lines`, and the compiler's `log`.
"""

# Its imports exist in the other environment only.
# mypy: ignore-errors

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ascendnpuir
from triton._C.libtriton import ir
from triton.backends.ascend import compiler
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.errors import CompilationError

BISHENGIR = Path(ascendnpuir.__file__).parent / "bin" / "bishengir-compile"
PIPELINE = (
    "--enable-auto-multi-buffer=true",
    "--enable-auto-bind-sub-block=true",
    "--enable-hfusion-compile=true",
    "--enable-hivm-compile=true",
    "--enable-triton-kernel-compile=true",
)
"""What triton-ascend itself passes for devices of the A2 and A3 series."""


def kernel_of(file: str, name: str) -> Any:
    """The jitted function `name` of a kernel file."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def lower(case: dict[str, Any], device: str) -> dict[str, Any]:
    """One case, as far as it goes."""
    kernel = kernel_of(case["file"], case["kernel"])
    target = GPUTarget("npu", device, 0)
    backend = compiler.AscendBackend(target)
    options = backend.parse_options({})
    signature = {name: case["signature"][name] for name in kernel.arg_names if name in case["signature"]}
    source = ASTSource(kernel, signature=signature, constants=case["constants"])
    context = ir.context()
    ir.load_dialects(context)
    metadata: dict[str, Any] = {"target": target, **options.__dict__}
    try:
        module = source.make_ir(options, backend.get_codegen_implementation(), {}, context)
        module = compiler.make_ttir(module, metadata, options)
    except CompilationError as problem:
        return {"stage": "parse", "log": str(problem)}
    try:
        linalg = compiler.ttir_to_linalg(module, metadata, options, named_ops=True)
    except subprocess.CalledProcessError as problem:
        return {"stage": "linalg", "log": problem.stderr.decode(errors="replace")}
    linalg, metadata = compiler._parse_linalg_metadata(linalg, metadata)
    found = {"stage": "hivm", "mix_mode": metadata["mix_mode"], "linalg_lines": len(linalg.splitlines())}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.mlir"
        file.write_text(linalg, encoding="utf-8")
        command = [str(BISHENGIR), str(file), f"--target={device}", *PIPELINE, "-o", str(Path(folder) / "kernel")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    return found | {"log": done.stdout + done.stderr, "returncode": done.returncode}


def main() -> None:
    """All cases of the standard input."""
    request = json.load(sys.stdin)
    print(json.dumps([lower(case, request["device"]) for case in request["cases"]]))


if __name__ == "__main__":
    main()
