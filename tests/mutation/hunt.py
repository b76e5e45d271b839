"""Plants seeded faults in the compiler, one at a time, and counts which are found.

    .venv/bin/python -m tests.mutation.hunt --count 150 --seed 0 --output specc/bench/results/mutation-seeded.json

Each fault is planted in a copy of the tree and judged in a process of its own: first the tests of the file's part, then
`specc check` on small variations of three shipped specs. A fault is found where one of them fails (or hangs). Tests
that could not be run (pytest's exit code is neither 0 nor 1) are an error, not a find. `--recurrent`: the named faults
of recurrent state, each judged by `specc check` of a shipped spec with one schedule and commit alone. Results are kept
after every fault, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.mutators import Mutant, mutants
from tests.mutation.named import NAMED, Fault
from tests.mutation.named_recurrent import RECURRENT

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 400
"""Seconds for one fault; what takes longer than this hangs (nothing sound takes half of it)."""
CHECKED = ("smollm2-dynamic-tree", "smollm2-prompt-lookup", "eagle-pangu")
EXAMPLES = 6
EXAMPLES_RECURRENT = 40
ERROR = "error: "
"""Starts the verdict where a fault could not be judged."""

# Source pattern -> tests of that part, cheapest first. The faults are drawn from these files.
PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("passes/rewrite_negative_indices/*.py", ("tests/passes/test_rewrite_negative_indices*.py",)),
    ("passes/tables.py", ("tests/passes/test_insert_tree_masks*.py", "tests/passes/test_layer_major*.py")),
    ("passes/insert_tree_masks.py", ("tests/passes/test_insert_tree_masks*.py",)),
    ("passes/tree_masked.py", ("tests/passes/test_insert_tree_masks*.py",)),
    ("passes/layer_major/*.py", ("tests/passes/test_layer_major*.py",)),
    ("passes/fuse_projections.py", ("tests/passes/test_fuse_projections.py",)),
    (
        "passes/fuse_deferred_state_update/*.py",
        (
            "tests/passes/test_fuse_deferred_state_update.py",
            "tests/passes/test_fuse_deferred_states.py",
            "tests/passes/test_loop_fusion.py",
        ),
    ),
    ("passes/loop_fusion.py", ("tests/passes/test_loop_fusion.py", "tests/passes/test_fuse_deferred_state_update.py")),
    ("passes/plan_buffers/*.py", ("tests/passes/test_plan_buffers.py", "tests/passes/test_plan_buffers_states.py")),
    ("passes/legalize_ascend/*.py", ("tests/passes/test_legalize_ascend*.py",)),
    ("specc/ir/ops/npu*.py", ("tests/unit/test_npu_ops.py",)),
    ("passes/select_schedule/*.py", ("tests/passes/test_select_schedule.py", "tests/unit/test_bench_traffic.py")),
    ("specc/lower/accept*.py", ("tests/unit/test_accept.py", "tests/unit/test_accept_law.py")),
    ("specc/lower/sampling.py", ("tests/unit/test_sampling.py",)),
    ("specc/lower/commit.py", ("tests/unit/test_drafts_model.py",)),
    ("specc/lower/prefill.py", ("tests/unit/test_drafts_model.py",)),
    ("specc/lower/target.py", ("tests/passes/test_insert_tree_masks.py",)),
    ("specc/lower/drafts/*.py", ("tests/unit/test_drafts_*.py", "tests/unit/test_accept_law.py")),
    ("specc/ir/ops/attention.py", ("tests/unit/test_ops.py", "tests/backends/test_transformers_parity.py")),
    ("specc/ir/ops/cache.py", ("tests/unit/test_ops.py",)),
    ("specc/ir/ops/draft.py", ("tests/unit/test_drafts_ops.py",)),
    ("specc/ir/ops/sampling.py", ("tests/unit/test_sampling.py", "tests/unit/test_accept_law.py")),
    ("specc/ir/ops/delta*.py", ("tests/unit/test_delta*.py",)),
    ("specc/ir/ops/conv.py", ("tests/unit/test_conv.py",)),
    ("specc/ir/ops/moe.py", ("tests/unit/test_moe.py",)),
    ("specc/lower/mixers.py", ("tests/properties/test_recurrent_plain.py",)),
    ("specc/lower/delta.py", ("tests/properties/test_recurrent_plain.py",)),
    ("passes/select_schedule/*.py", ("tests/passes/test_select_schedule.py",)),
    ("backends/reference/kernels/*.py", ("tests/backends/test_reference_kernels.py",)),
)


def drawn(count: int, seed: int) -> list[Mutant]:
    """`count` faults, drawn evenly from all places of all files."""
    places = [mutant for pattern, _ in PARTS for path in sorted(ROOT.glob(pattern)) for mutant in mutants(path, ROOT)]
    return random.Random(seed).sample(places, count)


def part_tests(path: str, tree: Path) -> list[str]:
    """The tests of a source file's part, as they are in a copy of the tree."""
    patterns = next((tests for pattern, tests in PARTS if fnmatch(path, pattern)), ())
    found = [str(item.relative_to(tree)) for pattern in patterns for item in sorted(tree.glob(pattern))]
    return list(dict.fromkeys(found))


def copy_tree(target: Path) -> None:
    """The working tree without what a build leaves behind."""
    skipped = shutil.ignore_patterns(
        ".git",
        ".venv",
        "__pycache__",
        ".*_cache",
        "*.egg-info",
        ".hypothesis",
        "results",
        "build",
        "weights",
        ".coverage*",
    )
    shutil.copytree(ROOT, target, symlinks=True, ignore=skipped)


def judge(tests: Sequence[str]) -> str:
    """Runs in a fresh process inside the copy: what finds the fault, or "" where nothing does."""
    import pytest

    if tests:
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not slow and not model"]
        code = pytest.main([*options, "--no-header", "--tb=no", *tests])
        if code == 1:
            return f"tests (pytest exit {int(code)})"
        if code != 0:
            return f"{ERROR}pytest exit {int(code)}"
    from specc.check import run
    from specc.spec import load

    for name in CHECKED:
        report = run(load(Path("specs") / f"{name}.yaml"), max_examples=EXAMPLES, shrink=False, judge=False)
        if report.counterexample is not None:
            return f"specc check {name}: {report.counterexample.finding.invariant.name}"
    return ""


def judge_by_check(spec: str, overrides: Sequence[str]) -> str:
    """As `judge`, by `specc check` of one spec with overrides alone: what finds the fault, with the finding."""
    import torch

    from specc.check import Workbench, run
    from specc.spec import load

    torch.set_num_threads(1)
    loaded = load(Path("specs") / f"{spec}.yaml", overrides)
    bench = Workbench.of(loaded, limit=1)
    found = run(loaded, EXAMPLES_RECURRENT, shrink=False, judge=False, bench=bench, once=False).counterexample
    if found is None:
        return ""
    text = f"{found.finding.id} {found.finding.invariant.name}: {found.finding.where}: {found.finding.message}"
    return f"specc check: {text}".replace("\n", " ")


def try_fault(copy: Path, path: str, text: str, words: Sequence[str]) -> tuple[str, float]:
    """Plant `text` as the file `path` of the copy, judge (`words`: the command's last arguments), restore."""
    target = copy / path
    sound = target.read_text(encoding="utf-8")
    target.write_text(text, encoding="utf-8")
    began = time.monotonic()
    environment = os.environ | {
        "PYTHONPATH": str(copy),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "hunt",
    }
    command = [sys.executable, "-m", "tests.mutation.hunt", *words]
    try:
        with subprocess.Popen(
            command,
            cwd=copy,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"hangs (over {LIMIT} s)", time.monotonic() - began
    finally:
        target.write_text(sound, encoding="utf-8")
    verdict = next((line[9:] for line in output.splitlines() if line.startswith("verdict: ")), None)
    return ("fails with an exception" if verdict is None else verdict), time.monotonic() - began


def hunt(
    faults: Sequence[tuple[str, str, str]],
    output: Path,
    workers: int,
    checks: Mapping[str, tuple[str, ...]] | None = None,
) -> list[dict[str, object]]:
    """Judge (label, path, faulty text) triples; results are written after each. `checks`: by label, the words after
    `specc check` that alone judge a fault."""
    done: dict[str, dict[str, object]] = {}
    if output.exists():
        done = {str(entry["fault"]): entry for entry in json.loads(output.read_text())["faults"]}
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(workers):
            copy_tree(Path(folder) / str(number))
            copies.put(Path(folder) / str(number))

        def one(fault: tuple[str, str, str]) -> None:
            label, path, text = fault
            copy = copies.get()
            try:
                words = ["--judge", *part_tests(path, copy)] if checks is None else ["--judge-by", *checks[label]]
                found, seconds = try_fault(copy, path, text, words)
            finally:
                copies.put(copy)
            done[label] = {"fault": label, "found_by": found, "seconds": round(seconds, 1)}
            if checks is not None:
                done[label]["command"] = " --set ".join(
                    ["specc check specs/" + checks[label][0] + ".yaml", *checks[label][1:]]
                )
            word = "found   " if is_found(done[label]) else "ERROR   " if found else "SURVIVED"
            print(f"{word} {label}  [{found}] {seconds:.0f} s", flush=True)
            _write(output, list(done.values()))

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(one, [fault for fault in faults if fault[0] not in done]))
    return [done[label] for label, _, _ in faults if label in done]


def is_found(entry: dict[str, object]) -> bool:
    """Whether an entry's fault was found; one that could not be judged was not."""
    by = str(entry["found_by"])
    return bool(by) and not by.startswith(ERROR)


def _write(output: Path, entries: list[dict[str, object]]) -> None:
    found = sum(map(is_found, entries))
    report = {"found": found, "of": len(entries), "faults": entries}
    part = output.with_suffix(".part")
    part.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(part, output)


def named_faults(faults: Sequence[Fault] = NAMED) -> list[tuple[str, str, str]]:
    """Named mutations as triples. Raises ValueError where the text to replace is not there exactly once."""
    made = []
    for fault in faults:
        text = (ROOT / fault.path).read_text(encoding="utf-8")
        if text.count(fault.old) != 1:
            raise ValueError(f"{fault.name}: {fault.path} holds the text {text.count(fault.old)} times")
        made.append((fault.name, fault.path, text.replace(fault.old, fault.new)))
    return made


def seeded_faults(count: int, seed: int) -> list[tuple[str, str, str]]:
    """Drawn mutations as triples."""
    return [(str(mutant), mutant.path, mutant.apply((ROOT / mutant.path).read_text())) for mutant in drawn(count, seed)]


def controls(paths: Sequence[str]) -> list[tuple[str, str, str]]:
    """One unchanged file per set of tests: nothing may be found in it, or "found" would mean nothing."""
    by_tests = {tuple(part_tests(path, ROOT)): path for path in sorted(paths)}
    return [(f"control: {path} unchanged", path, (ROOT / path).read_text()) for path in by_tests.values()]


def named_checks(faults: Sequence[Fault]) -> tuple[list[tuple[str, str, str]], dict[str, tuple[str, ...]]]:
    """One control per set of words after `specc check`, and all words by label, the controls' too."""
    made, checks = list[tuple[str, str, str]](), {fault.name: fault.check for fault in faults}
    for fault in {fault.check: fault for fault in faults}.values():
        label = f"control: {' '.join(fault.check)}"
        made.append((label, fault.path, (ROOT / fault.path).read_text(encoding="utf-8")))
        checks[label] = fault.check
    return made, checks


def main() -> int:
    """The command; exit code 1 where too many faults survive, 2 where a sound file is called faulty."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--named", action="store_true", help="the named mutations instead of seeded ones")
    parser.add_argument("--recurrent", action="store_true", help="the named mutations of recurrent state")
    parser.add_argument("--only", default="", help="faults whose label contains this text")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("mutation.json"))
    parser.add_argument("--judge", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--judge-by", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.judge is not None or args.judge_by is not None:
        verdict = judge(args.judge) if args.judge_by is None else judge_by_check(args.judge_by[0], args.judge_by[1:])
        print(f"verdict: {verdict}", flush=True)
        return 0
    checks: dict[str, tuple[str, ...]] | None = None
    if args.recurrent:
        chosen = [fault for fault in RECURRENT if args.only in fault.name]
        faults, (controlled, checks) = named_faults(chosen), named_checks(chosen)
    else:
        seeded = () if args.named else drawn(args.count, args.seed)
        faults = (
            named_faults() if args.named else [(str(m), m.path, m.apply((ROOT / m.path).read_text())) for m in seeded]
        )
        faults = [fault for fault in faults if args.only in fault[0]]
        controlled = controls([path for _, path, _ in faults])
    sound = hunt(controlled, args.output.with_suffix(".controls.json"), args.workers, checks)
    wrong = [entry for entry in sound if entry["found_by"]]
    if wrong:
        print("\n".join(f"{entry['fault']} was called faulty: {entry['found_by']}" for entry in wrong))
        return 2
    results = hunt(faults, args.output, args.workers, checks)
    survived = [entry["fault"] for entry in results if not is_found(entry)]
    print(f"{len(results) - len(survived)} of {len(results)} found")
    for label in survived:
        print(f"survived: {label}")
    return int(len(survived) > (0 if args.named or args.recurrent else len(results) // 10))


if __name__ == "__main__":
    sys.exit(main())
