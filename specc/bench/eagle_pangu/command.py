"""EAGLE-Pangu's tables: an EAGLE-3 tree against plain decoding, turn by turn at batch 1, and what each choice is worth.

    specc bench eagle-pangu --model DIR --draft-model HEAD --data DIR [--device cuda --dtype bfloat16] [--minutes M]

Cells in the order of their weight: the numerical bound of plain decoding; a third of the sets, turn by turn, plain and
speculative with the same module; the stages of a step; on a fixed subset the other drafters, the drafter's window, tree
sizes, mask, commit, pruning; then the rest of the sets. Finished cells are kept under OUTPUT/cells and never done
again: after a kill, run the same command. With --minutes the run ends in time and says what it did not reach. Exit
status 1: a cell failed, or a difference from plain decoding is more than rounding.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specc.bench.arguments import whole
from specc.bench.eagle_pangu import joined, plan, tables
from specc.bench.eagle_pangu.variants import Variant, ablations, drafters, tuned_variant
from specc.bench.evaluation.cells import Cell
from specc.bench.evaluation.markdown import write_results
from specc.bench.evaluation.options import Settings, add_options, made_by, settings_of
from specc.bench.evaluation.pool import Sweep, run_cells
from specc.bench.evaluation.prompts import SETS
from specc.bench.evaluation.warm import COMPILE, WARM, prepare
from specc.diagnostics import DiagnosticError, error
from specc.runtime.model_folder import find_model
from specc.spec import load

SPEC = Path(__file__).resolve().parents[2] / "specs" / "smollm2-eagle.yaml"
NAME = "eagle-pangu"
FIRST_BLOCKS = 3
"""Every third block of the sets is decoded before the variants, the others after them: a run that a bound ends early
has something of every table."""
TITLE = "EAGLE-Pangu: tree speculative decoding, turn by turn"


@dataclass(slots=True)
class Run:
    """One run of the command: what has been found so far."""

    settings: Settings
    arguments: list[str]
    sets: list[str]
    parts: tuple[str, ...]
    chains: tuple[int, ...]
    subset_turns: int
    bigram: Path | None
    only: tuple[str, ...] = ()
    tuned: Variant | None = None
    earlier: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    bound: dict[str, Any] | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    peak_memory: int | None = None
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    variants: list[dict[str, Any]] = field(default_factory=list)
    refused: list[dict[str, str]] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    not_reached: list[str] = field(default_factory=list)

    @property
    def has_head(self) -> bool:
        """Whether the spec's own drafter has weights."""
        return self.settings.draft_model is not None

    def say(self, text: str) -> None:
        """Progress, with the seconds since the start."""
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def sweep(self, cells: Sequence[Cell]) -> Sweep:
        """Do some cells, keep what became of them, write what is known."""
        made = run_cells(cells, self.settings.store, self.settings.executor(), self.settings.deadline, self.say)
        self.failed += [{"cell": item.cell.name, "failure": item.answer.failure} for item in made.failed]
        self.not_reached += [cell.name for cell in made.not_reached]
        return made

    def own_flips(self) -> float | None:
        """Plain decoding's own differences per 10,000 positions."""
        return None if self.bound is None else self.bound["flips_per_10k"]

    def measured_bound(self) -> float | None:
        """The largest difference of a logit; None: the stated bound of the dtype holds."""
        return None if self.bound is None else self.bound["max_logit_difference"]

    def result(self) -> dict[str, Any]:
        """Everything, as `specc report` reads it."""
        settings = self.settings
        made = made_by("specc bench eagle-pangu", self.arguments, settings)
        found, keys = self.whole_sets()
        spec = load(settings.spec).spec
        rows = joined.join_variants(self.variants, str(made.get("commit")), self.earlier)
        stages = joined.join_stages(self.stages, str(made.get("commit")), self.earlier)
        heat = tables.budget_map(rows, spec.num_nodes, spec.depth)
        found += tables.variant_tables(rows)
        found += [tables.stage_table(stages)] if stages else []
        return made | {
            "title": TITLE,
            "note": f"Spec {settings.spec.name}: {spec.num_nodes} nodes (the root counts), depth {spec.depth}; "
            f"{settings.dtype}; at most {settings.max_new_tokens} new tokens; no prompt of these sets was trained or "
            "tuned on.",
            "tables": found,
            "heat_maps": [heat] if heat else [],
            "bound": self.bound,
            "variants": rows,
            "stages": stages,
            "skipped": self.skipped,
            "refused": self.refused,
            "failed": self.failed,
            "not_reached": joined.still_missing(self.not_reached, rows, stages, self.earlier),
            "seconds": round(time.monotonic() - self.began, 1),
            **keys,
        }

    def whole_sets(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The tables of the whole sets, and the keys behind them; an earlier run's where this one decoded none."""
        if self.earlier and not self.records:
            return joined.sets_before(self.earlier)
        sets = tables.summaries(self.records, self.sets, self.own_flips())
        found = [tables.speed_table(sets), tables.lossless_table(sets, self.bound)] if sets else []
        found += [tables.bar_table(sets, self.stages.get("own"), self.settings.on_gpu)] if sets else []
        shares = {name: item["all"]["speculative"]["per_depth_acceptance"] for name, item in sets.items()}
        return found, {
            "sets": sets,
            "turns": tables.turn_rows(self.records),
            "by_depth": [{"label": name, "shares": part} for name, part in shares.items() if part],
            "peak_memory": self.peak_memory,
        }

    def write(self) -> list[Path]:
        """JSON, Markdown, plots."""
        return write_results(self.settings.output, NAME, self.result())


def chosen_variants(run: Run) -> list[Variant]:
    """The variants of the run's parts, or those that were named. Raises DiagnosticError (SPC295) for unknown names."""
    spec = load(run.settings.spec).spec
    found = [*drafters(run.chains, run.bigram), *ablations(run.chains, (spec.num_nodes, spec.depth), run.tuned)]
    names = [item.name for item in found]
    unknown = [name for name in run.only if name not in names]
    if unknown:
        message = f"there is no variant `{unknown[0]}` in this run"
        raise DiagnosticError([error("SPC295", message, help=f"there are {', '.join(names)}")])
    return [
        item
        for item in found
        if (item.part in run.parts and (not run.only or item.name in run.only)) or (item.name == "own" and run.parts)
    ]


def measure(run: Run) -> None:
    """All cells, most important first; results are written after every part."""
    settings = run.settings
    prompts = plan.conversations(settings, run.sets)
    subset = plan.subset(prompts, run.subset_turns)
    own = plan.module_of(settings, Variant("own", "", ""), run.bigram)
    planned = plan.variant_cells(settings, chosen_variants(run), subset, run.bigram, None)
    run.refused = [{"variant": item.variant.name, "reason": item.refusal} for item in planned if item.refusal]
    if settings.warm:
        for text in prepare(modules_of(run, planned), WARM, settings.warm, run.say, settings.deadline):
            run.say(text)
    if settings.bound_positions:
        cell = plan.bound_cell(settings, prompts, run.has_head)
        run.bound = run.sweep([cell]).result(cell)
    blocks = plan.decode_cells(settings, own, prompts, run.measured_bound())
    if run.only:
        blocks = []
    turns_of(run, blocks[::FIRST_BLOCKS])
    run.write()
    ids = median_prompt(subset)
    stages_of(run, [plan.stage_cell(settings, "own", own, ids)])
    # The bound is an input: the cells are planned again with it.
    planned = plan.variant_cells(settings, chosen_variants(run), subset, run.bigram, run.measured_bound())
    variants_of(run, [item for item in planned if item.cell is not None])
    taken_apart = ("mask-eager", "immediate", "chain-path-index", f"chain-{run.chains[0]}" if run.chains else "")
    pairs = [item for item in planned if item.module and item.variant.name in taken_apart]
    stages_of(run, [plan.stage_cell(settings, item.variant.name, item.module, ids) for item in pairs if item.module])
    turns_of(run, [cell for place, cell in enumerate(blocks) if place % FIRST_BLOCKS])
    run.write()


def distinct(modules: Sequence[plan.Module]) -> list[plan.Module]:
    """Each module once."""
    found: dict[str, plan.Module] = {}
    for module in modules:
        found.setdefault(repr(sorted(module[0].items(), key=str)), module)
    return list(found.values())


def median_prompt(prompts: Sequence[plan.Conversation]) -> list[int]:
    """Token ids of the prompt of middle length, for the stages."""
    ordered = sorted((item["ids"] for item in prompts), key=len)
    return list(ordered[len(ordered) // 2])


def turns_of(run: Run, cells: Sequence[Cell]) -> None:
    """The whole sets."""
    made = run.sweep(cells)
    for item in made.outcomes:
        if item.answer.result is not None:
            run.records += item.answer.result["turns"]
            run.skipped += item.answer.result["skipped"]
            run.peak_memory = max(filter(None, (run.peak_memory, item.answer.result["peak_memory"])), default=None)


def stages_of(run: Run, cells: Sequence[Cell]) -> None:
    """Stage times by module."""
    made = run.sweep(cells)
    for item in made.outcomes:
        if item.answer.result is not None:
            run.stages[item.cell.name.partition("/")[2]] = item.answer.result
    run.write()


def variants_of(run: Run, planned: Sequence[plan.Planned]) -> None:
    """The variants on the subset."""
    made = run.sweep([item.cell for item in planned if item.cell is not None])
    for item in planned:
        result = made.result(item.cell) if item.cell is not None else None
        if result is not None and result["turns"]:
            row = tables.variant_row(item.variant, result["turns"], run.own_flips(), result["module_code"])
            run.variants.append(row)
    run.write()


PARTS = ("drafters", "window", "budget", "mask", "commit", "pruning", "top-k")


def _parser() -> argparse.ArgumentParser:
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="specc bench eagle-pangu", description=about)
    add_options(parser, SPEC, NAME)
    parser.add_argument("--bigram-model", metavar="DIR", help="tables of a bigram drafter; without, it is left out")
    parser.add_argument("--sets", default="eagle-pangu,humaneval,gsm8k", metavar="NAME,…", help=", ".join(SETS))
    parser.add_argument("--parts", default=",".join(PARTS), metavar="NAME,…", help=f"of the subset: {', '.join(PARTS)}")
    parser.add_argument("--subset-turns", type=whole(1), default=plan.SUBSET_TURNS, metavar="N", help="default: 40")
    parser.add_argument("--only", default="", metavar="VARIANT,…", help="these on the subset, and no whole sets")
    parser.add_argument("--tuned", type=Path, metavar="FILE", help="a spec whose tree is tried on the subset too")
    parser.add_argument("--earlier", type=Path, metavar="FILE", help="eagle-pangu.json: what is not measured here")
    parser.add_argument("--chains", default="4,6", metavar="N,…", help="lengths of the head's chains (default: 4,6)")
    parser.add_argument("--compile-only", action="store_true", help="keep the modules' sources in the cache and end")
    parser.add_argument("--warm-only", action="store_true", help="the same with their kernels: no head is needed yet")
    return parser


def run_of(args: argparse.Namespace, given: list[str]) -> Run:
    """The run that was asked for. Raises DiagnosticError."""
    sets = [name for name in args.sets.split(",") if name]
    parts = tuple(name for name in args.parts.split(",") if name)
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise DiagnosticError(
            [error("SPC295", f"there is no part `{unknown[0]}`", help=f"there are {', '.join(PARTS)}")]
        )
    bigram = None if args.bigram_model is None else find_model(args.bigram_model).resolve()
    chains = tuple(int(length) for length in args.chains.split(",") if length)
    settings = settings_of(args, "specc bench eagle-pangu", runs=not args.compile_only)
    return Run(
        settings, given, sets, parts, chains, args.subset_turns, bigram,
        only=tuple(name for name in args.only.split(",") if name),
        tuned=None if args.tuned is None else tuned_variant(settings.spec, args.tuned),
        earlier={} if args.earlier is None else joined.read_earlier(args.earlier),
    )  # fmt: skip


def modules_of(run: Run, planned: Sequence[plan.Planned]) -> list[plan.Module]:
    """Every module of the run once, the bound's too."""
    own = plan.module_of(run.settings, Variant("own", "", ""), run.bigram)
    found = [own, *(item.module for item in planned if item.module is not None)]
    if run.settings.bound_positions:
        found.insert(1, plan.bound_module(run.settings, run.has_head))
    return distinct(found)


def prepare_only(run: Run, work: str) -> int:
    """Sources (and kernels) of all modules onto the disk."""
    planned = plan.variant_cells(run.settings, chosen_variants(run), [], run.bigram, None)
    failed = prepare(modules_of(run, planned), work, max(1, run.settings.warm), run.say, run.settings.deadline)
    for text in failed:
        run.say(text)
    return int(bool(failed))


def main(argv: Sequence[str] | None = None) -> int:
    """1 where a cell failed or a difference is more than rounding."""
    given = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(given)
    run = run_of(args, given)
    if args.compile_only or args.warm_only:
        return prepare_only(run, WARM if args.warm_only else COMPILE)
    measure(run)
    for path in run.write():
        run.say(f"wrote {path}")
    above = sum(row["above_bound"] for row in run.variants)
    above += sum(not item["allowed"] for record in run.records for item in record["differences"])
    if run.not_reached:
        run.say(f"not reached: {len(run.not_reached)} cells; run the same command again to go on")
    for item in run.failed:
        print(f"error[SPC297]: {item['cell']}: {item['failure']}", file=sys.stderr)
    if above:
        run.say(f"FAILED: {above} differences above the numerical bound")
    return int(bool(run.failed or above))


if __name__ == "__main__":
    sys.exit(main())
