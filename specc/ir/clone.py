"""Copies of graph modules. A graph alone must not be copied: loop bodies are submodules, and would be shared."""

from __future__ import annotations

import copy

from torch.fx import GraphModule


def clone(module: GraphModule) -> GraphModule:
    """A copy with its own graph, loop bodies (recursively) and `node.meta` dictionaries.

    Meta *values* are shared (fake tensors, ports, tuples are never changed in place), and so are parameters,
    buffers and submodules that are not graph modules. Node names stay as they are.
    """
    made = GraphModule(module, copy.deepcopy(module.graph), type(module).__name__)
    made.meta.update(module.meta)
    made.training = module.training
    for path in dict.fromkeys(str(node.target) for node in made.graph.nodes if node.op in ("get_attr", "call_module")):
        parent_path, _, name = path.rpartition(".")
        parent = made.get_submodule(parent_path)
        value = getattr(parent, name)
        if isinstance(value, GraphModule):
            setattr(parent, name, clone(value))
    return made
