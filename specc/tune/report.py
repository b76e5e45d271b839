"""What a tuning run says: the JSON of its measurements, a table for people, and the header of the written spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specc.tune.choose import Bounds, Choice, Margin, heat_map
from specc.tune.ranks import DepthShares
from specc.tune.timing import Point, StepModel
from specc.tune.variants import Kind

STATIC_SHAPES = (
    "nodes that pruning drops become padding: with static shapes a step takes as long as before, unless "
    "num_speculative_tokens is lowered to a smaller bucket of rows; what they save is work on padding-free devices"
)


SHOWN = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 24, 31, 47, 63)
"""Budgets that the heat map shows."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A chosen tree, compiled and run on prompts that nothing was chosen by."""

    choice: Choice
    acceptance_length: float
    steps: int
    tokens_per_second: float
    point: Point | None

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "tree": self.choice.tree.label,
            "predicted_acceptance_length": round(self.choice.replay.acceptance_length, 4),
            "standard_error": round(self.choice.replay.standard_error, 4),
            "measured_acceptance_length": round(self.acceptance_length, 4),
            "measured_steps": self.steps,
            "predicted_step_us": round(self.choice.seconds * 1e6, 1),
            "measured_tokens_per_second": round(self.tokens_per_second, 2),
        }
        if self.point is not None:
            found["measured_step_us"] = round(self.point.seconds * 1e6, 1)
        return found


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that a run measured and chose; `chosen` is what the written spec has."""

    origin: str
    texts: int
    positions: int
    depths: Sequence[DepthShares]
    model: StepModel
    plain: Point | None
    bounds: Bounds
    grid: Sequence[Choice]
    best: Mapping[Kind, Choice]
    before: Choice
    chosen: Choice
    margins: Sequence[Margin] = ()
    checked: Sequence[Checked] = ()
    notes: Sequence[str] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """In the form of `specc report`: tables, a heat map, a curve; the rows of the grid beside them."""
        budgets = [nodes for nodes in SHOWN if nodes < self.bounds.nodes] + [self.bounds.nodes]
        found: dict[str, Any] = {
            "title": "Tuning of the draft tree",
            "note": "; ".join(self.notes),
            "prompts": {"origin": self.origin, "texts": self.texts, "positions": self.positions},
            "acceptance": [depth.as_json() for depth in self.depths],
            "step_time": {
                "base_us": round(self.model.base * 1e6, 2),
                "node_us": round(self.model.node * 1e6, 3),
                "level_us": round(self.model.level * 1e6, 3),
                "edges_us": {str(rows): round(seconds * 1e6, 2) for rows, seconds in self.model.edges},
                "worst_relative_error": self.model.worst,
                "worst_left_out_error": self.model.left_out,
            },
            "tables": [self._kinds(), self._ranks(), self._times()],
            "heat_maps": [heat_map(self.grid, self.bounds, budgets)],
            "grid": [choice.as_json() for choice in self.grid[:200]],
            "chosen": self.chosen.as_json(),
        }
        if self.margins:
            found["tables"].append(self._margins())
        if self.checked:
            rows = [one.as_json() | {"kind": "measured"} for one in self.checked]
            found["tables"].append({"name": "checked", "title": "Chosen trees on other prompts", "rows": rows})
        return found

    def _kinds(self) -> dict[str, Any]:
        rows = [{"role": "the source's", **self.before.as_json()}]
        rows += [{"role": "best of its kind", **choice.as_json()} for choice in self.best.values()]
        rows.append({"role": "chosen", **self.chosen.as_json()})
        for row in rows:
            row |= {"kind": "modelled"}
            row.pop("choices", None)
        return {"name": "trees", "title": "Trees by replayed acceptance and modelled time", "rows": rows}

    def _ranks(self) -> dict[str, Any]:
        rows = [
            {"depth": depth.depth, "trials": depth.trials}
            | {f"rank_{rank}": round(one.share, 4) for rank, one in enumerate(depth.ranks)}
            for depth in self.depths
        ]
        return {"name": "ranks", "title": "Acceptance by depth and rank of the child", "rows": rows}

    def _times(self) -> dict[str, Any]:
        points = [*self.model.points, *([] if self.plain is None else [self.plain])]
        rows = [
            point.as_json() | {"model_us": round(self.model.seconds(point.tree.nodes, point.tree.steps) * 1e6, 1)}
            for point in points
        ]
        if self.plain is not None:
            rows[-1] |= {"tree": "plain decoding", "model_us": None}
        return {"name": "steps", "title": "Time of a step, from the host", "rows": rows}

    def _margins(self) -> dict[str, Any]:
        rows = [dict(margin.as_json()) for margin in self.margins]
        return {"name": "margins", "title": "prune.path_log_prob_margin", "rows": rows, "note": STATIC_SHAPES}

    def header(self, device: str, command: str) -> list[str]:
        """Comment lines of the written spec."""
        choice, errors = self.chosen, _within(self.model)
        lines = [
            f"Tree chosen by `{command}`: {choice.tree.label}.",
            f"Measured on {device}: {self.positions} positions of {self.texts} texts ({self.origin}), "
            f"{len(self.model.points)} step times ({errors}).",
            f"Expected there: acceptance_length {choice.replay.acceptance_length:.2f} "
            f"(standard error {choice.replay.standard_error:.2f}), {choice.seconds * 1e6:.0f} us a step, "
            f"{choice.rate:.0f} tokens/s; before: {self.before.replay.acceptance_length:.2f}, "
            f"{self.before.rate:.0f} tokens/s.",
        ]
        for one in self.checked:
            if one.choice.tree == choice.tree:
                lines.append(
                    f"Run on other prompts: acceptance_length {one.acceptance_length:.2f} over {one.steps} steps, "
                    f"{one.tokens_per_second:.0f} tokens/s."
                )
        return [*lines, *self.notes]

    def text(self) -> str:
        """For people."""
        lines = [
            f"{self.positions} positions of {self.texts} texts ({self.origin})",
            "",
            "acceptance by depth and rank",
        ]
        for depth in self.depths:
            shares = "  ".join(f"{one.share:.3f}" for one in depth.ranks)
            low, high = depth.ranks[0].interval
            lines.append(f"  depth {depth.depth}: {shares}   rank 0 in [{low:.3f}, {high:.3f}], {depth.trials} trials")
        model = self.model
        parts = f"{model.base * 1e6:.0f} us + {model.node * 1e6:.2f} per node + {model.level * 1e6:.1f} per level"
        parts += "".join(f" + {seconds * 1e6:.0f} above {rows} rows" for rows, seconds in model.edges)
        lines += ["", f"step time: {parts}; {_within(model)}"]
        lines += [f"  {point.tree.label}: {point.seconds * 1e6:.0f} us ({point.steps} steps)" for point in model.points]
        if self.plain is not None:
            lines.append(f"  plain decoding: {self.plain.seconds * 1e6:.0f} us")
        lines.append("")
        best = ((f"best {kind}", one) for kind, one in self.best.items())
        for name, choice in (("source", self.before), *best, ("chosen", self.chosen)):
            expected = "" if choice.expected is None else f" ({choice.expected:.3f} by ranks)"
            lines.append(
                f"{name}: {choice.tree.label}: acceptance_length {choice.replay.acceptance_length:.3f}"
                f" +- {choice.replay.standard_error:.3f}{expected}, {choice.seconds * 1e6:.0f} us, "
                f"{choice.rate:.1f} tokens/s"
            )
        for margin in self.margins:
            effect = f"keeps {margin.kept:.2%} of acceptance_length, saves {margin.saved:.1%} of nodes"
            lines.append(f"margin {margin.margin:g}: {effect}")
        lines += [STATIC_SHAPES] if self.margins else []
        for one in self.checked:
            hoped = one.choice.replay.acceptance_length
            told = f"{one.acceptance_length:.3f} over {one.steps} steps (expected {hoped:.3f})"
            lines.append(
                f"checked {one.choice.tree.label}: acceptance_length {told}, {one.tokens_per_second:.1f} tokens/s"
            )
        return "\n".join([*lines, *self.notes])


def _within(model: StepModel) -> str:
    """How far the model of the time of a step is off."""
    if model.worst is None:
        return "model through all points, its error is unknown"
    left = "" if model.left_out is None else f", {model.left_out:.0%} at a point left out"
    return f"model within {model.worst:.0%}{left}"
