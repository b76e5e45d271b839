"""What the records of turns (`turns.turn_record`) say together: speed, acceptance, differences, looping turns apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.runtime.metrics import Metrics, Paired, is_looping, speed_up

Record = Mapping[str, Any]
PER = 10_000


def looping(record: Record) -> bool:
    """Whether plain decoding goes round in circles in this turn."""
    return is_looping(record["plain"]["tokens"])


def in_set(record: Record, name: str) -> bool:
    """Whether a turn belongs to a prompt set: `mt-bench`, `humaneval`, `gsm8k`, `humaneval-80`, `eagle-pangu`, ..."""
    own, _, rest = record["name"].partition("/")
    number = int(rest.partition("/")[0]) if own == "humaneval" else 0
    first = own == "humaneval" and number < 80
    return {
        "all": True,
        "eagle-pangu": own == "mt-bench" or first,
        "humaneval-80": first,
        "humaneval-rest": own == "humaneval" and not first,
    }.get(name, own == name)


def steps_of(record: Record, form: str) -> int:
    """Tokens that the steps gave: the prefill gives the first one."""
    return max(0, len(record[form]["tokens"]) - 1)


def paired(record: Record) -> Paired | None:
    """The turn both ways; None where plain decoding was not timed."""
    seconds = record["plain"]["decode_seconds"]
    if seconds is None:
        return None
    ours = record["speculative"]["decode_seconds"]
    return Paired(steps_of(record, "plain"), seconds, steps_of(record, "speculative"), ours)


def acceptance(records: Sequence[Record]) -> Metrics:
    """The metrics of the speculative texts."""
    texts = [record["speculative"] for record in records]
    deepest = max((len(text["depths"]) for text in texts), default=0)
    depths = [sum(text["depths"][at] for text in texts if at < len(text["depths"])) for at in range(deepest)]
    return Metrics(
        tokens=sum(len(text["tokens"]) for text in texts),
        decoded=sum(steps_of(record, "speculative") for record in records),
        seconds=sum(text["decode_seconds"] for text in texts),
        steps=sum(text["steps"] for text in texts),
        drafted=sum(text["drafted"] for text in texts),
        accepted=sum(text["accepted"] for text in texts),
        branch_steps=sum(text["branch_steps"] for text in texts),
        depths=tuple(depths),
    )


def plain_speed(records: Sequence[Record]) -> dict[str, Any]:
    """Plain decoding where it was timed: turns, tokens per second, microseconds per step from the host."""
    timed = [record for record in records if record["plain"]["decode_seconds"] is not None]
    tokens = sum(steps_of(record, "plain") for record in timed)
    seconds = sum(record["plain"]["decode_seconds"] for record in timed)
    found = {"turns": len(timed), "tokens": tokens, "seconds": round(seconds, 4)}
    if not tokens or not seconds:
        return found | {"tokens_per_second": None, "us_per_step": None}
    return found | {"tokens_per_second": round(tokens / seconds, 2), "us_per_step": round(seconds / tokens * 1e6, 2)}


def lossless(records: Sequence[Record], own_per_10k: float | None = None) -> dict[str, Any]:
    """Differences from plain decoding, per 10,000 positions too, beside plain decoding's own (None: not measured)."""
    found = [item for record in records for item in record["differences"]]
    compared = sum(record["compared"] for record in records)
    gaps = [item["gap"] for item in found if item["gap"] is not None]
    per = round(len(found) / compared * PER, 3) if compared else 0.0
    return {
        "compared": compared,
        "differences": len(found),
        "differences_per_10k": per,
        "plain_own_per_10k": own_per_10k,
        "within_twice_own": None if own_per_10k is None else per <= 2 * own_per_10k,
        "above_bound": sum(not item["allowed"] for item in found),
        "largest_gap": max(gaps, default=0.0),
        "turns_that_differ": sum(bool(record["differences"]) for record in records),
    }


def part(records: Sequence[Record]) -> dict[str, Any]:
    """One group of turns."""
    metrics = acceptance(records)
    pairs = [pair for pair in map(paired, records) if pair is not None]
    ratios = speed_up(pairs)
    plain = plain_speed(records)
    steps = max(metrics.steps, 1)
    found = {
        "turns": len(records),
        "speed_up": None if ratios is None else ratios.as_json(),
        "plain": plain,
        "speculative": metrics.as_json() | {"us_per_step": round(metrics.seconds / steps * 1e6, 2)},
        "drafted_per_step": round(metrics.drafted / steps, 3),
    }
    rate = plain["tokens_per_second"]
    # Where plain decoding was timed on some of the turns only: all speculative turns over its rate on those.
    found["speed_up_by_rates"] = round(metrics.tokens_per_second / rate, 4) if rate else None
    return found


def summary(records: Sequence[Record], own_per_10k: float | None = None) -> dict[str, Any]:
    """All turns, those without loops (for which the bars hold), the looping ones, and the lossless comparison."""
    loops = [record for record in records if looping(record)]
    straight = [record for record in records if not looping(record)]
    prefills = [record["speculative"]["prefill_seconds"] for record in records]
    return {
        "all": part(records),
        "without_loops": part(straight) if straight else None,
        "looping": part(loops) if loops else None,
        "lossless": lossless(records, own_per_10k),
        "mean_prefill_seconds": round(sum(prefills) / len(prefills), 6) if prefills else None,
    }
