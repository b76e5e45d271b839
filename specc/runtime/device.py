"""Where a generated module runs: the device that its target wants, and whether it is there."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import torch

from specc.diagnostics import DiagnosticError, error


def torch_npu_installed() -> bool:
    """Whether there is a torch_npu to import. What stands in for it while a graph is lowered does not count: it has no
    spec, which is a ValueError."""
    try:
        return importlib.util.find_spec("torch_npu") is not None
    except ValueError:
        return False


def device_for(target: str, wanted: str | None) -> str:
    """The device for a target: what the user named, else "cuda" for triton, "npu" for ascend where torch_npu is
    installed, and "cpu".

    Raises DiagnosticError (SPC417) for a device that is not there or not of the target, and for Triton kernels on a CPU
    without Triton's interpreter.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    device = wanted or _usual(target, interpreted)
    kind = device.split(":")[0]
    if kind not in ("cpu", "cuda", "npu"):
        names = "cpu, cuda, npu, or cuda:0, cuda:1, ..."
        raise DiagnosticError([error("SPC417", f"unknown device `{device}`", help=names)])
    if target == "ascend" or kind == "npu":
        return _npu(target, device, kind)
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


def _usual(target: str, interpreted: bool) -> str:
    if target == "ascend":
        return "npu" if torch_npu_installed() else "cpu"
    return "cuda" if target == "triton" and not interpreted else "cpu"


def _npu(target: str, device: str, kind: str) -> str:
    """A device for an Ascend module: an NPU, or a CPU, where the operators have kernels of ours."""
    if kind == "cuda":
        remedy = "give --device npu or --device cpu, or compile for `--target triton`"
        raise DiagnosticError([error("SPC417", "an Ascend module does not run on a CUDA device", help=remedy)])
    if kind == "npu":
        if target != "ascend":
            remedy = "compile for `--target ascend`"
            raise DiagnosticError([error("SPC417", f"a {target} module does not run on an NPU", help=remedy)])
        if not torch_npu_installed():
            remedy = (
                "install the torch_npu that fits this torch, and CANN; --device cpu runs the same steps without an "
                "NPU, and `specc doctor --ascend` says what can be checked here"
            )
            raise DiagnosticError([error("SPC417", f"no device `{device}`: torch_npu is not installed", help=remedy)])
        _check_npu(device)
    return device


def _check_npu(device: str) -> None:
    """Import torch_npu, which adds the device to torch. Raises DiagnosticError where it sees no such NPU."""
    try:
        npu: Any = importlib.import_module("torch_npu").npu
        count = int(npu.device_count())
    except (ImportError, OSError, RuntimeError) as reason:
        remedy = "see whether `import torch_npu` works: it needs the torch that it was built for, and CANN"
        message = f"no device `{device}`: torch_npu can't be used: {reason}"
        raise DiagnosticError([error("SPC417", message, help=remedy)]) from reason
    index = device.partition(":")[2]
    if count == 0 or (index and not (index.isdecimal() and int(index) < count)):
        remedy = "give one that is there, or --device cpu (eager, for checking)"
        raise DiagnosticError([error("SPC417", f"no device `{device}`: torch_npu sees {count} NPUs", help=remedy)])


def _there(device: str) -> bool:
    if not torch.cuda.is_available():
        return False
    index = device.partition(":")[2]
    return not index or (index.isdecimal() and int(index) < torch.cuda.device_count())
