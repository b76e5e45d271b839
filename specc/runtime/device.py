"""Where a generated module runs: the device that its target wants, and whether it is there."""

from __future__ import annotations

import os

import torch

from specc.diagnostics import DiagnosticError, error


def device_for(target: str, wanted: str | None) -> str:
    """The device for a target: what the user named, else "cuda" for triton and "cpu" for reference.

    Raises DiagnosticError (SPC417) for a device that is not there, and for Triton kernels on a CPU without Triton's
    interpreter.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    device = wanted or ("cuda" if target == "triton" and not interpreted else "cpu")
    kind = device.split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise DiagnosticError([error("SPC417", f"unknown device `{device}`", help="cpu, cuda, or cuda:0, cuda:1, ...")])
    if kind == "cuda" and not _there(device):
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        remedy = "run on a machine with an NVIDIA GPU and a CUDA build of torch"
        if target == "triton":
            remedy += ", or set TRITON_INTERPRET=1 to run the kernels on the CPU (slow)"
        raise DiagnosticError([error("SPC417", f"no device `{device}`: torch sees {found} CUDA devices", help=remedy)])
    if kind == "cpu" and target == "triton" and not interpreted:
        remedy = "set TRITON_INTERPRET=1 (slow; for checking), or give --device cuda"
        raise DiagnosticError(
            [error("SPC417", "Triton kernels run on a CPU in Triton's interpreter only", help=remedy)]
        )
    return device


def _there(device: str) -> bool:
    if not torch.cuda.is_available():
        return False
    index = device.partition(":")[2]
    return not index or (index.isdecimal() and int(index) < torch.cuda.device_count())
