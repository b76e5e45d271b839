"""One view of the NPU ops that a graph calls: ours (`specc::npu_*`), torch_npu's (`npu::`) and torchair's (`air::`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule, Node

from specc.ir.edit import modules

Namespace = Literal["specc", "npu", "air"]
NAMESPACES: Mapping[str, Namespace] = {"specc": "specc", "npu": "npu", "air": "air"}


@dataclass(frozen=True, slots=True)
class NpuCall:
    """A call by its schema. `name` has no namespace and no overload; `arguments` holds defaults too."""

    node: Node
    namespace: Namespace
    name: str
    schema: torch.FunctionSchema
    arguments: Mapping[str, Any]

    def get(self, *names: str, default: Any = None) -> Any:
        """The argument under the first of `names` that the schema has."""
        for name in names:
            if name in self.arguments:
                return self.arguments[name]
        return default

    def has(self, name: str) -> bool:
        """Whether the schema has an argument of this name."""
        return name in self.arguments

    def given(self, name: str) -> bool:
        """Whether the graph passes the argument; False where the schema's default stands."""
        if name in self.node.kwargs:
            return True
        names = [argument.name for argument in self.schema.arguments]
        return name in names and names.index(name) < len(self.node.args)

    @property
    def in_place(self) -> bool:
        """Whether the op writes into an argument."""
        return bool(self.schema.is_mutable)


def npu_call(node: Node) -> NpuCall | None:
    """The call behind a node that targets an NPU op, as an overload or as a packet (`torch.ops.npu.x`), else None."""
    schema = _schema(node.target) if node.op == "call_function" else None
    if schema is None:
        return None
    prefix, _, name = schema.name.partition("::")
    if prefix not in NAMESPACES:
        return None
    arguments: dict[str, Any] = {
        argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()
    }
    positional = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    arguments.update(zip(positional, node.args, strict=False))
    arguments.update(node.kwargs)
    return NpuCall(node, NAMESPACES[prefix], name, schema, arguments)


def _schema(target: object) -> torch.FunctionSchema | None:
    if isinstance(target, OpOverload):
        return target._schema
    if isinstance(target, OpOverloadPacket) and target._qualified_op_name.partition("::")[0] in NAMESPACES:
        overload: OpOverload = getattr(target, target.overloads()[0])
        return overload._schema
    return None


def npu_calls(module: GraphModule) -> Iterator[NpuCall]:
    """The NPU calls of a module and of the loop bodies in it, in program order."""
    for item in modules(module):
        for node in item.graph.nodes:
            call = npu_call(node)
            if call is not None:
                yield call


def fake_tensor(argument: Any) -> torch.Tensor | None:
    """The recorded value of an operand where it is a tensor."""
    value = argument.meta.get("val") if isinstance(argument, Node) else argument
    return value if isinstance(value, torch.Tensor) else None
