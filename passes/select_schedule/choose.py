"""Choosing a schedule for one verify op, with the numbers that decided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from specc.ir import ops
from specc.manager import Note
from specc.passes.select_schedule.cost import Case, Estimate, estimate
from specc.passes.select_schedule.measured import DeviceName, Sizes
from specc.passes.select_schedule.sites import Site
from specc.passes.select_schedule.tiles import FORM, SCHEDULES, Schedule, chain_rows, likely_rows
from specc.program import DecodeProgram


def case_of(site: Site, program: DecodeProgram) -> Case:
    """Sizes of a verify op: from its operands, and the batch and depth from the program's attributes."""
    state, keys, values = (site.argument(name).meta["val"] for name in ("state", "k", "v"))
    nodes, depth = int(values.shape[1]), int(program.attributes.get("num_steps", values.shape[1]))
    tree = site.node.target is not ops.delta_rule and site.argument("parent_row") is not None
    sizes = Sizes(
        key_heads=int(keys.shape[2]),
        value_heads=int(state.shape[1]),
        key_dim=int(state.shape[3]),
        value_dim=int(state.shape[2]),
        state_bytes=state.element_size(),
    )
    folds = 0.0
    if site.node.target is ops.delta_rule_verify_pending:
        folds = 1 / math.ceil(max(int(site.argument("window")), 1) / (depth + 1))
    return Case(
        sizes=sizes,
        batch=int(program.attributes.get("max_batch_size", 1)),
        parent_row=tuple(likely_rows(nodes, depth) if tree else chain_rows(nodes)),
        keep=site.node.target is ops.delta_rule_verify_states,
        folds=folds,
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """A schedule for the state slots `slots`, which are verified alike, and what speaks for it."""

    slots: tuple[str, ...]
    case: Case
    schedule: Schedule
    asked: bool
    device: DeviceName
    estimates: tuple[Estimate, ...]

    def notes(self, pass_name: str, keys: tuple[str, ...]) -> list[Note]:
        """The choice, then one line per schedule."""
        case = self.case
        names = ", ".join(f"`{name}`" for name in self.slots)
        shape = "a chain" if case.parent_row == tuple(chain_rows(len(case.parent_row))) else "a tree"
        why = "asked for" if self.asked else f"least estimated time on {self.device}, {self._decided()}"
        bits = FORM[self.schedule] == "steps"
        exact = "the bits of plain decoding" if bits else "within rounding of plain decoding, not bit-identical"
        head = (
            f"{names}: {self.schedule} ({why}); {exact}. N {len(case.parent_row)} in {shape}, batch {case.batch}, "
            f"state {_size(case.sizes.tile)} a layer{', node states are results' if case.keep else ''}"
        )
        return [
            Note(pass_name, "verify", head, True, keys),
            *(
                Note(pass_name, "verify", self._line(item), item.schedule == self.schedule, keys)
                for item in self.estimates
            ),
        ]

    def _line(self, item: Estimate) -> str:
        source = "; corrected by measured times" if item.measured else ""
        launches = "1 launch" if item.launches == 1 else f"{item.launches} launches"
        products = f", {item.matrix_flops / 1e6:.3g} Mflop in matrix products" if item.matrix_flops else ""
        return (
            f"{item.schedule}: {item.microseconds:.1f} us a layer on {self.device}: {launches}, "
            f"{item.tiles.steps} steps, {item.tiles.read} state tiles read and {item.tiles.written} written a sequence"
            f"{products}{source}"
        )

    def _decided(self) -> str:
        """What the runner-up pays for."""
        chosen = next(item for item in self.estimates if item.schedule == self.schedule)
        others = sorted(
            (item for item in self.estimates if item.schedule != self.schedule), key=lambda item: item.microseconds
        )
        second = others[0]
        gap = f"{chosen.microseconds:.1f} us against {second.microseconds:.1f} of {second.schedule}"
        tiles = (second.tiles.read + second.tiles.written) - (chosen.tiles.read + chosen.tiles.written)
        if tiles > 0:
            return f"{gap}, which moves {tiles} more state tiles a sequence"
        if second.tiles.steps > chosen.tiles.steps:
            return f"{gap}, whose {second.tiles.steps} steps wait for each other"
        if second.matrix_flops > chosen.matrix_flops:
            return f"{gap}, whose matrix products cost more than they save here"
        return f"{gap}, which has {second.launches} launches to {chosen.launches}" if second != chosen else gap


def _size(size: int) -> str:
    return f"{size / 2**20:.3g} MiB" if size >= 2**20 else f"{size / 2**10:.3g} KiB"


def choose(
    case: Case,
    slots: tuple[str, ...],
    asked: Literal["auto", "replay", "serial", "hybrid", "tree"],
    device: DeviceName,
) -> Choice:
    """The schedule that was asked for, or the one with the least estimated time (of equals, the simpler)."""
    estimates = tuple(estimate(schedule, case, device) for schedule in SCHEDULES)
    order: tuple[Schedule, ...] = ("serial", "hybrid", "tree", "replay")
    if asked != "auto":
        return Choice(slots, case, asked, True, device, estimates)
    best = min(estimates, key=lambda item: (round(item.microseconds, 3), order.index(item.schedule)))
    return Choice(slots, case, best.schedule, False, device, estimates)
