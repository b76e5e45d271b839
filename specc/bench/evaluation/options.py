"""Options that the evaluations share, and what follows from them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.bench.arguments import whole
from specc.bench.evaluation.modules import module_inputs, module_places
from specc.bench.evaluation.pool import Executor, InProcess, Processes
from specc.bench.evaluation.ray_pool import LOCAL, OnRay
from specc.bench.evaluation.store import Store
from specc.bench.gpu_timing import gpu, require_gpu
from specc.bench.results import RESULTS, environment
from specc.cache_folder import cache_root
from specc.runtime.model_folder import find_model

DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run was asked for. `deadline`: of time.monotonic(), None without --minutes."""

    spec: Path
    model: Path
    draft_model: Path | None
    data: Path
    device: str
    dtype: str
    limit: int | None
    max_new_tokens: int
    bound_positions: int
    output: Path
    cache: Path
    warm: int
    workers: int
    ray: str | None
    deadline: float | None

    @property
    def on_gpu(self) -> bool:
        """Whether cells are timed on a GPU."""
        return self.device.startswith("cuda")

    @property
    def store(self) -> Store:
        """Finished cells."""
        return Store(self.output / "cells")

    def executor(self) -> Executor:
        """Where cells are done: timed ones of a GPU one at a time, unless Ray has one for each."""
        if self.ray is not None:
            return OnRay(self.ray, None if self.workers < 2 else self.workers, gpus=self.on_gpu)
        return InProcess() if self.on_gpu or self.workers < 2 else Processes(self.workers)

    def module(self, overrides: Sequence[str], *, spec: Path | None = None, draft_model: Path | None = None,
               drafter: bool = True, rows: int = 1, ignore_eos: bool = False) -> dict[str, Any]:  # fmt: skip
        """A cell's inputs that name a module: the spec with these one-line changes, the run's dtype, `rows` at once.

        draft_model: another drafter's folder than the run's; drafter: whether the module has one at all.
        """
        changes = [f"runtime.dtype={self.dtype}", f"runtime.max_batch_size={rows}", *overrides]
        folder = (draft_model or self.draft_model) if drafter else None
        return module_inputs(
            spec or self.spec, changes, model=self.model, draft_model=folder, device=self.device, ignore_eos=ignore_eos
        )

    def places(
        self, *, spec: Path | None = None, draft_model: Path | None = None, drafter: bool = True
    ) -> dict[str, str]:
        """Where that module finds its folders."""
        folder = (draft_model or self.draft_model) if drafter else None
        return module_places(spec or self.spec, model=self.model, draft_model=folder, cache=self.cache)


def add_options(parser: argparse.ArgumentParser, spec: Path, name: str) -> None:
    """The shared options; `spec` is the default one, `name` the folder of the results."""
    add = parser.add_argument
    add("--model", required=True, metavar="DIR|NAME", help="the target's folder")
    add("--draft-model", metavar="DIR", help="the trained head's folder")
    add("--data", type=Path, required=True, metavar="DIR", help="folder with mt_bench, humaneval and gsm8k")
    add("--spec", type=Path, default=spec, metavar="FILE", help=f"default: {spec.name}")
    add("--device", default="cpu", help="cpu (reference modules) or cuda (Triton modules); default: cpu")
    add("--dtype", choices=DTYPES, default="float32", help="of weights and activations; default: float32")
    add("--limit", type=whole(1), metavar="N", help="at most so many prompts of each set, spread over it")
    add("--max-new-tokens", type=whole(2), default=256, metavar="N", help="of a turn; default: 256")
    add(
        "--bound-positions",
        type=whole(0),
        metavar="N",
        help="over which the numerical bound is measured (default: 20000 on a GPU, else 0: the stated one is used)",
    )
    add("--minutes", type=float, metavar="M", help="begin no cell after so many minutes")
    add("--output", type=Path, default=RESULTS / name, metavar="DIR", help=f"default: {RESULTS.name}/{name}")
    add(
        "--cache",
        type=Path,
        default=cache_root() / "evaluation",
        metavar="DIR",
        help="compiled modules, prompts and plain texts, kept by content",
    )
    add("--warm", type=whole(0), default=0, metavar="N", help="compile all modules beforehand in N processes")
    add("--workers", type=whole(1), default=1, metavar="N", help="processes for cells (not on a GPU)")
    add("--ray", nargs="?", const=LOCAL, metavar="ADDRESS", help="cells on a Ray cluster (default: a local one)")


def settings_of(args: argparse.Namespace, command: str, runs: bool = True) -> Settings:
    """The run's settings, its folders found. Raises DiagnosticError: SPC292 (where it `runs`), SPC401, SPC411."""
    on_gpu = str(args.device).startswith("cuda")
    if on_gpu and runs:
        require_gpu(command)
    positions = (20_000 if on_gpu else 0) if args.bound_positions is None else args.bound_positions
    return Settings(
        spec=args.spec,
        model=find_model(args.model).resolve(),
        draft_model=None if args.draft_model is None else find_model(args.draft_model).resolve(),
        data=args.data,
        device=args.device,
        dtype=args.dtype,
        limit=args.limit,
        max_new_tokens=args.max_new_tokens,
        bound_positions=positions,
        output=args.output,
        cache=args.cache.resolve(),
        warm=args.warm,
        workers=args.workers,
        ray=args.ray,
        deadline=None if args.minutes is None else time.monotonic() + 60 * args.minutes,
    )


def made_by(module: str, arguments: Sequence[str], settings: Settings) -> dict[str, Any]:
    """Device, commit, command and packages of a run, for the head of its results."""
    head: Mapping[str, Any] = environment(module, list(arguments))
    more: dict[str, Any] = {"dtype": settings.dtype, "run_device": settings.device}
    if settings.on_gpu:
        more["gpu"] = gpu()
    return {**head, **more}
