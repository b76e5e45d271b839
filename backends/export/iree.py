"""Exported MLIR steps on the CPU, compiled and run by IREE."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-input-demote-f64-to-f32=false",
    # Fused again and again into each of its users, what a loop over nodes carries doubles with every node: of one row,
    # six nodes took minutes and gigabytes to compile (3.13). Without it, sixteen take seconds.
    "--iree-dispatch-creation-fuse-multi-use=false",
)

SIGNAL = re.compile(r"Error code: -(\d+)")
CRASH = re.compile(r"\b(iree_compiler::[\w:]+Pass)::")
"""A crash of the compiler comes with its stack: the pass that it was in."""


class IreeSteps:
    """One compiled module per step, made when the step is first run; one thread."""

    def __init__(self, modules: Mapping[str, bytes]) -> None:
        self.modules = modules
        self.functions: dict[str, Any] = {}

    def function(self, step: str) -> Any:
        """The compiled function of a step. Raises RuntimeError where IREE can't compile it."""
        if step not in self.functions:
            self.functions[step] = loaded(compiled(self.modules[step]), step)
        return self.functions[step]

    def prepare(self, step: str) -> None:
        """Compile a step before it is run. Raises RuntimeError where IREE can't."""
        self.function(step)

    def __call__(self, step: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run a step."""
        results = self.function(step)(*(to_array(value) for value in tensors))
        results = results if isinstance(results, (list, tuple)) else [results]
        return [to_tensor(value.to_host()) for value in results]


def to_array(value: Tensor) -> Any:
    """A tensor as an array of NumPy, which has bfloat16 from ml_dtypes only."""
    value = value.contiguous()
    if value.dtype != torch.bfloat16:
        return value.numpy()
    import ml_dtypes  # comes with IREE

    return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def to_tensor(value: Any) -> Tensor:
    """The inverse of `to_array`, a copy."""
    if value.dtype.name != "bfloat16":
        return torch.from_numpy(value.copy())
    return torch.from_numpy(value.view("int16").copy()).view(torch.bfloat16)


@lru_cache(maxsize=64)
def compiled(text: bytes) -> bytes:
    """The executable of a module of MLIR; of equal ones it is made once. Raises RuntimeError with what the compiler
    said, the place of a crash before the rest."""
    from iree.compiler import CompilerToolError, compile_str  # only there where the extra is installed

    try:
        return bytes(compile_str(text, extra_args=list(FLAGS)))
    except CompilerToolError as reason:
        said = str(reason)
        ended = SIGNAL.search(said)
        crash = CRASH.search(said)
        if ended and crash:
            said = f"iree-compile ended with signal {ended[1]} in {crash[1]}\n{said}"
        raise RuntimeError(said) from reason


def loaded(executable: bytes, name: str) -> Any:
    """The function called `name` of an executable."""
    from iree import runtime

    config = runtime.Config("local-sync")
    context = runtime.SystemContext(config=config)
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, executable))
    module = next(item for key, item in context.modules.items() if key != "hal")
    return getattr(module, name)
