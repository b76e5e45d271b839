"""From finished cells to the tables and curves of this evaluation, the paper's figures beside ours and called reported.

Tables, curves and shares by depth have the form that `specc report` shows: see specc/report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.bench.evaluation.metrics import Record, acceptance, looping, paired, summary
from specc.bench.specla import paper
from specc.bench.specla.planted import break_even
from specc.bench.specla.sensitivity import with_head

Row = dict[str, Any]
Table = dict[str, Any]
SETS = {"gsm8k": "GSM8K", "mixed": "mixed", "humaneval": "HumanEval"}
DRAFTERS = {"aligned": "readouts and hidden states", "generic": "hidden states"}


def column(key: str, title: str, unit: str = "", digits: int | None = None) -> Row:
    """A column of a table."""
    made: Row = {"key": key, "title": title}
    made |= {"unit": unit} if unit else {}
    return made if digits is None else made | {"digits": digits}


def table(name: str, title: str, columns: Sequence[Row], rows: Sequence[Row], note: str = "") -> Table:
    """A table, without columns that no row fills; `kind` of a row says whether it was measured."""
    filled = [one for one in columns if any(row.get(one["key"]) is not None for row in rows)]
    return {"name": name, "title": title, "columns": filled, "rows": list(rows), "note": note}


DECODING = (
    column("turns", "Turns"),
    column("speed_up", "Speed-up", "x", 2),
    column("mean", "Mean of turns", "x", 2),
    column("p50", "p50", "x", 2),
    column("p90", "p90", "x", 2),
    column("p99", "p99", "x", 2),
    column("acceptance_length", "Acceptance length", "", 2),
    column("plain_us", "Plain step", "us", 0),
    column("step_us", "Step", "us", 0),
    column("differences", "Differences"),
)


def decoding_row(records: Sequence[Record], own_per_10k: float | None = None) -> Row:
    """What a group of turns gave, looping turns and all; `straight_…` without those that loop."""
    found = summary(records, own_per_10k)
    every, straight = found["all"], found["without_loops"]
    ratios = every["speed_up"] or {}
    row: Row = {
        "kind": "measured",
        "turns": every["turns"],
        "looping": sum(map(looping, records)),
        "speed_up": ratios.get("headline"),
        "acceptance_length": every["speculative"]["acceptance_length"],
        "plain_us": every["plain"]["us_per_step"],
        "step_us": every["speculative"]["us_per_step"],
        "plain_tokens_per_second": every["plain"]["tokens_per_second"],
        "tokens_per_second": every["speculative"]["tokens_per_second"],
        "tokens": every["speculative"]["tokens"],
        "differences": found["lossless"]["differences"],
        "above_bound": found["lossless"]["above_bound"],
        "compared": found["lossless"]["compared"],
    }
    row |= {name: ratios.get(name) for name in ("mean", "p50", "p90", "p99")}
    if straight is not None:
        row["straight_turns"] = straight["turns"]
        row["straight_speed_up"] = (straight["speed_up"] or {}).get("headline")
        row["straight_acceptance_length"] = straight["speculative"]["acceptance_length"]
    return row


def end_to_end(records: Mapping[tuple[str, str], Sequence[Record]], own_per_10k: float | None) -> Table:
    """`records` by (prompt set, drafter): speed-up, tails and acceptance, the paper's speed-up in rows of its own."""
    rows: list[Row] = []
    for name, title in SETS.items():
        for drafter, features in DRAFTERS.items():
            if found := records.get((name, drafter)):
                rows.append({"set": title, "head": features, **decoding_row(found, own_per_10k)})
        if any(key[0] == name for key in records):
            reported = paper.END_TO_END[name]
            rows.append({"set": title, "head": "SpecLA, GDN-1.3B", "kind": "reported", "speed_up": reported.low})
    columns = [
        column("set", "Prompts"), column("head", "Head fed with"), *DECODING,
        column("straight_turns", "Turns without loops"), column("straight_speed_up", "their speed-up", "x", 2),
        column("straight_acceptance_length", "their acceptance length", "", 2),
    ]  # fmt: skip
    note = "Speed-up: all tokens by all time, prefill apart, over plain decoding by the same module; batch 1, greedy. "
    note += "A turn loops where 5% of its 8-grams have occurred before."
    return table("end-to-end", "Decoding with a trained head", columns, rows, note)


def ablations(rows: Sequence[Row]) -> list[Table]:
    """One table per kind of change; the set-up itself is the first row of each. `rows`: with `variant`, `change`,
    `table` and what `decoding_row` gives."""
    titles = {
        "drafter": "What drafts", "tree": "Shape of the draft", "verify": "How a tree is verified",
        "state": "How an accepted state is recovered, and when", "type": "Type of weights and activations",
    }  # fmt: skip
    base = [row for row in rows if row["table"] == "set-up"]
    made = []
    for name, title in titles.items():
        if own := [row for row in rows if row["table"] == name]:
            columns = [column("variant", "Variant"), column("change", "--set"), *DECODING]
            made.append(table(f"ablation-{name}", title, columns, [*base, *own], "The same prompts in every row."))
    return made


def sensitivity(rows: Sequence[Row], heads: Mapping[str, Row]) -> tuple[list[Table], list[Row]]:
    """Tables and curves of the sensitivity."""
    told = with_head(rows, heads)
    columns = [
        column("shape", "Draft"), column("p", "p", "", 2), column("acceptance_length", "Acceptance length", "", 2),
        column("expected_acceptance_length", "expected", "", 2), column("plain_us", "Plain step", "us", 0),
        column("step_us", "Step", "us", 0), column("draft_us", "Draft", "us", 0),
        column("speed_up", "Speed-up, draft free", "x", 2),
        column("speed_up_with_draft", "with a head's draft", "x", 2), column("differences", "Differences"),
    ]  # fmt: skip
    note = "Step times are measured; acceptance is simulated: errors are planted in drafts around the plain text. "
    note += "p: a drafted token is right with this probability where its elder siblings are wrong."
    points, series, marks = [], [], []
    for shape in dict.fromkeys(row["shape"] for row in told):
        own = [row for row in told if row["shape"] == shape]
        for key, cost in (("speed_up", "draft free"), ("speed_up_with_draft", "with a head's draft")):
            line = [(row["p"], row[key]) for row in own if row.get(key) is not None]
            if not line:
                continue
            where = break_even(line)
            oracle = dict(line).get(1.0)
            geometry = own[0]["geometry"]
            points.append({"shape": shape, "cost": cost, "geometry": geometry, "kind": "simulated",
                           "break_even": None if where is None else round(where, 3), "oracle": oracle})  # fmt: skip
            xs, ys = zip(*sorted(line), strict=True)
            series.append({"label": f"{shape}, {cost}", "kind": "simulated", "x": list(xs), "y": list(ys)})
            if where is not None and cost == "draft free":
                marks.append({"label": f"break-even, {shape}", "x": round(where, 3)})
    if not points:
        return [], []
    points.append({"shape": "SpecLA", "cost": "as reported", "geometry": "gdn-1.3b", "kind": "reported",
                   "break_even": paper.BREAK_EVEN, "oracle": paper.ORACLE.low})  # fmt: skip
    points.append({"shape": "SpecLA", "cost": "as projected", "geometry": "9B", "kind": "reported",
                   "break_even": None, "oracle": paper.ORACLE_9B.low})  # fmt: skip
    own_columns = [
        column("shape", "Draft"), column("geometry", "Geometry"), column("cost", "Cost of a draft"),
        column("break_even", "Break-even p", "", 2), column("oracle", "Speed-up, every draft right", "x", 2),
    ]  # fmt: skip
    curve = {"name": "sensitivity", "title": "Speed-up by quality of the draft", "x_title": "p",
             "y_title": "speed-up over plain decoding", "series": series, "marks": marks}  # fmt: skip
    tables = [
        table("break-even", "Break-even and oracle", own_columns, points),
        table("sensitivity", "Speed-up by quality of the draft", columns, told, note),
    ]
    return tables, [curve]


def by_depth(records: Mapping[tuple[str, str], Sequence[Record]]) -> list[Row]:
    """Shares of steps that accept at least so many tokens, by prompt set and head."""
    return [
        {"label": f"{SETS.get(name, name)}, {DRAFTERS[drafter]}",
         "shares": [round(share, 4) for share in acceptance(found).per_depth_acceptance]}
        for (name, drafter), found in records.items() if found
    ]  # fmt: skip


def turns(records: Sequence[Record]) -> list[Row]:
    """One short row per turn."""
    made = []
    for record in records:
        pair = paired(record)
        counts = acceptance([record])
        made.append({
            "name": record["name"], "tokens": len(record["speculative"]["tokens"]), "looping": looping(record),
            "ratio": None if pair is None else round(pair.ratio, 4),
            "acceptance_length": round(counts.acceptance_length, 4), "differences": record["differences"],
        })  # fmt: skip
    return made
