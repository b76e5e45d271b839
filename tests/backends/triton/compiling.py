"""Compiles a launch for sm_90 without a GPU and reads what the assembler says of it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.tools.tensor_descriptor import TensorDescriptor

TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}
TARGET = GPUTarget("cuda", 90, 32)


@dataclass(frozen=True, slots=True)
class Launch:
    """What a kernel was called with: `arguments` by name, constants too. `dependent`: launched with launch_pdl;
    `registers`: the most per thread."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    warps: int = 4
    stages: int = 2
    dependent: bool = False
    registers: int | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """What one program of a kernel needs: registers per thread, spilled bytes (stack), shared memory in bytes."""

    registers: int
    spills: int
    shared: int


def source_of(launch: Launch) -> ASTSource:
    """What the launch would compile: pointers and sizes that are multiples of 16 are known to be."""
    kernel = launch.kernel
    constants: dict[str, Any] = {}
    signature: dict[str, str] = {}
    aligned: dict[tuple[int], list[list[Any]]] = {}
    for place, parameter in enumerate(kernel.params):
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr or value is None:
            constants[parameter.name], signature[parameter.name] = value, "constexpr"
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = TYPES[value.dtype]
            aligned[(place,)] = [["tt.divisibility", 16]]
        elif isinstance(value, TensorDescriptor):
            signature[parameter.name] = f"tensordesc<{TYPES[value.base.dtype][1:]}{value.block_shape}>"
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        elif value == 1 and not parameter.do_not_specialize:
            constants[parameter.name], signature[parameter.name] = 1, "constexpr"
        else:
            signature[parameter.name] = "i32"
            if value % 16 == 0 and not parameter.do_not_specialize:
                aligned[(place,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constexprs=constants, attrs=aligned)


def options_of(launch: Launch) -> dict[str, Any]:
    """The compiler's options."""
    options: dict[str, Any] = {"num_warps": launch.warps, "num_stages": launch.stages}
    if launch.dependent:
        options["launch_pdl"] = True
    if launch.registers is not None:
        options["maxnreg"] = launch.registers
    return options


def compiled(launch: Launch) -> Any:
    """The kernel compiled for sm_90."""
    return triton.compile(source_of(launch), target=TARGET, options=options_of(launch))


def lowered(launch: Launch) -> Iterator[tuple[str, str]]:
    """(stage, text) of the kernel for sm_90, one after the other as they are asked for: ttir, ttgir (with the layouts
    of its tensors), llir, ptx; no machine code is made of it."""
    source, backend, context, stages = source_of(launch), make_backend(TARGET), ir.context(), dict[str, Any]()
    options = backend.parse_options(options_of(launch) | source.parse_options())
    ir.load_dialects(context)
    backend.load_dialects(context)
    backend.add_stages(stages, options, source.language)
    made = backend.get_codegen_implementation(options), backend.get_module_map()
    module = source.make_ir(TARGET, options, *made, context)
    metadata = {"target": TARGET, **options.__dict__}
    for stage in ("ttir", "ttgir", "llir", "ptx"):
        module = stages[stage](module, metadata)
        yield stage, str(module)


def resources(launch: Launch) -> Resources:
    """Registers and spills as `cuobjdump --dump-resource-usage` reads them from the cubin."""
    made = compiled(launch)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(made.asm["cubin"])
        done = subprocess.run([tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    assert found, done.stdout
    return Resources(int(found[1]), int(found[2]), made.metadata.shared)
