"""Copies of graph modules. A graph alone must not be copied: loop bodies are submodules, and would be shared."""

from __future__ import annotations

import copy

import torch
from torch.fx import Graph, GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule


def graph_module(root: torch.nn.Module, graph: Graph) -> GraphModule:
    """A GraphModule that generates its Python code when it is first called or asked for it.

    Passes make dozens of modules that are only read. An eager GraphModule generates code for all its bodies at every
    construction, which is a third of the time of a pipeline.
    """
    return _LazyGraphModule(root, graph)


def clone(module: GraphModule) -> GraphModule:
    """A copy with its own graph, loop bodies (recursively) and `node.meta` dictionaries.

    Meta *values* are shared (fake tensors, ports, tuples are never changed in place), and so are parameters,
    buffers and submodules that are not graph modules. Node names stay as they are.
    """
    made = graph_module(module, copy.deepcopy(module.graph))
    made.meta.update(module.meta)
    made.training = module.training
    for path in dict.fromkeys(str(node.target) for node in made.graph.nodes if node.op in ("get_attr", "call_module")):
        parent_path, _, name = path.rpartition(".")
        parent = made.get_submodule(parent_path)
        value = getattr(parent, name)
        if isinstance(value, GraphModule):
            setattr(parent, name, clone(value))
    return made
