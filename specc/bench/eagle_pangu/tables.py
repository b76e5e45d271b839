"""From the records of turns to the tables: pure functions of what the cells gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.bench.eagle_pangu.reported import BEST_BUDGET, SPEED_UP, WINDOW
from specc.bench.eagle_pangu.variants import Variant
from specc.bench.evaluation.markdown import columns
from specc.bench.evaluation.metrics import Record, in_set, looping, lossless, paired, part, summary

PLAIN_BAR_US = 400.0
"""Bar for a plain step of SmolLM2-135M on an H200 (`specc bench step`)."""
ACCEPTANCE_BARS = {"eagle-pangu": 2.8, "gsm8k": 3.2}
SPEED_UP_BAR = 1.6
GROUPS = (("all", "all turns"), ("without_loops", "without loops"), ("looping", "looping"))
Table = dict[str, Any]


def summaries(records: Sequence[Record], sets: Sequence[str], own: float | None) -> dict[str, Any]:
    """Set -> its summary; `all` over everything that was decoded."""
    found = {}
    for name in [*sets, "all"] if len(sets) > 1 else sets:
        chosen = [record for record in records if in_set(record, name)]
        if chosen:
            found[name] = summary(chosen, own)
    return found


def speed_table(sets: Mapping[str, Any]) -> Table:
    """Speed-up and acceptance, set by set."""
    rows: list[dict[str, Any]] = []
    for name, found in sets.items():
        for group, title in GROUPS:
            if found[group] is not None:
                rows.append({"set": f"{name}, {title}"} | _speed_row(found[group]))
    return {
        "name": "speed-up",
        "title": "Speed-up over plain decoding by the same module, batch 1, prefill apart",
        "columns": columns(
            ("set", "Set"), ("turns", "Turns"), ("tokens", "Tokens"), ("acceptance_length", "Acceptance length", 2),
            ("headline", "Speed-up", 2), ("mean", "Mean of turns", 2), ("p50", "p50", 2), ("p90", "p90", 2),
            ("p99", "p99", 2), ("plain", "Plain tokens/s", 0), ("speculative", "Speculative tokens/s", 0),
        ),
        "rows": [*rows, SPEED_UP],
        "note": "Speed-up: total tokens by total time, speculative over plain. Looping turns repeat 5% of their "
        "8-grams or more. The paper's device, model and head are others.",
    }  # fmt: skip


def _speed_row(found: Mapping[str, Any]) -> dict[str, Any]:
    ratios, metrics = found["speed_up"] or {}, found["speculative"]
    return {
        "turns": found["turns"],
        "tokens": metrics["tokens"],
        "acceptance_length": metrics["acceptance_length"],
        "headline": ratios.get("headline"),
        "mean": ratios.get("mean"),
        "p50": ratios.get("p50"),
        "p90": ratios.get("p90"),
        "p99": ratios.get("p99"),
        "plain": found["plain"]["tokens_per_second"],
        "speculative": metrics["tokens_per_second"],
    }


def lossless_table(sets: Mapping[str, Any], bound: Mapping[str, Any] | None) -> Table:
    """Differences from plain decoding."""
    rows = [{"set": name} | found["lossless"] for name, found in sets.items()]
    note = "On a difference, plain decoding along the speculative text says by how much plain's token was better (gap)."
    if bound is not None:
        note += (
            f" Bound measured beforehand: {bound['max_logit_difference']:.4g} over {bound['positions']} positions of "
            "plain decoding, a row alone against the same row among 16."
        )
    return {
        "name": "lossless",
        "title": "Token for token against plain decoding",
        "columns": columns(
            ("set", "Set"), ("compared", "Tokens compared"), ("differences", "Differences"),
            ("differences_per_10k", "Per 10,000", 2), ("plain_own_per_10k", "Plain's own per 10,000", 2),
            ("within_twice_own", "At most twice that"), ("above_bound", "Above the bound"),
            ("largest_gap", "Largest gap", 4),
        ),
        "rows": rows,
        "note": note,
    }  # fmt: skip


def bar_table(sets: Mapping[str, Any], stages: Mapping[str, Any] | None, on_gpu: bool) -> Table:
    """What this evaluation was to show, on turns without loops."""
    rows: list[dict[str, Any]] = []

    def add(what: str, value: float | None, bar: float, least: bool = True) -> None:
        if value is not None:
            rows.append({"what": what, "value": value, "bar": bar, "met": value >= bar if least else value <= bar})

    for name, bar in ACCEPTANCE_BARS.items():
        found = (sets.get(name) or {}).get("without_loops")
        if found:
            add(f"acceptance length, {name}", found["speculative"]["acceptance_length"], bar)
    if on_gpu:
        for name in sets:
            found = sets[name]["without_loops"]
            if found and found["speed_up"]:
                add(f"speed-up, {name}", found["speed_up"]["headline"], SPEED_UP_BAR)
        if stages:
            add("plain step, microseconds (graph)", stages["us"]["plain"], PLAIN_BAR_US, least=False)
    heads = columns(("what", "What"), ("value", "Measured", 2), ("bar", "Bar", 1), ("met", "Met"))
    return {"name": "bars", "title": "Bars", "columns": heads, "rows": rows, "note": "On turns without loops."}


def variant_row(variant: Variant, records: Sequence[Record], own: float | None, code: str) -> dict[str, Any]:
    """A variant on the subset: all turns, and those without loops. `code`: of its module, without its spec."""
    found = part(records)
    straight = [record for record in records if not looping(record)]
    kept = part(straight) if straight else None
    compared = lossless(records, own)
    return {
        "name": variant.name,
        "part": variant.part,
        "variant": variant.title,
        "nodes": variant.nodes,
        "depth": variant.depth,
        "turns": len(records),
        "acceptance_length": found["speculative"]["acceptance_length"],
        "drafted_per_step": found["drafted_per_step"],
        "us_per_step": found["speculative"]["us_per_step"],
        "plain_us": found["plain"]["us_per_step"],
        "speed_up": found["speed_up_by_rates"],
        "acceptance_without_loops": kept["speculative"]["acceptance_length"] if kept else None,
        "speed_up_without_loops": kept["speed_up_by_rates"] if kept else None,
        "paired_speed_up": (found["speed_up"] or {}).get("headline"),
        "differences": compared["differences"],
        "above_bound": compared["above_bound"],
        "code": code[:16],
    }


PARTS = (
    ("drafters", "Drafters", ()),
    ("window", "A drafter that sees less of the text", (WINDOW,)),
    ("budget", "Tree sizes", (BEST_BUDGET,)),
    ("mask", "Fused and eager mask", ()),
    ("commit", "Commit: by length and path index, fast reorder, deferred and at once", ()),
    ("pruning", "Pruning by path probability", ()),
    ("top-k", "Children per node", ()),
)
NOTE = (
    "On the fixed subset. Speed-up: speculative tokens/s of all its turns over the module's own plain tokens/s, which "
    "was timed on the first turns of it."
)


def variant_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """One table for each part; the spec's own tree stands first in all of them."""
    first: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        first.setdefault(row["code"], row)
    shown = [dict(row) for row in rows]
    for row in shown:
        if first[row["code"]]["name"] != row["name"]:
            row["variant"] += f" (the same code as: {first[row['code']]['variant']})"
    own = [row for row in shown if row["name"] == "own"]
    heads = columns(
        ("variant", "Variant"), ("acceptance_length", "Acceptance length", 2),
        ("drafted_per_step", "Drafted per step", 1),
        ("us_per_step", "Step (us)", 0), ("plain_us", "Plain step (us)", 0), ("speed_up", "Speed-up", 2),
        ("speed_up_without_loops", "Without loops", 2), ("differences", "Differences"),
        ("above_bound", "Above the bound"),
    )  # fmt: skip
    if len({row.get("commit") for row in rows}) > 1:
        heads += columns(("commit", "Measured at"))
    found = []
    for name, title, reported in PARTS:
        mine = [row for row in shown if row["part"] == name and row["name"] != "own"]
        if mine:
            lines = [*own, *mine, *reported]
            found.append({"name": name, "title": title, "columns": heads, "rows": lines, "note": NOTE})
    return found


def budget_map(rows: Sequence[Mapping[str, Any]], nodes: int, depth: int) -> dict[str, Any] | None:
    """Speed-up by nodes and depth; the spec's own tree is one of its cells."""
    sized = [row for row in rows if row["part"] == "budget" and row["nodes"] is not None]
    cells = {(row["nodes"], row["depth"]): row["speed_up"] for row in sized}
    if not cells:
        return None
    own = [row for row in rows if row["name"] == "own"]
    if own:
        cells[nodes, depth] = own[0]["speed_up"]
    commits = {str(row.get("commit")) for row in [*own[:1], *sized]}
    down, across = sorted({key[0] for key in cells}), sorted({key[1] for key in cells})
    return {
        "name": "budget",
        "title": "Speed-up by tree size",
        "x": {"title": "depth", "values": across},
        "y": {"title": "nodes (the root counts)", "values": down},
        "values": [[cells.get((one, other)) for other in across] for one in down],
        "unit": "x",
        "digits": 2,
        "note": f"Cells of the commits {', '.join(sorted(commits))}." if len(commits) > 1 else "",
    }


def stage_table(stages: Mapping[str, Mapping[str, Any]]) -> Table:
    """Stage times of the modules that were taken apart."""
    rows = []
    for name, found in stages.items():
        us = found["us"]
        shares = {f"{stage}_share": share for stage, share in found["shares"].items()}
        rows.append({"module": name, "at": found.get("commit")} | us | shares)
    heads = columns(
        ("module", "Module"), ("draft", "Draft (us)", 1), ("verify", "Verify (us)", 1), ("accept", "Accept (us)", 1),
        ("commit", "Commit (us)", 1), ("step", "Whole step (us)", 1), ("plain", "Plain step (us)", 1),
        ("draft_share", "Draft", 2), ("verify_share", "Verify", 2), ("accept_share", "Accept", 2),
        ("commit_share", "Commit", 2),
    )  # fmt: skip
    if len({row["at"] for row in rows}) > 1:
        heads += columns(("at", "Measured at"))
    how = " ".join({found["how"] for found in stages.values()})
    note = (
        f"How: {how}. Shares are of the sum of the four. Building the tree and its index tables is part of the draft; "
        "the fused mask has no stage of its own, it is read inside the attention kernel; a deferred commit does its "
        "work in the next verify."
    )
    return {"name": "stages", "title": "Stages of a step", "columns": heads, "rows": rows, "note": note}


def turn_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One short row for each turn, for those who want to look."""
    rows = []
    for record in records:
        pair, ours = paired(record), record["speculative"]
        rows.append(
            {
                "turn": record["name"],
                "tokens": len(ours["tokens"]),
                "ratio": round(pair.ratio, 4) if pair else None,
                "acceptance_length": round((len(ours["tokens"]) - 1) / ours["steps"], 4) if ours["steps"] else None,
                "looping": looping(record),
                "differences": len(record["differences"]),
            }
        )
    return rows
