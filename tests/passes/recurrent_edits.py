"""Finding and editing nodes of a program's graphs in tests."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, loop_parts, modules
from specc.ir.loop import loop
from specc.program import DecodeProgram
from tests.passes.recurrent_programs import Recurrent, naive_program, program_at


def calls(module: GraphModule, *targets: object) -> list[Node]:
    """Calls of ops in a module and its loop bodies."""
    return [node for item in modules(module) for node in item.graph.nodes if node.target in targets]


def one(module: GraphModule, target: object) -> Node:
    """The only call of an op."""
    (node,) = calls(module, target)
    return node


def editor_of(node: Node) -> Editor:
    """An editor of the module that the node stands in."""
    owner = node.graph.owning_module
    assert owner is not None
    return Editor(owner, "edit")


def at(stage: str, small: Recurrent, step: str = "verify") -> GraphModule:
    """A fresh copy of a step after a pass."""
    return clone(program_at(small, stage).graphs[step])


def naive(small: Recurrent) -> GraphModule:
    """A fresh copy of the naive verify."""
    return clone(naive_program(small).graphs["verify"])


def with_verify(module: GraphModule, small: Recurrent) -> DecodeProgram:
    """The program with another verify."""
    return naive_program(small).with_graphs(verify=finish(module))


def token_loop(module: GraphModule) -> Node:
    """The first loop of a module: that over tokens, or the one over layers."""
    return next(node for node in module.graph.nodes if node.target is loop)


def layer_loop(module: GraphModule) -> Node:
    """The loop over layers inside the loop over tokens."""
    return token_loop(loop_parts(token_loop(module)).body)
