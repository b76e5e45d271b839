"""The operator schemas of torch_npu 2.13.0, defined for this process where no torch_npu has defined them.

Both the CPU kernels (`cpu.register`) and the harness need `torch.ops.npu.*` without the shared library that declares
it. The schemas are facts about the interface and ship as one line each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import torch
from torch.library import Library

SCHEMA_FILE = Path(__file__).parent / "harness" / "npu_schemas-2.13.0.txt"

_KEPT: list[Library] = []  # a Library takes its definitions back when it is collected


@cache
def npu_schemas() -> Mapping[str, str]:
    """`name[.overload]` -> schema without its namespace, for every `npu::` operator of torch_npu 2.13.0."""
    table = {}
    for line in SCHEMA_FILE.read_text(encoding="utf-8").splitlines():
        schema = line.removeprefix("npu::")
        table[schema.split("(", 1)[0]] = schema
    return MappingProxyType(table)


def air_schema() -> str:
    """The attention whose lengths are tensors, as torchair declares it: the npu:: schema with tensors for lists."""
    return npu_schemas()["npu_fused_infer_attention_score"].replace("SymInt[]?", "Tensor?")


def is_defined(qualified: str) -> bool:
    """Whether an operator such as `npu::npu_rms_norm` or `npu::x.overload` has a schema in this process."""
    name, _, overload = qualified.partition(".")
    found: list[torch.FunctionSchema] = torch._C._jit_get_schemas_for_operator(name)
    return any(schema.overload_name == overload for schema in found)


def has_kernel(qualified: str, key: str) -> bool:
    """Whether the operator has a kernel of its own for a dispatch key such as `CPU` or `Meta`."""
    return is_defined(qualified) and bool(torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key))


def define(names: Iterable[str]) -> None:
    """Define the `npu::` operators of these names that are not defined yet. Raises KeyError for an unknown name."""
    table = npu_schemas()
    library = Library("npu", "FRAGMENT")
    for name in names:
        if not is_defined(f"npu::{name}"):
            library.define(table[name])
    _KEPT.append(library)
