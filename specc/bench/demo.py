"""The demonstration behind `make demo`: `specc` commands on two real small models, and what they must show.

    python -m specc.bench.demo [--model DIR|NAME] [--recurrent-model DIR] [--output DIR]

A transformer (SmolLM2-135M) and a Gated DeltaNet (gdn-15m, trained by `specc train target`). Every command is printed
as it is run. The drafters of two of the transformer's trees are simulated: the target's own weights with noise. Fails
(exit code 1) unless every text equals plain decoding token for token, prompt lookup accepts more than 1.5 tokens per
step on the prompts that repeat themselves, and both simulated trees accept a branch in 20 steps or more.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.runtime.prompts import DEMO_TEXTS, Prompt, demo_prompts, demo_texts

SPECS = (Path(__file__).resolve().parents[1] / "specs").resolve()
SIGMA = "self-perturbed:0.08"
MIN_LOOKUP_ACCEPTANCE = 1.5
MIN_BRANCH_STEPS = 20
SHOWN_LINES = 7
SHOWN = re.compile(r"= loop |aten\.index\.Tensor|select_scatter|ancestor_mask|parent_row|tree_attention")


@dataclass(frozen=True, slots=True)
class Mode:
    """One decoding of the prompts: what it is called in the table, its spec, further options, what it must show."""

    title: str
    spec: str
    options: tuple[str, ...] = ()
    lookup: bool = False
    branches: bool = False
    recurrent: bool = False

    @property
    def prompts(self) -> list[Prompt]:
        """What is decoded: chats for the transformer, beginnings of texts for the recurrent model."""
        return demo_texts() if self.recurrent else demo_prompts()

    @property
    def label(self) -> str:
        """Name of the mode's files: the spec, and whether it was changed."""
        return f"{self.spec}-serial" if "verify.recurrence=serial" in self.options else self.spec


ONE = ("--set", "runtime.max_batch_size=1")
# The same decoder along another road: one program per sequence and head, every node's state kept, commit at once.
SERIAL = ("verify.recurrence=serial", "commit.state=snapshots", "commit.update=immediate", "commit.window=null")
SET_SERIAL = tuple(word for change in SERIAL for word in ("--set", change))
MODES = (
    Mode("prompt lookup, chain", "smollm2-prompt-lookup", ONE, lookup=True),
    Mode("prompt lookup, tree", "smollm2-prompt-lookup-tree", ONE, lookup=True),
    Mode("static tree, simulated drafter", "smollm2-static-tree", ("--draft-model", SIGMA), branches=True),
    Mode("dynamic tree, simulated drafter", "smollm2-dynamic-tree", ("--draft-model", SIGMA), branches=True),
    Mode("recurrent: UT form, factors", "gdn-15m-tree", ONE, lookup=True, recurrent=True),
    Mode("recurrent: serial, snapshots", "gdn-15m-tree", (*ONE, *SET_SERIAL), lookup=True, recurrent=True),
)


def show_command(words: Sequence[str]) -> None:
    """Print a command as one would type it."""
    print(f"\n$ specc {shlex.join(_near(word) for word in words)}", flush=True)


def _near(word: str) -> str:
    """A path below the current folder, relative to it."""
    path = Path(word)
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else word


def specc(words: Sequence[str]) -> int:
    """Run a `specc` command with its output on this terminal; returns its exit code."""
    show_command(words)
    return subprocess.run([sys.executable, "-m", "specc", *words], check=False).returncode


def show_excerpt(spec: Path, after: str) -> int:
    """`specc show`, cut down to the lines of the verify step that the passes are about."""
    words = ["show", str(spec), "--after", after]
    show_command(words)
    done = subprocess.run([sys.executable, "-m", "specc", *words], check=False, stdout=subprocess.PIPE, text=True)
    for line in excerpt(done.stdout):
        print(line)
    return done.returncode


def excerpt(text: str) -> list[str]:
    """Telling lines of the graph `verify`, without comments and argument lists of loops."""
    verify = text.partition("\ngraph verify {\n")[2].partition("\n}\n")[0]
    found = [line.partition("  # ")[0].partition(" carried=")[0] for line in verify.split("\n") if SHOWN.search(line)]
    lines = [re.sub(r": \(.*\) = loop", " = loop", line) for line in found]
    shown = [line if len(line) <= 118 else line[:115] + "..." for line in lines]
    rest = len(shown) - SHOWN_LINES
    return shown[:SHOWN_LINES] + ([f"  ... and {rest} more like these"] if rest > 0 else [])


def decode(mode: Mode, model: str, tokens: int, output: Path) -> tuple[int, dict[str, Any] | None]:
    """Run one mode; its exit code and its report."""
    report = output / f"{mode.label}.json"
    report.unlink(missing_ok=True)
    prompts = ["--prompts", str(DEMO_TEXTS)] if mode.recurrent else ["--demo-prompts"]
    words = ["run", str(SPECS / f"{mode.spec}.yaml"), "--model", model, *mode.options, *prompts]
    words += ["--max-new-tokens", str(tokens), "--verify-lossless"]
    words += ["--trace", str(output / f"{mode.label}.trace.jsonl"), "--report", str(report)]
    code = specc(words)
    return code, json.loads(report.read_text(encoding="utf-8")) if report.is_file() else None


def repetitive_acceptance(mode: Mode, report: dict[str, Any]) -> float:
    """acceptance_length over the steps of the prompts that repeat themselves."""
    names = {prompt.name for prompt in mode.prompts if prompt.repetitive}
    found = [request for request in report["requests"] if request["name"] in names]
    steps = sum(request["metrics"]["steps"] for request in found)
    return sum(len(request["tokens"]) - 1 for request in found) / steps if steps else 0.0


def shortcomings(mode: Mode, code: int, report: dict[str, Any] | None) -> list[str]:
    """What this run should have shown and did not."""
    if report is None:
        return [f"{mode.title}: `specc run` ended with exit code {code} and no report"]
    found = [f"{mode.title}: `specc run` ended with exit code {code}"] if code else []
    differences = len(report["lossless"]["differences"])
    if differences:
        found.append(f"{mode.title}: {differences} tokens differ from plain decoding")
    if len(report["requests"]) < 5:
        found.append(f"{mode.title}: only {len(report['requests'])} prompts")
    acceptance = repetitive_acceptance(mode, report)
    if mode.lookup and acceptance <= MIN_LOOKUP_ACCEPTANCE:
        wanted = f"expected more than {MIN_LOOKUP_ACCEPTANCE}"
        found.append(f"{mode.title}: acceptance_length {acceptance:.2f} on the repetitive prompts, {wanted}")
    branches = report["metrics"]["branch_steps"]
    if mode.branches and branches < MIN_BRANCH_STEPS:
        found.append(f"{mode.title}: {branches} steps accept a branch, expected {MIN_BRANCH_STEPS} or more")
    return found


COLUMNS = (
    ("decoding", 33),
    ("prompts", 9),
    ("tokens", 8),
    ("differences", 13),
    ("acceptance", 12),
    ("repetitive", 12),
    ("branches", 10),
    ("plain/s", 9),
    ("spec/s", 8),
)


def table(rows: Sequence[tuple[Mode, dict[str, Any]]]) -> str:
    """The final table."""
    lines = ["".join(f"{name:{width}}" if not i else f"{name:>{width}}" for i, (name, width) in enumerate(COLUMNS))]
    for mode, report in rows:
        metrics, lossless = report["metrics"], report["lossless"]
        cells = (
            mode.title,
            len(report["requests"]),
            metrics["tokens"],
            len(lossless["differences"]),
            f"{metrics['acceptance_length']:.2f}",
            f"{repetitive_acceptance(mode, report):.2f}",
            metrics["branch_steps"],
            f"{lossless['plain_tokens_per_second']:.1f}",
            f"{metrics['tokens_per_second']:.1f}",
        )
        widths = [width for _, width in COLUMNS]
        lines.append(
            "".join(
                f"{cell!s:{width}}" if not i else f"{cell!s:>{width}}"
                for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
            )
        )
    return "\n".join(lines)


LEGEND = """\
differences: tokens that are not plain decoding's. acceptance: tokens per step, the bonus included (acceptance_length),
over all prompts and over the repetitive ones. branches: steps that accept a node that is not its parent's first child.
plain/s, spec/s: tokens per second of decoding by the same module, without and with drafts. A simulated drafter is the
target itself with noise: it costs as much as the target, so those two modes can't be faster than plain decoding."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m specc.bench.demo", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", metavar="DIR|NAME")
    parser.add_argument("--recurrent-model", default="weights/gdn-15m", metavar="DIR")
    parser.add_argument("--output", type=Path, default=Path("build/demo"), metavar="DIR", help="default: build/demo")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="default: 64")
    args = parser.parse_args(argv)
    began = time.perf_counter()
    args.output.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    dynamic, module = SPECS / "smollm2-dynamic-tree.yaml", args.output / "smollm2_dynamic_tree.py"
    print("A spec becomes a module, pass by pass. First each token looks its ancestors up, with -1 for the root ...")
    for step, code in (
        ("compile", specc(["compile", str(dynamic), "-o", str(module)])),
        ("verify", specc(["verify", str(module)])),
        ("show", show_excerpt(dynamic, "lower")),
    ):
        problems += [f"specc {step} ended with exit code {code}"] if code else []
    print("\n... after the passes all tokens go through a layer at once, and a mask says who sees whom:")
    problems += ["specc show failed"] if show_excerpt(dynamic, "layer-major") else []
    rows = []
    for mode in MODES:
        print(f"\n=== {mode.title} ===")
        model = args.recurrent_model if mode.recurrent else args.model
        code, report = decode(mode, model, args.max_new_tokens, args.output)
        problems += shortcomings(mode, code, report)
        if report is not None:
            rows.append((mode, report))
    print(f"\n{table(rows)}\n\n{LEGEND}\n")
    print(f"{time.perf_counter() - began:.0f} s; module, traces and reports are in {args.output}")
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
