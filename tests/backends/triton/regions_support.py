"""Graphs printed as functions with and without regions, and random graphs of the nodes that regions know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.printing.dialect import Dialect
from specc.backends.printing.expression import Expr
from specc.backends.printing.helpers import HelperSources
from specc.backends.printing.names import Names
from specc.backends.printing.printer import GraphPrinter
from specc.backends.printing.regions import Plan, RegionCall
from specc.backends.reference.kernels import POINTWISE
from specc.backends.triton.regions.planning import plan
from specc.ir.dims import BATCH
from specc.ir.edit import is_loop, loop_parts
from specc.ir.interpreter import Interpreter
from specc.ir.op import info
from specc.runtime.module import import_source

ROWS = 3
"""The batch size of runs."""


def printed(module: GraphModule, *, regions: bool = True) -> str:
    """A module with the function `f` that computes the graph."""
    sources = HelperSources({"f"})

    def helper(target: Any) -> str:
        declared = info(target)
        if declared is not None:
            return sources.add(declared.reference)
        return sources.add(target) if callable(target) else sources.add_generated(target)

    dialect = Dialect("test", pointwise=POINTWISE, regions=plan if regions else None)
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    printer = GraphPrinter(dialect, helper, Names({"f", *(node.name for node in places)}))
    values = printer.print(module, {node: Expr(node.name) for node in places})
    head = f"def f({', '.join(node.name for node in places)}):"
    body = [head, *printer.lines, f"    return ({''.join(f'{value.text}, ' for value in values)})"]
    fixed = ["from __future__ import annotations", "import torch", "import torch.nn.functional as F"]
    imports = sorted({*sources.imports.values(), "from torch import Tensor"})
    return "\n".join([*fixed, *imports, *sources.texts, *body]) + "\n"


def compiled(source: str) -> Callable[..., Any]:
    """The function of a printed module."""
    made: Callable[..., Any] = import_source(source, "regions").f
    return made


def real(fake: torch.Tensor, seed: int) -> torch.Tensor:
    """A random tensor of a type, with ROWS for the batch."""
    shape = [ROWS if size == BATCH else int(size) for size in fake.shape]
    generator = torch.Generator().manual_seed(seed)
    if fake.dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not fake.dtype.is_floating_point:
        return torch.randint(-4, 9, shape, generator=generator, dtype=fake.dtype)
    return torch.randn(shape, generator=generator).to(fake.dtype)


def inputs(module: GraphModule, seed: int) -> list[torch.Tensor]:
    """Random inputs of a graph."""
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    return [real(node.meta["val"], seed * 100 + number) for number, node in enumerate(places)]


def both(module: GraphModule, seed: int) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    """Outputs of the interpreter and of the printed regions, which leave their inputs alike."""
    given = inputs(module, seed)
    changed = [value.clone() for value in given]
    wanted = Interpreter(module).run(*given)
    got = compiled(printed(module))(*changed)
    for old, new in zip(given, changed, strict=True):
        assert torch.equal(old, new), "inputs are written alike"
    return wanted, got


def region_calls(module: GraphModule) -> list[RegionCall]:
    """All regions of a graph and of the bodies of its loops that stay loops."""
    made: Plan = plan(module)
    found: list[RegionCall] = []
    for unit in made.order:
        if isinstance(unit, RegionCall):
            found.append(unit)
        elif is_loop(unit):
            found += region_calls(loop_parts(unit).body)
    return found


def outside(module: GraphModule) -> list[Node]:
    """Nodes that are printed by themselves, in order."""
    return [unit for unit in plan(module).order if isinstance(unit, Node)]
