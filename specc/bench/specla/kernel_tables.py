"""The tables of the kernels' cells, with the paper's ranges as rows of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.bench.specla import paper
from specc.bench.specla.paper import Reported
from specc.bench.specla.tables import Row, Table, column, table

LAYERS = 24


def kernel_tables(rows: Mapping[str, Sequence[Row]]) -> list[Table]:
    """Tables from the rows of `kernels.PARTS`, by part."""
    made = []
    if found := right(rows.get("verify", ())):
        made.append(verify_table(found))
    if found := right(rows.get("recovery", ())):
        made.append(recovery_table(found, right(rows.get("states", ())), right(rows.get("verify", ()))))
    if found := right(rows.get("update", ())):
        made.append(update_table(found))
    return made


def right(rows: Sequence[Row]) -> list[Row]:
    """Rows with a time whose results were right."""
    return [dict(row) for row in rows if not row.get("wrong") and row.get("us") is not None]


def reported(found: Reported, key: str, **more: Any) -> Row:
    """The paper's range as a row."""
    return {"kind": "reported", key: found.text, **more}


def ratio(one: float, other: float) -> float:
    """How many times longer `one` takes than `other`."""
    return round(one / other, 2)


def verify_table(rows: Sequence[Row]) -> Table:
    """Schedules by shape, and how much faster than replaying every path they are."""
    told: list[Row] = []
    for row in rows:
        hybrid = row["hybrid_us"] + row["order_us"]
        best = min(hybrid, row["serial_us"], row["tree_us"], row["replay_leaf_parallel_us"] + row["order_us"])
        told.append({
            "shape": row["shape"], "nodes": row["nodes"], "leaves": row["leaves"],
            "replay_us": row["replay_leaf_by_leaf_us"], "hybrid_us": round(hybrid, 2), "serial_us": row["serial_us"],
            "tree_us": row["tree_us"], "hybrid_gain": ratio(row["replay_leaf_by_leaf_us"], hybrid),
            "best_gain": ratio(row["replay_leaf_by_leaf_us"], best), "auto": row["auto"], "kind": "measured",
        })  # fmt: skip
    told.append(reported(paper.HYBRID, "hybrid_gain", shape="SpecLA, by shape"))
    columns = [
        column("shape", "Tree"), column("nodes", "Nodes"), column("leaves", "Leaves"),
        column("replay_us", "Replay, path by path", "us", 1), column("hybrid_us", "Hybrid", "us", 1),
        column("serial_us", "Serial", "us", 1), column("tree_us", "Tree form", "us", 1),
        column("hybrid_gain", "Hybrid over replay", "x", 2), column("best_gain", "Best over replay", "x", 2),
        column("auto", "auto takes"),
    ]  # fmt: skip
    note = (
        "One layer of GDN-1.3B, batch 1, no state written; the order of the chains counts as hybrid's. Replay starts a "
    )
    note += "kernel per leaf, the state in registers along each path."
    return table("verify-by-shape", "Verify kernels by shape of tree", columns, told, note)


def recovery_table(rows: Sequence[Row], states: Sequence[Row], verify: Sequence[Row]) -> Table:
    """Recovering all layers' states after accepted nodes."""
    told: list[Row] = []
    snapshot = next((row["us"] for row in rows if row["form"] == "snapshot"), None)
    plain = next((row["tree_us"] for row in verify if row["nodes"] == 16), None)
    wrote = [row["us"] for row in states if row["nodes"] == 16]
    extra = None if plain is None or not wrote else LAYERS * (min(wrote) - plain)
    for count in dict.fromkeys(row["rows"] for row in rows if "rows" in row):
        own = {row["form"]: row["us"] for row in rows if row.get("rows") == count}
        one, many = own.get("replay, one launch"), own.get("replay, a launch per layer and token")
        factors = min((own[name] for name in ("rank_n", "steps") if name in own), default=None)
        if factors is None or one is None or many is None:  # a form that was wrong has no time
            continue
        told.append({
            "accepted": count, "factors_us": factors, "replay_us": one, "replay_many_us": many,
            "snapshot_us": snapshot, "snapshot_verify_us": None if extra is None else round(extra, 1),
            "gain": ratio(one, factors), "gain_many": ratio(many, factors), "kind": "measured",
        })  # fmt: skip
    told.append(reported(paper.FACTORS, "gain_many", accepted="SpecLA"))
    columns = [
        column("accepted", "Accepted nodes"), column("factors_us", "Factors", "us", 1),
        column("replay_us", "Replay, one launch", "us", 1),
        column("replay_many_us", "Replay, a launch per layer and token", "us", 1),
        column("snapshot_us", "Snapshot copied", "us", 1),
        column("snapshot_verify_us", "what keeping 16 of them adds to verify", "us", 1),
        column("gain", "Factors over replay, one launch", "x", 2),
        column("gain_many", "Factors over replay, a launch each", "x", 2),
    ]  # fmt: skip
    return table("recovery", "Recovering the state of the accepted node, 24 layers of GDN-1.3B", columns, told)


def update_table(rows: Sequence[Row]) -> Table:
    """Verify with factors pending beside verify and a commit of its own."""
    told: list[Row] = [
        {
            "update": row["kind"], "pending": row["pending"], "window": row["window"], "us": row["us"],
            "separate_us": row["verify_and_commit_us"], "gain": ratio(row["verify_and_commit_us"], row["us"]),
            "kind": "measured",
        }
        for row in rows
    ]  # fmt: skip
    told.append(reported(paper.DEFERRED, "gain", update="SpecLA, deferred"))
    columns = [
        column("update", "Update"), column("pending", "Pending"), column("window", "Window"),
        column("us", "Verify with them", "us", 1), column("separate_us", "Verify + commit", "us", 1),
        column("gain", "over a separate commit", "x", 2),
    ]  # fmt: skip
    note = "One layer, 16 nodes. Windowed: the mean over a cycle of three steps whose last one writes the state."
    return table("update", "Deferred and windowed updates", columns, told, note)
