"""I3, I4: the ancestor masks and positions that tree attention is really given, observed in the interpreter."""

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


@dataclass(eq=False)
class SeenMasks:
    """A hook: mask bool [B,N,N] and positions int64 [B,N] of every tree attention over all nodes at once."""

    masks: list[Tensor] = field(default_factory=list)
    positions: list[Tensor] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        declared = info(event.node.target)
        if declared is None or not declared.name.startswith("tree_attention"):
            return
        names = [argument.name for argument in declared.overload._schema.arguments]
        given: Mapping[str, Any] = {**dict(zip(names, event.args, strict=False)), **event.kwargs}
        self.masks.append(given["mask"].clone())
        self.positions.append(given["positions"].clone())

    def clear(self) -> None:
        """Forget what was seen."""
        self.masks.clear()
        self.positions.clear()


def clear_masks(machine: Machine) -> None:
    """Forget what the machine's hooks saw in earlier steps."""
    if isinstance(machine, Interpreted):
        for hook in machine.hooks:
            if isinstance(hook, SeenMasks):
                hook.clear()


def check_masks(
    checks: Checks, machine: Interpreted, where: str, trees: Sequence[DraftTree], lengths: Sequence[int | None]
) -> None:
    """I3 and I4 for what the last verify of `machine` was given; rows with length None are not looked at."""
    for hook in machine.hooks:
        if isinstance(hook, SeenMasks):
            for mask, positions in zip(hook.masks, hook.positions, strict=True):
                if mask.shape[1:] == (trees[0].num_nodes, trees[0].num_nodes):
                    _check(checks, f"{where}, {machine.name}", trees, lengths, mask, positions)


def _check(
    checks: Checks,
    where: str,
    trees: Sequence[DraftTree],
    lengths: Sequence[int | None],
    mask: Tensor,
    positions: Tensor,
) -> None:
    for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
        if length is None:
            continue
        with checks.check("I3", where):
            static.check_mask(tree, mask[row].tolist())
        with checks.check("I4", where):
            static.check_positions(tree, positions[row].tolist(), length)
