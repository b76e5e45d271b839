"""Bytes of recurrent state that a decoding step moves, per layer, for every verify schedule and commit of a spec.

    specc bench traffic SPEC [--set key=value] [--batch B] [--emitted E] [--context T] [--window W] [--json]

A model, not a measurement: tiles [HV,V,K] read and written are counted from the tree (of a spec's static choices, or a
likely tree of its nodes and levels) as the schedules move them; a test holds them equal to counts made while the
interpreter runs on random trees. One step is a verify and a commit; a deferred commit's fold counts in the verify
that does it. Beside the state: rows of factors, convolution inputs and K, V of the same step.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from specc.bench.arguments import whole
from specc.diagnostics import DiagnosticError, error
from specc.models.geometry import DeltaGeometry
from specc.passes.select_schedule.tiles import SCHEDULES, Schedule, Tiles, chain_rows, likely_rows, verify_tiles
from specc.spec import load
from specc.spec.model import Spec

Commit = Literal["snapshots", "replay", "factors", "deferred", "windowed"]
COMMITS: tuple[Commit, ...] = ("snapshots", "replay", "factors", "deferred", "windowed")
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
NOTHING = Tiles(0, 0, 0)


def verify_moves(
    schedule: Schedule, commit: Commit, trees: Sequence[Sequence[int]], pending: Sequence[int], window: int
) -> Tiles:
    """Tiles of one layer that verifying a batch moves.

    `trees`: `parent_row` per sequence (0: the committed context, node i is i + 1). `pending`: factors pending before,
    per sequence (0 where updates are immediate); those of a sequence are folded from 1, or from `window`, on.
    """
    moved = NOTHING
    for rows, count in zip(trees, pending, strict=True):
        moved += verify_tiles(schedule, rows, commit == "snapshots")
        due = count >= max(window, 1) if commit == "windowed" else commit == "deferred" and count > 0
        moved += Tiles(0, int(due), 0)
    return moved


def commit_moves(commit: Commit, emitted: Sequence[int], max_path: int) -> Tiles:
    """Tiles of one layer that committing `emitted` tokens per sequence moves."""
    if commit == "factors":
        moved = sum(count > 0 for count in emitted)
        return Tiles(moved, moved, 0)
    if commit == "snapshots":
        return Tiles(len(emitted), len(emitted), 0)
    if commit == "replay":
        return Tiles(len(emitted), len(emitted), max_path * len(emitted))
    return NOTHING


@dataclass(frozen=True, slots=True)
class Setting:
    """What the table is for. `emitted`: tokens a step commits; `context`: committed tokens that attention reads."""

    schedule_rows: tuple[int, ...]
    max_path: int
    batch: int
    emitted: int
    context: int
    window: int


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes of one layer and step over the whole batch, on average over steps; `rows_*`: factors, or what stands in
    for them."""

    schedule: Schedule
    commit: Commit
    verify_read: float
    verify_written: float
    commit_read: float
    commit_written: float
    rows_read: float
    rows_written: float

    @property
    def state(self) -> float:
        """All state bytes."""
        return self.verify_read + self.verify_written + self.commit_read + self.commit_written


def period_of(commit: Commit, setting: Setting) -> int:
    """Steps after which the folds repeat."""
    return math.ceil(max(setting.window, 1) / setting.emitted) if commit == "windowed" else 1


def row_of(schedule: Schedule, commit: Commit, setting: Setting, delta: DeltaGeometry, sizes: tuple[int, int]) -> Row:
    """One line of the table; `sizes`: bytes of an element of the state and of the model."""
    tile = delta.num_value_heads * delta.value_dim * delta.key_dim * sizes[0]
    period, batch = period_of(commit, setting), setting.batch
    verified, count = NOTHING, setting.emitted
    for _ in range(period):
        pending = count if commit in ("deferred", "windowed") else 0
        verified += verify_moves(schedule, commit, [setting.schedule_rows] * batch, [pending] * batch, setting.window)
        count += setting.emitted
    committed = commit_moves(commit, [setting.emitted] * batch, setting.max_path)
    read, written = _rows(commit, setting, delta, sizes)
    return Row(
        schedule,
        commit,
        verified.read * tile / period,
        verified.written * tile / period,
        float(committed.read * tile),
        float(committed.written * tile),
        read * batch,
        written * batch,
    )


def factor_bytes(delta: DeltaGeometry, sizes: tuple[int, int]) -> int:
    """A node's factors: k in the model's type, u and g in the state's."""
    return delta.num_key_heads * delta.key_dim * sizes[1] + delta.num_value_heads * (delta.value_dim + 1) * sizes[0]


def _rows(commit: Commit, setting: Setting, delta: DeltaGeometry, sizes: tuple[int, int]) -> tuple[float, float]:
    """Bytes of factors (or of the rows that a replay needs) read and written per sequence and step."""
    nodes, emitted = len(setting.schedule_rows), setting.emitted
    if commit == "snapshots":
        return 0.0, 0.0
    if commit == "replay":
        inputs = delta.num_key_heads * delta.key_dim + delta.num_value_heads * delta.value_dim
        row = inputs * sizes[1] + 2 * delta.num_value_heads * sizes[0]
        return float(setting.max_path * row), float(nodes * row)
    row = factor_bytes(delta, sizes)
    if commit != "windowed":
        return float(emitted * row), float(nodes * row)
    period = period_of(commit, setting)
    pending = emitted * (period + 1) / 2  # on average over a period: emitted, 2 emitted, …
    return (emitted + pending) * row, float((nodes + emitted) * row)


@dataclass(frozen=True, slots=True)
class Others:
    """Bytes per layer and step over the batch that do not depend on the schedule: convolution rows, K and V rows."""

    conv_read: int
    conv_written: int
    kv_read: int
    kv_written: int


def others_of(spec: Spec, setting: Setting) -> Others:
    """Inputs of the convolution: the window, all nodes' rows, the accepted ones. K, V: the prefix, the nodes' rows."""
    geometry, size, nodes = spec.target.geometry, BYTES[spec.runtime.dtype], len(setting.schedule_rows)
    assert geometry.delta is not None
    row = geometry.delta.conv_channels * size if geometry.delta.conv_size else 0
    window = max(geometry.delta.conv_size - 1, 0)
    kv = 2 * geometry.num_key_value_heads * geometry.head_dim * size
    return Others(
        conv_read=setting.batch * (2 * window + setting.emitted) * row,
        conv_written=setting.batch * (nodes + window) * row,
        kv_read=setting.batch * (setting.context + setting.emitted) * kv,
        kv_written=setting.batch * (nodes + setting.emitted) * kv,
    )


def setting_of(spec: Spec, batch: int | None, emitted: int | None, context: int, window: int | None) -> Setting:
    """The spec's numbers where the command gives none: its batch, half of the deepest path, its window or 8."""
    rows = chain_rows(spec.num_nodes) if spec.is_chain else _tree_rows(spec)
    own = spec.commit.window or 1
    return Setting(
        schedule_rows=tuple(rows),
        max_path=spec.max_path,
        batch=batch or spec.runtime.max_batch_size,
        emitted=emitted or 1 + spec.depth // 2,
        context=context,
        window=window or (own if own > 1 else 8),
    )


def _tree_rows(spec: Spec) -> list[int]:
    """`parent_row` of the static choices; of a likely tree where it is known only at run time."""
    choices = spec.draft.choices
    if spec.draft.tree != "static" or choices is None:
        return likely_rows(spec.num_nodes, spec.depth)
    place = {(): 1} | {path: number + 2 for number, path in enumerate(choices)}
    return [0, *(place[path[:-1]] for path in choices)]


def _amount(size: float) -> str:
    """`2.00 MiB`."""
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size:.0f} B"


def table(spec: Spec, setting: Setting) -> list[Row]:
    """All schedules with all commits."""
    delta = spec.target.geometry.delta
    assert delta is not None
    sizes = BYTES[spec.runtime.state_dtype], BYTES[spec.runtime.dtype]
    return [row_of(schedule, commit, setting, delta, sizes) for schedule in SCHEDULES for commit in COMMITS]


def text_of(spec: Spec, setting: Setting, rows: Sequence[Row], others: Others) -> str:
    """The table for a terminal."""
    geometry, nodes = spec.target.geometry, len(setting.schedule_rows)
    layers = sum(layer.mixer == "delta" for layer in geometry.layers)
    kind = "chain" if setting.schedule_rows == tuple(chain_rows(nodes)) else "tree"
    lines = [
        f"{spec.name}: {layers} recurrent layers of {geometry.num_hidden_layers}; batch {setting.batch}, {kind} of "
        f"{nodes} nodes, {setting.emitted} tokens a step, window {setting.window}",
        "bytes of state a layer and step:",
        "",
        f"{'schedule':<9} {'commit':<10} {'verify reads':>13} {'writes':>11} {'commit reads':>13} {'writes':>11} "
        f"{'state':>11} {'rows read':>11} {'written':>11}",
    ]
    for row in rows:
        values = (row.verify_read, row.verify_written, row.commit_read, row.commit_written, row.state)
        state = [_amount(value) for value in values]
        lines.append(
            f"{row.schedule:<9} {row.commit:<10} {state[0]:>13} {state[1]:>11} {state[2]:>13} {state[3]:>11} "
            f"{state[4]:>11} {_amount(row.rows_read):>11} {_amount(row.rows_written):>11}"
        )
    lines += ["", f"convolution rows: {_amount(others.conv_read)} read, {_amount(others.conv_written)} written a layer"]
    if others.kv_read:
        lines.append(
            f"K and V rows after {setting.context} tokens: {_amount(others.kv_read)} read, "
            f"{_amount(others.kv_written)} written an attention layer"
        )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specc bench traffic", description=__doc__.split("\n")[0])
    parser.add_argument("spec", type=Path, metavar="SPEC")
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", dest="overrides")
    parser.add_argument("--batch", type=whole(1), metavar="B", help="sequences (default: runtime.max_batch_size)")
    parser.add_argument("--emitted", type=whole(1), metavar="E", help="tokens a step commits (default: half of a path)")
    parser.add_argument("--context", type=whole(0), default=1024, metavar="T", help="committed tokens (default: 1024)")
    parser.add_argument(
        "--window", type=whole(1), metavar="W", help="factors of a window (default: commit.window or 8)"
    )
    parser.add_argument("--json", action="store_true", help="print bytes as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    spec = load(args.spec, tuple(args.overrides)).spec
    if not spec.target.geometry.recurrent:
        message = f"`{spec.name}` has no recurrent layers, so no state is moved"
        raise DiagnosticError([error("SPC291", message, help="targets with a state: gated_deltanet, qwen3_next")])
    if (args.emitted or 0) > spec.max_path:
        parser.error(f"argument --emitted: a step of this spec commits at most {spec.max_path} tokens")
    setting = setting_of(spec, args.batch, args.emitted, args.context, args.window)
    rows, others = table(spec, setting), others_of(spec, setting)
    if args.json:
        entries = [asdict(row) | {"state": row.state} for row in rows]
        print(json.dumps({"spec": spec.name, "setting": asdict(setting), "rows": entries, "others": asdict(others)}))
        return 0
    print(text_of(spec, setting, rows, others))
    return 0


if __name__ == "__main__":
    sys.exit(main())
