"""A long run on the GPU: speculative text against plain decoding of the same module, token by token.

    specc bench soak --model DIR|NAME --spec FILE [--tokens 1000000] [--length N] [--batch N] [--dtype TYPE]
                     [--prompts FILE] [--module FILE] [--bound-positions N] [--seconds S] [--output DIR] [--name NAME]

First the numerical bound is measured and written down: the largest difference of a logit between plain decoding of a
row alone and of the same row among 16. Then ragged prompts are decoded in batches, plainly and speculatively, without
stop tokens: first speculatively, then plainly along the speculative text, so that every position is tested. Where plain
decoding picks another token, its logits there say whether rounding can explain it: a gap above the bound is a failure.
Also: 8 ragged prompts at once against each alone; growth of allocated device memory; what a step waits for the device
besides its read-back. Exit status 1: a difference above the bound, memory that grew, or a second wait in a step.
Results: NAME.json (default: soak-SPEC).

`--module FILE` takes a module that was compiled for the triton target before, instead of compiling the spec.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count as count_up
from pathlib import Path
from typing import Any

import torch

from specc.bench.arguments import whole
from specc.bench.gpu_timing import Report, Row, report, require_gpu
from specc.bench.results import RESULTS
from specc.bench.soak_check import Tally, compare, speculative_texts
from specc.bench.soak_plain import WHOLE, Bound, PlainRunner, measure_bound
from specc.driver import compile_spec
from specc.runtime.model_folder import check_target, find_model
from specc.runtime.module import import_source
from specc.runtime.prompts import demo_prompts, load_prompts
from specc.runtime.session import with_stop_tokens
from specc.runtime.tokenizer import Tokenizer
from specc.spec import load

RAGGED = 8
RAGGED_TOKENS = 128
SHORTER = 7
"""When the prompts have been used up they come again, so many tokens shorter each time: other texts and lengths."""
LEAST = 4
SETTLED = 3
"""Batches after which memory must not grow any more."""


def endless(prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """The prompts, then shorter ones."""
    for turn in count_up():
        for prompt in prompts:
            yield tuple(prompt[: max(LEAST, len(prompt) - SHORTER * turn)])


def memory() -> Row:
    """Bytes on the device: what tensors hold, and what the allocator keeps (more for prompts of other widths)."""
    if not torch.cuda.is_available():
        return {"allocated": 0, "reserved": 0}
    torch.cuda.synchronize()
    return {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}


def ragged_row(decoder: Any, runner: PlainRunner, prompts: Sequence[Sequence[int]], bound: Bound) -> Row:
    """8 prompts of different lengths at once against each alone, both against plain decoding."""
    length = min(RAGGED_TOKENS, runner.count)
    chosen = sorted(prompts[: 4 * RAGGED], key=len)[:: max(1, min(len(prompts), 4 * RAGGED) // RAGGED)][:RAGGED]
    numbers, together, alone = range(len(chosen)), Tally(), Tally()
    batch = speculative_texts(decoder, chosen, numbers, length, together)
    single = [speculative_texts(decoder, [chosen[row]], [row], length, alone)[0] for row in numbers]
    for texts, tally in ((batch, together), (single, alone)):
        compare(numbers, texts, runner.run(chosen, texts, length), tally, bound.largest)
    return {
        "part": "ragged batch",
        "prompts": len(chosen),
        "prompt_tokens": [len(prompt) for prompt in chosen],
        "tokens_each": length,
        "equal_texts": sum(one == two for one, two in zip(batch, single, strict=True)),
        "batch_against_plain": together.as_json(),
        "single_against_plain": alone.as_json(),
    }


def soak(decoder: Any, runner: PlainRunner, prompts: Sequence[Sequence[int]], tokens: int, bound: float,
         seconds: float) -> Row:  # fmt: skip
    """Decode and compare until `tokens` positions have been compared, or the time is up."""
    tally, fresh = Tally(), endless(prompts)
    began, batches, settled = time.monotonic(), 0, memory()
    while tally.tokens < tokens and time.monotonic() - began < seconds:
        now = [next(fresh) for _ in range(runner.batch)]
        numbers = range(batches * runner.batch, (batches + 1) * runner.batch)
        texts = speculative_texts(decoder, now, numbers, runner.count, tally)
        compare(numbers, texts, runner.run(now, texts), tally, bound)
        batches += 1
        if batches == SETTLED:
            settled = memory()
    ended = memory()
    growth = ended["allocated"] - settled["allocated"]
    return {
        "part": "soak",
        "batches": batches,
        "seconds": round(time.monotonic() - began, 1),
        "complete": tally.tokens >= tokens,
        "memory": {"settled": settled, "ended": ended},
        "memory_growth": growth if batches > SETTLED else None,
        **tally.as_json(),
    }


def failures(row: Row) -> list[str]:
    """Why a row of the soak is a failure."""
    found = []
    if row["differences_above_bound"]:
        found.append(f"{row['differences_above_bound']} differences above the bound")
    if row["memory_growth"]:
        found.append(f"device memory grew by {row['memory_growth']} bytes")
    if row["most_synchronisations_of_a_step"] > 1:
        found.append(f"a step waited {row['most_synchronisations_of_a_step']} times for the device")
    return found


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="specc bench soak", description=about)
    parser.add_argument("--model", required=True, metavar="DIR|NAME")
    parser.add_argument("--spec", required=True, type=Path, metavar="FILE")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="default: the prompts of the demonstration")
    parser.add_argument("--tokens", type=whole(1), default=1_000_000, metavar="N", help="positions to compare")
    parser.add_argument("--length", type=whole(2), default=640, metavar="N", help="new tokens of a text")
    parser.add_argument(
        "--prompt-tokens", type=whole(1), default=256, metavar="N", help="prompts are cut to this length"
    )
    parser.add_argument("--batch", type=whole(1), default=32, metavar="N")
    parser.add_argument("--dtype", default="bfloat16", help="of the model (default: bfloat16)")
    parser.add_argument("--module", type=Path, metavar="FILE", help="compiled beforehand with the same settings")
    parser.add_argument(
        "--compile-only", action="store_true", help="write the module to --module and end; no GPU needed"
    )
    parser.add_argument("--bound-positions", type=whole(1), default=20_000, metavar="N")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the soak itself: stop after so many")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--name", metavar="NAME")
    args = parser.parse_args(argv)
    if args.compile_only and args.module is None:
        parser.error("argument --compile-only: needs --module")
    return args


def source_of(args: argparse.Namespace, compile_now: bool) -> str:
    """The module's source: the spec's, with the run's dtype and batch, without stop tokens."""
    if args.module is not None and not compile_now:
        return str(args.module.read_text(encoding="utf-8"))
    overrides = [f"runtime.dtype={args.dtype}", f"runtime.max_batch_size={max(args.batch, WHOLE)}"]
    return compile_spec(with_stop_tokens(load(args.spec, overrides), ()), "triton", verify=False).source


def prompts_of(args: argparse.Namespace, folder: Path, capacity: int) -> list[list[int]]:
    """Token ids of the prompts that leave room for the texts."""
    tokenizer = Tokenizer.from_folder(folder)
    chosen = demo_prompts() if args.prompts is None else load_prompts(args.prompts)
    cut = [prompt.first_ids(tokenizer)[: args.prompt_tokens] for prompt in chosen]
    return [ids for ids in cut if ids and len(ids) + args.length < capacity]


def run(args: argparse.Namespace, result: Report) -> list[str]:
    """All parts; what failed."""
    folder = find_model(args.model)
    check_target(load(args.spec), folder)
    module: Any = import_source(source_of(args, compile_now=False), "specc_bench_soak")
    prompts = prompts_of(args, folder, module.MAX_SEQUENCE_LENGTH)
    decoder = module.Decoder.from_pretrained(folder, device="cuda")
    with torch.no_grad():
        count = min(256, args.length)
        groups = max(1, -(-args.bound_positions // (WHOLE * count)))
        began = time.monotonic()
        bound = measure_bound(module, decoder.weights, prompts, count, groups, "cuda")
        result.add({"part": "bound", "seconds": round(time.monotonic() - began, 1), **bound.as_json()})
        torch.cuda.empty_cache()
        runner = PlainRunner(module, decoder.weights, args.batch, args.length, "cuda")
        ragged = ragged_row(decoder, runner, prompts, bound)
        result.add(ragged)
        row = soak(decoder, runner, prompts, args.tokens, bound.largest, args.seconds)
        result.add(row)
    wrong = failures(row)
    for name in ("batch_against_plain", "single_against_plain"):
        if ragged[name]["differences_above_bound"]:
            wrong.append(f"ragged prompts, {name.replace('_', ' ')}: differences above the bound")
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """1 where something failed."""
    given = list(sys.argv[1:] if argv is None else argv)
    args = _arguments(given)
    if args.compile_only:
        args.module.write_text(source_of(args, compile_now=True), encoding="utf-8")
        return 0
    require_gpu("specc bench soak")
    result = report(args.name or f"soak-{args.spec.stem}", "specc.bench.soak", given, args.output)
    wrong = run(args, result)
    result.write(failures=wrong, passed=not wrong)
    print("passed" if not wrong else "FAILED: " + "; ".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
