"""What an export needs beside torch, and how to install it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from importlib import metadata

from specc.diagnostics import DiagnosticError, error

# Target -> modules that it imports, with the names of their distributions.
NEEDED: Mapping[str, Mapping[str, str]] = {
    "onnx": {"onnx": "onnx", "onnxscript": "onnxscript"},
    "mlir": {"torch_mlir": "torch-mlir"},
}


def check_installed(target: str) -> None:
    """Raises DiagnosticError (SPC205) where a package that the target needs is missing."""
    missing = [name for module, name in NEEDED[target].items() if importlib.util.find_spec(module) is None]
    if missing:
        packages = ", ".join(f"`{name}`" for name in missing)
        remedy = f"pip install 'specc[{target}]'"
        if target == "mlir":
            remedy += " (wheels of torch-mlir are listed on https://github.com/llvm/torch-mlir-release/releases)"
        message = f"target `{target}` needs the package{'s' * (len(missing) > 1)} {packages}"
        raise DiagnosticError([error("SPC205", message, help=remedy)])


def versions(target: str) -> dict[str, str]:
    """The versions that an export was made with."""
    return {name: metadata.version(name) for name in ("torch", *NEEDED[target].values())}
