"""Stand-ins for torchair's compiled extension and for the few functions of torch_npu that its Python files call.

torchair hands its finished graph to `TorchNpuGraphBase.load` (serialised, with placements and output types), asks
it to `compile`, and calls `run((inputs, assigned_outputs, stream))` for every step. Ours parses the proto back, so
what is evaluated went through the same bytes as what a device would get.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch

SOC_NAME = "Ascend910B3"
SOC_VERSION = 220  # torch_npu's number for the Ascend910B series
CANN_VERSION = "9.0.0"
ENGINE_CALLS = ("InitializeGraphEngine", "FinalizeGraphEngine", "InitDeviceStdoutChannel", "SetDebugLogPath")

Loaded = tuple[bytes, dict[str, str]]


class DeviceGraph:
    """What torchair believes to be the loaded graph. `receiver` is set by `lower` while a compilation runs."""

    receiver: Any = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.owner: Any = None

    def load(
        self, model: bytes, options: dict[str, str], placements: Sequence[int], dtypes: Sequence[int], executor: int
    ) -> None:
        """Take the serialised ModelDef. `placements`, `dtypes` and `executor` are also attributes of the graph."""
        if DeviceGraph.receiver is None:
            raise RuntimeError("a graph was loaded outside `lower`")
        self.owner = DeviceGraph.receiver.loaded(model, dict(options))

    def set_hint_shape(self, inputs: Any, outputs: Any) -> None:
        """Hints for the device's memory plan: of no meaning here."""

    def compile(self) -> None:
        """GE's own compilation: not modelled."""

    def run(self, arguments: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor | None], Any]) -> list[torch.Tensor]:
        """One step: inputs, the tensors that must receive outputs (None: nobody), and a stream."""
        inputs, assigned, _ = arguments
        result: list[torch.Tensor] = self.owner.run(list(inputs), list(assigned))
        return result


class _EnumNames:
    """An enumeration of which only identity matters."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def _nothing(*_: Any) -> None:
    return None


def _refuse(name: str) -> NoReturn:
    raise AttributeError(f"torchair used {name}, which the harness does not stand in for")


def extension_module() -> ModuleType:
    """`torchair.core._torchair`."""
    module = ModuleType("torchair.core._torchair")
    module.TorchNpuGraphBase = DeviceGraph  # type: ignore[attr-defined]
    module.TorchDataType = _EnumNames()  # type: ignore[attr-defined]
    module.check_cann_compat = lambda op, inputs, attributes: ""  # type: ignore[attr-defined]
    module.get_registered_ir_def = lambda name: ("", [], [], [])  # type: ignore[attr-defined]
    module.GetSocName = lambda: SOC_NAME  # type: ignore[attr-defined]
    for name in ENGINE_CALLS:
        setattr(module, name, _nothing)
    return module


def torch_npu_modules() -> dict[str, ModuleType]:
    """`torch_npu` and the submodules that torchair and the wheel's meta registrations import.

    `torch_npu.npu_x` is `torch.ops.npu.npu_x`, as in the real package; anything else that is missing raises.
    """
    root = _package("torch_npu")
    root.npu = _package("torch_npu.npu")  # type: ignore[attr-defined]
    root.__getattr__ = _operator  # type: ignore[method-assign]
    root.npu.get_device_name = lambda *_: SOC_NAME
    root.npu.current_device = lambda: 0
    root.npu._get_deterministic_level = lambda: 0
    root.npu.matmul = SimpleNamespace(allow_hf32=False)
    root.npu.conv = SimpleNamespace(allow_hf32=True)
    for number, name in NPU_DTYPES.items():
        setattr(root, name, number)
    codes = ModuleType("torch_npu.utils._error_code")
    codes.ErrCode = _EnumNames()  # type: ignore[attr-defined]
    for name in ("ops_error", "pta_error", "graph_error"):
        setattr(codes, name, str)
    versions = ModuleType("torch_npu.npu.utils")
    versions.get_cann_version = lambda module="CANN": CANN_VERSION  # type: ignore[attr-defined]
    versions._is_gte_cann_version = lambda version, module="CANN": True  # type: ignore[attr-defined]
    root.npu.utils = versions
    backends = ModuleType("torch_npu.npu._backends")
    backends.get_soc_version = lambda: SOC_VERSION  # type: ignore[attr-defined]
    utils = _package("torch_npu.utils")
    return {module.__name__: module for module in (root, root.npu, utils, codes, versions, backends)}


NPU_DTYPES = {
    285: "int4",
    290: "hifloat8",
    293: "float8_e8m0fnu",
    296: "float4_e2m1fn_x2",
    297: "float4_e1m2fn_x2",
}


def _package(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = []
    return module


def _operator(name: str) -> Any:
    """`torch_npu.<name>` for operators."""
    if name.startswith("npu_") and hasattr(torch.ops.npu, name):
        return getattr(torch.ops.npu, name)
    raise AttributeError(f"module 'torch_npu' has no attribute '{name}' (a stand-in without an NPU)")
