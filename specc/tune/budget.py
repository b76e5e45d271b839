"""`specc tune budget`: measure acceptance and step times, choose the tree, check it on other prompts, write it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from specc.bench.evaluation.cells import code_fingerprint, key_of
from specc.bench.results import environment, processor
from specc.diagnostics import DiagnosticError, error
from specc.output import check_output, write_json, write_text
from specc.runtime.generate import Request
from specc.runtime.model_folder import check_target, find_model
from specc.runtime.module import DecoderLike
from specc.runtime.session import Session
from specc.runtime.tokenizer import Tokenizer
from specc.spec import LoadedSpec, fingerprint, unsupported
from specc.spec.text import read_text
from specc.tune.build import Warm, Warming, Workplace
from specc.tune.check import check, decided, finalists
from specc.tune.choose import (
    Bounds,
    Margin,
    best_of_each_kind,
    judged,
    margins,
    ranked_grid,
    ranked_static,
    tightest,
)
from specc.tune.edit import rewritten, with_header
from specc.tune.evidence import Evidence, Recorded
from specc.tune.keep import NOTHING_KEPT, Kept
from specc.tune.lookup import Looked
from specc.tune.prompts import check_not_test, training_requests
from specc.tune.ranks import by_depth
from specc.tune.record import Limits, look_up, record, recorded
from specc.tune.report import Findings
from specc.tune.timing import EDGES, Point, Timed, fit, planned, time_rounds
from specc.tune.variants import KINDS, SCORED, Kind, Source, Tree, check_tunable, generous, source_tree

MARGINS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0)
FEWEST_POSITIONS = 32
MOST_POSITIONS = 8000
"""More than enough for shares: the error of an acceptance length is then about 0.02."""
FIRST_BUILD = 0.65
"""Share of the minutes for building that the modules which measure have; the rest is for what was chosen."""
RECORDING, TIMING = 0.4, 0.35
"""Shares of the minutes; the rest is for the check of what was chosen."""
CHECKED = 0.25
"""Share of the prompts that nothing is chosen by."""
CHECK_WARM = 4
"""So many of them are tried while the modules of the check are built: kernels are specialised by prompts' lengths."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. `levels`, `nodes` and `top_k` bound the trees; `keep` is the share of the acceptance length
    that pruning must keep; `rows` are recorded at once."""

    spec: Path
    model: str
    output: Path
    draft_model: str | None = None
    prompts: Path | None = None
    data: Path | None = None
    overrides: tuple[str, ...] = ()
    device: str = "cpu"
    limit: int = 64
    minutes: float = 2.0
    build_minutes: float = 2.5
    max_new_tokens: int = 128
    nodes: int = 31
    levels: int = 8
    top_k: int = 4
    kinds: tuple[Kind, ...] = KINDS
    keep: float = 0.99
    prune: bool = False
    rows: int = 8
    allow_test: bool = False
    modules: Path | None = None
    build_only: bool = False
    cache: Path | None = None
    report: Path | None = None
    command: str = "specc tune budget"


Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """A run that has been checked: its spec, workplace and bounds."""

    options: Options
    work: Workplace
    bounds: Bounds
    say: Say
    kept: Kept = NOTHING_KEPT

    def inputs(
        self, loaded: LoadedSpec, session: Session, limits: Limits, requests: Sequence[Request]
    ) -> dict[str, Any]:
        """What a recording depends on."""
        prompts = [[request.number, list(request.ids)] for request in requests]
        more = {"recorder": 1, "tokens": limits.max_new_tokens, "positions": limits.positions, "prompts": prompts}
        return self.kept.inputs(loaded, session, self.work.target, **more)

    def stamp(self, name: str) -> Path:
        """The file that says that a module of this spec and its kernels were built on this device."""
        spec = fingerprint(self.source.loaded.spec)
        made_of = [name, spec, code_fingerprint(), self.kept.device, repr(self.bounds), self.options.rows]
        return Path(self.options.modules or "") / f"{key_of(made_of)[:24]}.ready"

    @property
    def source(self) -> Source:
        return self.work.source

    @property
    def advance(self) -> Tree:
        """The tree of the module that advances texts: the smallest with all levels."""
        top_k, levels = self.bounds.top_k, self.bounds.levels
        return Tree("chain", levels, levels, 1) if top_k == 1 else Tree("dynamic", levels, levels, top_k)

    @property
    def plan(self) -> list[Tree]:
        """The trees whose steps are timed; the source's is one of them."""
        bounds, before = self.bounds, self.bounds.cut(source_tree(self.source.loaded))
        found = planned(bounds.top_k, bounds.levels, bounds.nodes, bounds.method, self.edges)
        return [before, *(tree for tree in found if tree != before)]

    @property
    def edges(self) -> tuple[int, ...]:
        """Rows above which a step takes longer at once."""
        return EDGES if self.work.target == "triton" else ()


def tune(options: Options, say: Say) -> Findings | None:
    """Everything; with `build_only` the modules that measure are built, and nothing is returned.

    Raises SpecError and DiagnosticError: SPC490 to SPC494 and what the parts raise.
    """
    for output in (options.output, *([options.report] if options.report else [])):
        check_output(output)
    source = Source.read(options.spec, options.overrides)
    check_tunable(source.loaded)
    if options.prompts is not None:
        check_not_test(options.prompts, options.allow_test)
    check_target(source.loaded, find_model(options.model))
    target = "triton" if options.device.startswith("cuda") else "reference"
    refused = unsupported(source.loaded, target)
    if refused:
        raise DiagnosticError(refused)
    with ExitStack() as stack:
        folder = options.modules
        if folder is None and target == "triton":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work = Workplace(source, options.model, options.draft_model, target, options.device, folder)
        method = source.loaded.spec.draft.method
        levels = source.deepest(Tree("dynamic" if options.top_k > 1 else "chain", 1, options.levels, options.top_k))
        nodes = max(options.nodes, levels)
        kept = Kept(options.cache, device_name(options.device))
        job = Job(options, work, Bounds(nodes, levels, options.top_k, options.kinds, method), say, kept)
        return _run(job)


def _run(job: Job) -> Findings | None:
    options = job.options
    spec = job.source.loaded.spec
    tokenizer = Tokenizer.from_folder(find_model(options.model))
    room = spec.runtime.max_sequence_length - options.max_new_tokens
    requests, origin = training_requests(
        tokenizer, options.prompts, options.data, options.limit, room, spec.sampling.seed, test=options.allow_test
    )
    aside = int(len(requests) * CHECKED)
    seen, unseen = requests[: len(requests) - aside], requests[len(requests) - aside :]
    build, began = 60 * options.build_minutes, time.monotonic()
    ready = _warmed(job, job.plan, seen[:1], FIRST_BUILD * build, recorded=seen[: options.rows])
    build -= time.monotonic() - began
    if options.build_only:
        return None
    session = job.work.open(job.source.with_tree(job.advance, _recording_overrides(options.rows)))
    clock = Clock(60 * options.minutes)
    evidence, texts = _evidence(job, session, seen, clock.end(RECORDING))
    positions = evidence.ranks.shape[0]
    if positions < FEWEST_POSITIONS:
        message = f"{positions} positions of {texts} texts were recorded, at least {FEWEST_POSITIONS} are needed"
        raise DiagnosticError([error("SPC492", message, help="raise --limit or --max-new-tokens")])
    points, plain = _points(job, session, ready, seen[0], clock.end(TIMING))
    findings = _chosen(job, evidence, points, plain, (origin, texts, positions))
    if not unseen:
        note = "too few prompts: the check ran on those that the tree was chosen by"
        findings = replace(findings, notes=(*findings.notes, note))
    last = partial(clock.end, 1 - RECORDING - TIMING)
    findings = _decided(job, session, findings, evidence, unseen or seen, build, last)
    _write(job, findings)
    return findings


def _recording_overrides(rows: int) -> list[str]:
    """Several rows at once, and no pruning."""
    return [f"runtime.max_batch_size={rows}", "draft.prune=null"]


def _warmed(
    job: Job, trees: Sequence[Tree], requests: Sequence[Request], seconds: float, *, recorded: Sequence[Request] = ()
) -> list[Tree]:
    """The trees whose modules are ready to be run. On a GPU they, and those that record, are compiled and their
    kernels built in processes of their own, by these requests; a CPU has nothing to build ahead."""
    if job.work.target != "triton":
        return list(trees)
    first: list[Warm] = []
    if recorded:
        first.append(("recording", warm_recording, (job.work, job.bounds, job.options.rows, recorded)))
    steps: list[Warm] = [(tree.label, warm_steps, (job.work, tree, requests)) for tree in trees]
    jobs = [*first, *steps]
    stamps = {name: job.stamp(name) for name, _, _ in jobs} if job.options.modules else {}
    done = Warming(jobs, stamps).run(time.monotonic() + seconds, job.say)
    return [tree for tree in trees if tree.label in done]


@dataclass(slots=True)
class Clock:
    """Shares of the seconds for measuring, one after the other: what was spent on building between does not count, and
    what a part leaves the next one has."""

    seconds: float
    spare: float = 0.0
    last: float = 0.0

    def end(self, share: float) -> float:
        """When (of time.monotonic) a part ends that begins now."""
        now = time.monotonic()
        if self.last:
            self.spare = max(0.0, self.last - now)
        self.last = now + self.seconds * share + self.spare
        return self.last


def warm_steps(work: Workplace, tree: Tree, requests: Sequence[Request]) -> None:
    """In a process of its own: a few steps of a tree."""
    session = work.open(work.source.with_tree(tree))
    for request in requests:
        session.decoder.start([list(request.ids)], 64)
        session.decoder.step()
        session.decoder.plain_step()


def warm_recording(work: Workplace, bounds: Bounds, rows: int, requests: Sequence[Request]) -> None:
    """In a process of its own: a few recorded positions of a batch."""
    job = Job(Options(work.source.path, work.model, Path(), rows=rows), work, bounds, lambda _: None)
    session = work.open(work.source.with_tree(job.advance, _recording_overrides(rows)))
    _evidence(job, session, requests, time.monotonic(), positions=3 * len(requests))


def _evidence(
    job: Job, session: Session, requests: Sequence[Request], deadline: float, positions: int = MOST_POSITIONS
) -> tuple[Evidence, int]:
    """What was recorded, and of how many texts."""
    bounds, limits = job.bounds, Limits(job.options.max_new_tokens, positions, deadline, FEWEST_POSITIONS)
    draft = job.source.loaded.spec.draft
    if bounds.method == "prompt_lookup":
        assert draft.ngram is not None
        texts = job.kept.texts(
            lambda: job.inputs(session.loaded, session, limits, requests),
            lambda: (look_up(session, requests, limits, job.say), time.monotonic() < deadline),
        )
        looked = Looked(texts, (draft.ngram.min, draft.ngram.max), bounds.top_k, bounds.levels, bounds.nodes)
        return looked, len(texts)
    tree = generous(bounds.method, bounds.top_k, bounds.levels)
    loaded = job.source.with_tree(tree, _recording_overrides(job.options.rows))

    def measure() -> tuple[Recorded, bool]:
        rows = record(session, job.work.module(loaded, session), requests, limits, job.say)
        if not rows:
            raise DiagnosticError([error("SPC492", "no position was recorded", help="raise --max-new-tokens")])
        return recorded(rows, bounds.top_k, bounds.levels), time.monotonic() < deadline

    found = job.kept.recording(lambda: job.inputs(loaded, session, limits, requests), measure)
    return found, len(found.spans)


def _points(
    job: Job, session: Session, ready: Sequence[Tree], request: Request, deadline: float
) -> tuple[list[Point], Point | None]:
    """Times of the ready trees' steps, one row at a time, and of plain decoding's. Raises DiagnosticError (SPC493)."""
    if not ready:
        raise DiagnosticError([error("SPC493", "no module was ready to be timed", help="raise --build-minutes")])
    wanted: list[Timed] = [(ready[0], False), (ready[0], True), *((tree, False) for tree in ready[1:])]

    def inputs(one: Timed) -> Mapping[str, Any]:
        more = {"prompt": list(request.ids), "plain": one[1]}
        return job.kept.inputs(job.source.with_tree(one[0]), session, job.work.target, **more)

    known = {one: point for one in wanted if (point := job.kept.point(partial(inputs, one), one[0])) is not None}
    timed = time_rounds(wanted, partial(_decoder, job, session), [request.ids], deadline, known)
    for one, point in timed.items():
        job.kept.keep_point(partial(inputs, one), point)
    found = known | timed
    for (tree, plain), point in found.items():
        job.say(f"{'plain decoding' if plain else tree.label}: {point.seconds * 1e6:.0f} us a step")
    return [found[tree, False] for tree in ready if (tree, False) in found], found.get((ready[0], True))


def _decoder(job: Job, session: Session, tree: Tree) -> DecoderLike:
    """A decoder of the source's spec with a tree."""
    return job.work.decoder(job.source.with_tree(tree), session)[1]


def _chosen(
    job: Job, evidence: Evidence, points: Sequence[Point], plain: Point | None, told: tuple[str, int, int]
) -> Findings:
    """The best tree of each kind, and of all."""
    model, bounds, spec = fit(points, job.edges), job.bounds, job.source.loaded.spec
    grid = ranked_grid(evidence, model, bounds)
    best = best_of_each_kind(grid, ranked_static(evidence, model, bounds))
    floor = None if spec.draft.prune is None else spec.draft.prune.min_path_log_prob
    before = source_tree(job.source.loaded)
    within = bounds.cut(before)
    notes = [] if within == before else [f"the source's tree is judged as {within.label}: it exceeds what was recorded"]
    chosen = next(iter(best.values()))
    if plain is not None and plain.seconds * chosen.rate < 1:
        notes.append(f"plain decoding is faster here: {1 / plain.seconds:.1f} tokens/s; no tree pays on this device")
    found: list[Margin] = []
    if isinstance(evidence, Recorded) and bounds.method in SCORED and chosen.tree.kind != "static":
        found = list(margins(evidence, chosen.tree, MARGINS, floor))
        wanted = tightest(found, job.options.keep)
        if wanted is not None and (before.margin is not None or job.options.prune):
            chosen = judged(evidence, replace(chosen.tree, margin=wanted.margin), model, floor)
    if job.options.allow_test:
        notes.append("test prompts were allowed: figures on them say too much")
    origin, texts, positions = told
    return Findings(
        origin, texts, positions, by_depth(evidence.ranks, bounds.top_k), model, plain, bounds, grid, best,
        replace(judged(evidence, within, model, floor), tree=before), chosen, found, (), notes,
    )  # fmt: skip


def _decided(job: Job, session: Session, findings: Findings, evidence: Evidence, requests: Sequence[Request],
             build: float, deadline: Callable[[], float]) -> Findings:  # fmt: skip
    """The trees that look good, built in `build` seconds and run on other prompts; the fastest one is chosen."""
    model = findings.model
    timed = [point.tree for point in model.points if point.tree.kind in job.bounds.kinds]
    if findings.chosen.tree.margin is not None:
        timed = []  # they were timed unpruned
    wanted = finalists(findings, [judged(evidence, tree, model) for tree in timed])
    built = _warmed(job, [choice.tree for choice in wanted], requests[:CHECK_WARM], build)
    # What isn't ready is built here and now, if it is what the model expects to be the fastest, or the source's.
    left = [choice for choice in wanted if choice.tree in built or choice in wanted[:2]]
    tokens, seed, seconds = job.options.max_new_tokens, session.identity.seed, deadline() - time.monotonic()
    made = check(partial(_decoder, job, session), left, requests, tokens, seed, seconds, job.say)
    return decided(findings, made)


def _write(job: Job, findings: Findings) -> None:
    """The chosen spec with a header, and the measurements beside it."""
    options, source = job.options, job.source
    told, device = environment("specc", options.command.split()[1:]), job.kept.device
    settings = findings.chosen.tree.settings(source.loaded)
    wanted = source.with_tree(findings.chosen.tree)
    given = {key.strip(): yaml.safe_load(value) for key, _, value in (one.partition("=") for one in source.overrides)}
    text, same = rewritten(read_text(source.path), options.output, wanted, given | settings)
    header = findings.header(device, options.command)
    if not same:
        header.append("Written anew: the source's form could not be edited in place.")
    write_text(options.output, with_header(text, header))
    write_json(options.report or options.output.with_suffix(".json"), told | {"device": device} | findings.as_json())


def device_name(device: str) -> str:
    """The GPU's name, or the processor's."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else processor()
