"""The evaluation's phases, in the order of their importance, each written down as soon as it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specc.bench.evaluation.cells import Cell
from specc.bench.evaluation.pool import InProcess, Processes, Sweep, run_cells
from specc.bench.evaluation.prompts import prepared, prompt_set
from specc.bench.evaluation.store import Store
from specc.bench.specla import cells as parts
from specc.bench.specla.cells import Setting
from specc.bench.specla.kernel_tables import kernel_tables
from specc.bench.specla.sensitivity import CHANCES
from specc.bench.specla.tables import SETS, Row, ablations, by_depth, decoding_row, end_to_end, sensitivity, turns
from specc.bench.specla.variants import ABLATIONS, GENERIC, SET_UP, Variant

PARTS = ("decoding", "sensitivity", "kernels", "ablations")
PROMPTS = {"gsm8k": 200, "humaneval": 164, "mixed": 240}
"""How many of each set, spread over it."""
CHUNK = 40
SAMPLED = "sampled"
POSITIONS = 20_000
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for: `data`, the prompt sets' folder; `subset`, prompts of an ablation; `chances`, values of p;
    `tuned`, changes that give the set-up a tuned tree; `warm`, processes that compile everything beforehand."""

    setting: Setting
    data: Path | None = None
    limit: int | None = None
    subset: int = 30
    wanted: Sequence[str] = PARTS
    tokens: int = 1024
    steps: int = 600
    chances: Sequence[float] = CHANCES
    positions: int = POSITIONS
    only: str = ""
    tuned: tuple[str, ...] | None = None
    warm: int = 0

    @property
    def decodes(self) -> bool:
        """Whether a model, its head and prompts were given."""
        return self.data is not None and self.setting.has(SET_UP)


@dataclass(slots=True)
class Found:
    """What the cells have given so far."""

    records: dict[tuple[str, str], list[Row]] = field(default_factory=dict)
    variants: list[Row] = field(default_factory=list)
    sensitivity: list[Row] = field(default_factory=list)
    heads: dict[str, Row] = field(default_factory=dict)
    kernels: dict[str, list[Row]] = field(default_factory=dict)
    bound: Row | None = None
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    not_reached: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def note(self, sweep: Sweep) -> None:
        """What a phase did not give."""
        self.failed += [f"{item.cell.name}: {item.answer.failure}" for item in sweep.failed]
        self.not_reached += [cell.name for cell in sweep.not_reached]

    @property
    def own_per_10k(self) -> float | None:
        """How often plain decoding differs from itself."""
        return None if self.bound is None else float(self.bound["flips_per_10k"])

    def told(self) -> str:
        """The numerical bound, and what is missing."""
        lines = []
        if self.bound is not None:
            lines.append(
                f"Numerical bound: logits of plain decoding alone and among 16 rows differ by at most "
                f"{self.bound['max_logit_difference']:.3g} over {self.bound['positions']} positions; "
                f"{self.bound['flips']} best tokens differ."
            )
        missing = (("Failed", self.failed), ("Not reached", self.not_reached),
                   ("Too long for the module", self.skipped), ("Left out", self.left_out))  # fmt: skip
        lines += [f"{name}: {'; '.join(dict.fromkeys(found))}." for name, found in missing if found]
        return " ".join(lines)

    def as_json(self) -> Row:
        """Tables, curves and the rows behind them."""
        tables, curves = sensitivity(self.sensitivity, self.heads)
        first = [end_to_end(self.records, self.own_per_10k)] if self.records else []
        return {
            "title": "SpecLA: speculative decoding of a linear-attention target",
            "note": self.told(),
            "tables": [*first, *tables, *kernel_tables(self.kernels), *ablations(self.variants)],
            "curves": curves,
            "by_depth": by_depth(self.records),
            "bound": self.bound,
            "skipped": self.skipped,
            "failed": self.failed,
            "not_reached": self.not_reached,
            "left_out": self.left_out,
            "turns": {f"{name}, {drafter}": turns(found) for (name, drafter), found in self.records.items()},
            "rows": {"kernels": self.kernels, "heads": self.heads},
        }


@dataclass(slots=True)
class Evaluation:
    """A plan under way. `write` is called after every phase."""

    plan: Plan
    store: Store
    deadline: float | None
    say: Say
    write: Callable[[Found], object]
    found: Found = field(default_factory=Found)
    sets: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def run(self) -> Found:
        """All phases, as far as the time goes."""
        self._load()
        if self.plan.warm:
            self.prepare("warm_cell")
        self._bound()
        for phase in self.phases():
            phase()
            self.write(self.found)
        return self.found

    def phases(self) -> Iterator[Callable[[], None]]:
        """First a part of every prompt set by both heads, then what does not decode, the ablations, and the rest of the
        sets."""
        wanted, decodes = self.plan.wanted, self.plan.decodes
        if "decoding" in wanted and decodes:
            yield lambda: self._decode(SET_UP, first=True)
            if self.plan.setting.has(GENERIC):
                yield lambda: self._decode(GENERIC, first=True)
        if "kernels" in wanted:
            yield self._kernels
        if "ablations" in wanted and decodes:
            yield self._ablations
        if "sensitivity" in wanted:
            yield self._sensitivity
        if "decoding" in wanted and decodes:
            yield lambda: self._decode(SET_UP, first=False)
            if self.plan.setting.has(GENERIC):
                yield lambda: self._decode(GENERIC, first=False)

    def _load(self) -> None:
        """Prompts as token ids."""
        plan = self.plan
        if not plan.decodes:
            self.found.left_out.append("decoding: needs --model, --draft-model and --data")
            return
        assert plan.data is not None
        assert plan.setting.model is not None
        for name in SETS:
            most = PROMPTS[name] if plan.limit is None else min(plan.limit, PROMPTS[name])
            self.sets[name] = prepared(prompt_set(name, plan.data, most), plan.setting.model, plan.setting.cache)
        sampled = prompt_set("mixed", plan.data, plan.subset if plan.limit is None else min(plan.limit, plan.subset))
        self.sets[SAMPLED] = prepared(sampled, plan.setting.model, plan.setting.cache)

    def _variants(self) -> list[Variant]:
        """The ablations whose folders were given and whose name holds what was asked for."""
        tuned = [] if self.plan.tuned is None else [Variant("the tree that was tuned", "tree", self.plan.tuned)]
        found = [one for one in (*ABLATIONS, *tuned) if self.plan.only in one.name or one is SET_UP]
        return [one for one in found if self.plan.setting.has(one)]

    def every_module(self) -> list[Cell]:
        """One cell of every module and kernel that the plan needs, to be made ready."""
        plan, setting, made = self.plan, self.plan.setting, list[Cell]()
        if plan.decodes:
            variants = [SET_UP, GENERIC] if "decoding" in plan.wanted else [SET_UP]
            if "ablations" in plan.wanted:
                variants += [one for one in self._variants() if one not in variants]
            made += [parts.decode_cells(setting, one, SAMPLED, self.sets[SAMPLED][:1], CHUNK)[0]
                     for one in variants if setting.has(one)]  # fmt: skip
            made.append(self._bound_cell())
        if "sensitivity" in plan.wanted:
            made += parts.sensitivity_cells(setting, plan.tokens, plan.steps, plan.chances)
        if "kernels" in plan.wanted:
            made += parts.kernel_cells(setting)
        return made

    def prepare(self, work: str) -> bool:
        """Do `warm_cell` or `compile_cell` of every module, in processes of their own; whether none failed."""
        waiting = [cell for cell in self.every_module() if self.store.get(cell) is None]
        queue = iter([
            Cell(cell.name, f"{parts.__name__}:{work}", {"work": cell.work, "inputs": dict(cell.inputs)},
                 cell.places or {"cache": str(self.plan.setting.cache)})
            for cell in waiting
        ])  # fmt: skip
        began, failed = time.monotonic(), 0
        workers = max(1, min(self.plan.warm, len(waiting)))

        def take() -> Cell | None:
            late = self.deadline is not None and time.monotonic() >= self.deadline
            return None if late else next(queue, None)

        for cell, answer in Processes(workers).run(take):
            if answer.failure:
                failed += 1
            self.say(f"{cell.name}: {answer.failure or f'ready, {answer.seconds:.0f} s'}")
        self.say(f"{len(waiting)} modules and kernels made ready in {time.monotonic() - began:.0f} s")
        return not failed

    def only_prepare(self, warm: bool) -> bool:
        """The sources of all modules, into the cache, and where `warm` their kernels; whether none failed. Heads need
        not be trained yet."""
        self._load()
        return self.prepare("warm_cell" if warm else "compile_cell")

    def _run(self, cells: Sequence[Cell]) -> Sweep:
        """Timed cells, one after the other, in this process."""
        sweep = run_cells(cells, self.store, InProcess(), self.deadline, self.say)
        self.found.note(sweep)
        return sweep

    def _bound_cell(self) -> Cell:
        fitting = [item["ids"] for item in self.sets[SAMPLED] if len(item["ids"]) < 256] or [[1, 2, 3]]
        return parts.bound_cell_of(self.plan.setting, SET_UP, fitting, self.plan.positions)

    def _bound(self) -> None:
        """The numerical bound; what is decoded later is judged by it."""
        if not (self.plan.decodes and {"decoding", "ablations"} & set(self.plan.wanted) and self.plan.setting.on_gpu):
            return
        cell = self._bound_cell()
        result = self._run([cell]).result(cell)
        if result is not None:
            self.found.bound = result
            setting = replace(self.plan.setting, bound=result["max_logit_difference"])
            self.plan = replace(self.plan, setting=setting)

    def _decode(self, variant: Variant, first: bool) -> None:
        """A chunk of every set, or all the others."""
        named: list[tuple[str, Cell]] = []
        for name in SETS:
            own = parts.decode_cells(self.plan.setting, variant, name, self.sets[name], CHUNK)
            named += [(name, cell) for cell in (own[:1] if first else own[1:])]
        sweep = self._run([cell for _, cell in named])
        for name, cell in named:  # sets that share a prompt may share a cell
            if (result := sweep.result(cell)) is not None:
                self.found.records.setdefault((name, variant.drafter), []).extend(result["turns"])
                self.found.skipped += result["skipped"]

    def _results(self, cells: Sequence[Cell]) -> list[tuple[Cell, Row]]:
        sweep = self._run(cells)
        return [(cell, result) for cell in cells if (result := sweep.result(cell)) is not None]

    def _sensitivity(self) -> None:
        plan = self.plan
        for cell, result in self._results(parts.sensitivity_cells(plan.setting, plan.tokens, plan.steps, plan.chances)):
            self.found.sensitivity += result.get("rows", [])
            if "row" in result:
                self.found.heads[cell.inputs["shape"]] = result["row"]

    def _kernels(self) -> None:
        cells = parts.kernel_cells(self.plan.setting)
        if not cells:
            self.found.left_out.append("kernels: they need a CUDA device")
        for cell, result in self._results(cells):
            self.found.kernels[cell.inputs["part"]] = result["rows"]

    def _ablations(self) -> None:
        self.found.left_out += [f"ablation {one.name}: its drafter is not given, or it needs a GPU" for one in ABLATIONS
                                if not self.plan.setting.has(one)]  # fmt: skip
        for variant in self._variants():
            cells = parts.decode_cells(self.plan.setting, variant, SAMPLED, self.sets[SAMPLED], CHUNK)
            records = [record for _, result in self._results(cells) for record in result["turns"]]
            if records:
                label = {"variant": variant.name, "change": variant.change, "table": variant.table}
                self.found.variants.append(label | decoding_row(records, self.found.own_per_10k))
