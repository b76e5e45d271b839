"""Whether a module of a target can run on a device, in this process."""

from __future__ import annotations

import importlib

import torch

from specc.diagnostics import DiagnosticError, error
from specc.driver import backend_of

INTERPRET = "TRITON_INTERPRET"


def runnable(target: str, device: str) -> None:
    """Raises DiagnosticError: SPC503 a device that is none of target's, SPC504 no such device, SPC505 compiled kernels
    on the CPU; SPC205 where a package is missing."""
    if device not in ("cpu", "cuda") or (device == "cuda" and target != "triton"):
        message = f"modules of target `{target}` can't be checked on `{device}`"
        raise DiagnosticError([error("SPC503", message, help="on the CPU, and those of triton on `--device cuda`")])
    backend_of(target)
    if target != "triton":
        return
    if device == "cuda":
        if not torch.cuda.is_available():
            remedy = "leave `--device` out: kernels are then interpreted on the CPU"
            raise DiagnosticError([error("SPC504", "there is no CUDA device here", help=remedy)])
    elif not importlib.import_module("specc.backends.triton.launch.core").interpreted():
        message = "Triton is not in its interpreter, so its kernels can't run on the CPU"
        remedy = f"set {INTERPRET}=1 before Triton is imported, as `specc check` does"
        raise DiagnosticError([error("SPC505", message, help=remedy)])
    else:
        importlib.import_module("specc.testing.triton_interpreter").keep_patches()
