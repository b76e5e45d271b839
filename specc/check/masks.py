"""I3, I4: the ancestor masks and positions that tree attention and the delta rule are really given, observed in the
interpreter; and I1 for the parents that a convolution or a delta rule goes along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specc.check.findings import Checks
from specc.check.machines import Interpreted, Machine
from specc.ir.interpreter import Event
from specc.ir.op import info
from specc.testing import invariants as static
from specc.testing.draft_tree import DraftTree

LOOKED_AT = ("tree_attention", "delta_rule_verify", "tree_conv")


@dataclass(eq=False)
class SeenMasks:
    """A hook: what ops over all nodes at once are given: masks bool [B,N,N], positions and parent rows int64 [B,N]."""

    masks: list[Tensor] = field(default_factory=list)
    positions: list[Tensor] = field(default_factory=list)
    parents: list[Tensor] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        declared = info(event.node.target)
        if declared is None or not declared.name.startswith(LOOKED_AT):
            return
        names = [argument.name for argument in declared.overload._schema.arguments]
        given: Mapping[str, Any] = {**dict(zip(names, event.args, strict=False)), **event.kwargs}
        for name, seen in (("mask", self.masks), ("positions", self.positions), ("parent_row", self.parents)):
            if given.get(name) is not None:
                seen.append(given[name].clone())

    def clear(self) -> None:
        """Forget what was seen."""
        for seen in (self.masks, self.positions, self.parents):
            seen.clear()


def clear_masks(machine: Machine) -> None:
    """Forget what the machine's hooks saw in earlier steps."""
    if isinstance(machine, Interpreted):
        for hook in machine.hooks:
            if isinstance(hook, SeenMasks):
                hook.clear()


def check_masks(
    checks: Checks, machine: Interpreted, where: str, trees: Sequence[DraftTree], lengths: Sequence[int | None]
) -> None:
    """I1, I3 and I4 for what the last verify of `machine` was given; rows with length None are not looked at."""
    nodes, place = trees[0].num_nodes, f"{where}, {machine.name}"
    for hook in machine.hooks:
        if not isinstance(hook, SeenMasks):
            continue
        for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
            if length is None:
                continue
            for mask in hook.masks:
                if mask.shape[1:] == (nodes, nodes):
                    with checks.check("I3", place):
                        static.check_mask(tree, mask[row].tolist())
            for positions in hook.positions:
                if positions.shape[1] == nodes:
                    with checks.check("I4", place):
                        static.check_positions(tree, positions[row].tolist(), length)
            for parents in hook.parents:
                if parents.shape[1] == nodes:
                    _check_parents(checks, place, tree, parents[row].tolist())


def _check_parents(checks: Checks, where: str, tree: DraftTree, rows: Sequence[int]) -> None:
    """I1 for parent rows: 0 is the committed context, that of node i is its parent's number + 1."""
    wanted = [parent + 1 for parent in tree.parent]
    wrong = [node for node in range(tree.num_nodes) if tree.valid[node] and rows[node] != wanted[node]]
    text = f"parent rows {list(rows)} instead of {wanted}" if wrong else None
    checks.require("I1", where, text, tree)
