"""Element types that GE's own op definitions do not list: `REG_OP` texts in torchair's generated wrappers.

Only explicit lists count (`TensorType({DT_FLOAT, ...})`): families such as `BasicType()` are used by torchair for bool
everywhere and say little. The texts are older than the kernels for bfloat16, so it passes where float16 is listed.
What is found is reported, not refused: some kernels take more than their definition says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import torch

from specc.backends.ascend.harness.evaluator.node import Node

INPUT = re.compile(r"\.\w*INPUT\((\w+), (?:TensorType\(\{([^}]*)\}\)|\"(\w+)\")\)")
GROUP = re.compile(r"\.DATATYPE\((\w+), TensorType\(\{([^}]*)\}\)\)")
OWN_EXCEPTIONS = frozenset({("TopKV2", "k")})
"""torchair itself gives these inputs another type than the definition."""
NAMES: Mapping[torch.dtype, frozenset[str]] = MappingProxyType(
    {
        torch.float32: frozenset({"DT_FLOAT", "DT_FLOAT32"}),
        torch.float16: frozenset({"DT_FLOAT16"}),
        torch.bfloat16: frozenset({"DT_BF16", "DT_BFLOAT16", "DT_FLOAT16"}),
        torch.float64: frozenset({"DT_DOUBLE"}),
        torch.int8: frozenset({"DT_INT8"}),
        torch.uint8: frozenset({"DT_UINT8"}),
        torch.int16: frozenset({"DT_INT16"}),
        torch.int32: frozenset({"DT_INT32"}),
        torch.int64: frozenset({"DT_INT64"}),
        torch.uint64: frozenset({"DT_UINT64"}),
        torch.bool: frozenset({"DT_BOOL"}),
    }
)


@cache
def declared(op_type: str) -> Mapping[str, frozenset[str]]:
    """Input name -> the types its definition lists; inputs with families or without a definition are left out.

    Only while torchair is loaded.
    """
    from torchair._ge_concrete_graph import ge_apis  # importable only while torchair is loaded

    text = getattr(getattr(ge_apis, op_type, None), "__doc__", None) or ""
    groups: dict[str, str] = dict(GROUP.findall(text))
    found = {}
    for name, types, group in INPUT.findall(text):
        listed = types or groups.get(group, "")
        if listed and "()" not in listed:
            found[name] = frozenset(part.strip() for part in listed.split(","))
    return MappingProxyType(found)


def undeclared(node: Node) -> list[str]:
    """`op: input is dtype` for every input whose type the op's definition does not list."""
    lists = declared(node.op.type)
    found = []
    for name, value in node.inputs.items():
        types = lists.get(name) or lists.get(name.rstrip("0123456789"))
        if value is None or types is None or (node.op.type, name) in OWN_EXCEPTIONS:
            continue
        if value.numel() and not NAMES[value.dtype] & types:
            found.append(f"{node.op.type}: {name} is {value.dtype}")
    return found
