"""Whether a module of a target can be checked on a device, in this process."""

from __future__ import annotations

import importlib

from specc.diagnostics import DiagnosticError, error
from specc.driver import backend_of
from specc.runtime.device import device_for


def runnable(target: str, device: str) -> None:
    """Raises DiagnosticError: SPC205 a package is missing, SPC417 a device is, or Triton would compile for the CPU."""
    backend_of(target)
    device_for(target, device)
    if target == "ascend" and device == "cpu":
        importlib.import_module("specc.backends.ascend.cpu").register()
    if target != "triton" or device != "cpu":
        return
    if not importlib.import_module("specc.backends.triton.launch.core").interpreted():
        message = "Triton was imported before TRITON_INTERPRET=1 was set: its kernels can't run on the CPU any more"
        raise DiagnosticError([error("SPC417", message, help="set it before Python starts")])
    importlib.import_module("specc.testing.triton_interpreter").keep_patches()
