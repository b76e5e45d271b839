"""Speed on the CPU: the generated module against transformers' `generate`, and speculative against plain decoding.

    python -m specc.bench.cpu_speed [--model DIR|NAME] [--tokens 64] [--runs 5] [--threads N] [--name NAME]

Same weights in float32, same number of threads, one prompt at a time, no stop tokens, so that every run decodes the
same number of tokens. Runs are interleaved (peer, plain, speculative, peer, ...), so that a change of the machine's
load meets all of them; the median of the runs counts. Seconds are those of the whole call, prefill included, on both
sides alike: `generate` does not tell them apart. Writes results/NAME.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from specc.bench.peer import load_peer, peer_greedy
from specc.bench.results import environment, keep
from specc.runtime.generate import Request, decode_batch
from specc.runtime.prompts import demo_prompts
from specc.runtime.session import Session, open_session
from specc.spec import load

SPECS = Path(__file__).resolve().parents[1] / "specs"
SPEC = "smollm2-prompt-lookup"


def seconds_of(call: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def interleaved(calls: dict[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    """Seconds of every call, `runs` times in turn after one warm-up each."""
    for call in calls.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            found[name].append(seconds_of(call))
    return found


def measure(session: Session, peer: Any, request: Request, count: int, runs: int) -> dict[str, Any]:
    """One prompt in three ways: seconds of all runs, medians, and ratios of the medians."""
    ids = list(request.ids)

    def decode(speculative: bool) -> object:
        return decode_batch(session.decoder, [request], count, speculative=speculative)

    calls: dict[str, Callable[[], object]] = {
        "transformers": lambda: peer_greedy(peer, ids, count),
        "plain": lambda: decode(False),
        "speculative": lambda: decode(True),
    }
    seconds = interleaved(calls, runs)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "name": request.name,
        "prompt_tokens": len(ids),
        "tokens": count,
        "seconds": seconds,
        "tokens_per_second": {name: count / value for name, value in median.items()},
        "plain_vs_transformers": median["transformers"] / median["plain"],
        "speculative_vs_plain": median["plain"] / median["speculative"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m specc.bench.cpu_speed", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", metavar="DIR|NAME")
    parser.add_argument("--spec", type=Path, default=SPECS / f"{SPEC}.yaml", metavar="FILE")
    parser.add_argument("--tokens", type=int, default=64, metavar="N")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N of the repetitive prompts")
    parser.add_argument("--threads", type=int, metavar="N", help="default: what torch chooses")
    parser.add_argument("--name", default="cpu_speed", metavar="NAME")
    args = parser.parse_args(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    session = open_session(load(args.spec), args.model, ignore_eos=True)
    peer = load_peer(session.model)
    repetitive = [prompt for prompt in demo_prompts() if prompt.repetitive][: args.limit]
    rows = []
    for number, prompt in enumerate(repetitive):
        request = Request(number, prompt.name, tuple(prompt.first_ids(session.tokenizer)))
        rows.append(measure(session, peer, request, args.tokens, args.runs))
        speeds = ", ".join(f"{name} {speed:.1f}" for name, speed in rows[-1]["tokens_per_second"].items())
        print(f"{prompt.name}: tokens/s {speeds}; plain is {rows[-1]['plain_vs_transformers']:.2f}x transformers, "
              f"speculative {rows[-1]['speculative_vs_plain']:.2f}x plain", flush=True)  # fmt: skip
    plain = statistics.median(row["plain_vs_transformers"] for row in rows)
    faster = statistics.median(row["speculative_vs_plain"] for row in rows)
    print(f"median over prompts: plain {plain:.2f}x transformers, speculative {faster:.2f}x plain")
    keep(
        args.name,
        {
            "environment": environment("specc.bench.cpu_speed", arguments),
            "spec": session.identity.spec,
            "rows": rows,
            "plain_vs_transformers": plain,
            "speculative_vs_plain": faster,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
