"""Checks that need no drawn example: fingerprints (I28), vocabulary maps (I15), mutated programs (I20), laws (I11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import torch
from torch import Tensor

from specc.check import law
from specc.check.compare import mapping_difference
from specc.check.crew import CRASHES, comparable
from specc.check.drafts import as_bag, planted
from specc.check.findings import CheckFailure, Checks, Finding
from specc.check.machines import Bag, Interpreted, Machine, State
from specc.check.mutate import mutated
from specc.check.report import Counterexample
from specc.check.single import narrowed, widened
from specc.check.subject import Subject
from specc.check.weights import program_weights
from specc.check.workbench import Workbench
from specc.diagnostics import DiagnosticError
from specc.ir.printer import fingerprint
from specc.ir.strict import IndexRangeError
from specc.manager import PassContext, Pipeline
from specc.passes import pipeline_of
from specc.program import DecodeProgram, input_ports
from specc.testing import invariants as static

MUTANTS = 12
PROMPTS = ((5, 9, 33, 2), (8,))


def _found(variation: str, check: Callable[[], None]) -> Counterexample | None:
    try:
        check()
    except CheckFailure as failure:
        return Counterexample(failure.finding, None, variation)
    return None


def static_checks(bench: Workbench, checks: Checks, notes: dict[str, str]) -> Counterexample | None:
    """On the spec itself, before any example."""
    subject = bench.subject(0)
    if subject.spec.draft.method != "eagle3":
        notes.setdefault("I15", "not applicable: one vocabulary")
    if not subject.spec.target.geometry.num_attention_heads:
        notes.setdefault("I4", "not applicable: no layer reads positions")
    name = bench.variations[0].name
    return _found(name, lambda: vocabulary_map(subject, checks)) or _found(
        name, lambda: unchanged_passes(subject, checks)
    )


def vocabulary_map(subject: Subject, checks: Checks) -> None:
    """I15: the head's tables agree."""
    offsets, marks = subject.all_weights.get("draft_d2t"), subject.all_weights.get("draft_t2d")
    if isinstance(offsets, Tensor) and isinstance(marks, Tensor):
        with checks.check("I15", "the head's weights"):
            static.check_vocabulary_map(offsets.tolist(), marks.tolist())


def unchanged_passes(subject: Subject, checks: Checks) -> None:
    """I28: a pass run on its own result that reports no change leaves the fingerprint as it is."""
    if not checks.wants("I28"):
        return
    programs = {stage.name: stage.program for stage in subject.stages}
    program = subject.naive
    for item in pipeline_of(subject.spec, target=subject.target).passes:
        program = programs.get(item.name, program)
        if item.requires - program.properties:
            continue
        try:
            result = item.run(program, PassContext(verify=False))
            Pipeline((item,)).run(program, PassContext(verify=False))
        except DiagnosticError as failure:
            if any(entry.code == "SPC911" for entry in failure.diagnostics):
                text = f"pass {item.name} on its own result: {failure.diagnostics[0].message}"
                raise CheckFailure(Finding("I28", "the spec itself", text)) from failure
            continue  # a pass may refuse its own result
        if not result.changed:
            same = fingerprint(result.program) == fingerprint(program)
            gap = None if same else f"pass {item.name} reports no change, but the fingerprint differs"
            checks.require("I28", "the spec itself", gap)


def expensive_checks(
    bench: Workbench, checks: Checks, notes: dict[str, str], max_examples: int
) -> Counterexample | None:
    """Output laws of every variation that samples, and mutated programs of the spec itself."""
    sampling = _sampling(bench)
    if not sampling:
        notes["I11"] = "not applicable: nothing is sampled; I23 states the law of greedy decoding"
    for number in sampling if checks.wants("I11") else ():
        found = _found(bench.variations[number].name, partial(law.check_law, bench.subject(number), checks, bench.seed))
        if found is not None:
            return found
    mutants = min(MUTANTS, max(2, max_examples // 16))
    subject = bench.subject(0)
    return _found(bench.variations[0].name, lambda: mutated_programs(subject, checks, bench.seed, mutants))


def _sampling(bench: Workbench) -> list[int]:
    """The first variation that samples, and the first one with another acceptance rule."""
    found: dict[str | None, int] = {}
    for number, variation in enumerate(bench.variations):
        spec = variation.loaded.spec
        if spec.accept.method == "rejection" and spec.sampling.temperature > 0.0:
            found.setdefault(spec.accept.rule, number)
    return list(found.values())


def mutated_programs(subject: Subject, checks: Checks, seed: int, count: int) -> None:
    """I20: code generated from a program with one node changed does what the interpreter does with that program."""
    if not checks.wants("I20"):
        return
    rng = Random(seed)
    for _ in range(count * 3):
        made = mutated(subject.final, rng)
        if made is None:
            continue
        program, step, text = made
        where = f"mutated program, {step}: {text}"
        try:
            _mutant(subject, checks, where, program)
        except CheckFailure:
            # A float32 module may have met a tie, or a sum that cancels: other weights would not.
            if not subject.single or all(_fails(subject.with_seed(seed + n), checks, where, program) for n in (1, 2)):
                raise
        count -= 1
        if count == 0:
            return


def _mutant(subject: Subject, checks: Checks, where: str, program: DecodeProgram) -> None:
    """The program in the interpreter, in the module's own type, and the module generated from it."""
    weights = program_weights(program.weights, subject.naive, subject.weights)
    if subject.single:
        weights = {name: narrowed(value, "cpu") for name, value in weights.items()}
    one = Interpreted("interpreter", program, weights, strict=True)
    try:
        made = subject.generate(program, "generated module")
    except DiagnosticError:
        return  # a target may refuse what the mutation has made
    _same_behaviour(subject, checks, where, one, replace(made, edge=False))


def _fails(subject: Subject, checks: Checks, where: str, program: DecodeProgram) -> bool:
    try:
        _mutant(subject, checks, where, program)
    except CheckFailure:
        return True
    return False


def _same_behaviour(subject: Subject, checks: Checks, where: str, one: Interpreted, other: Machine) -> None:
    """Both machines through a prompt and two steps. Ends early where the mutated program leaves the range of what its
    ops define: an index or an input out of range, a path that does not ascend, logits that are not finite, an operand
    that torch refuses."""
    states = [{**machine.start(len(PROMPTS)), "rng": torch.tensor([11, -12])} for machine in (one, other)]
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in PROMPTS])
    bag: dict[str, Tensor | None] = {"input_ids": ids, "lengths": torch.tensor([len(prompt) for prompt in PROMPTS])}
    drafts = as_bag(subject, planted(subject, [[*prompt, 3] for prompt in PROMPTS], 5, 99), 5)
    for step in ("prefill", *("draft", "verify", "accept", "commit") * 2):
        bag = {**bag, **drafts} if step == "verify" else bag
        if not _in_range(one.program, step, states[0], bag) or (step == "commit" and not _ascends(bag)):
            return
        live = ~states[0]["finished"] if step != "prefill" else torch.tensor([True, True])
        try:
            states[0], wanted = one.step(step, states[0], _narrow(bag) if subject.single else bag)
        except (*CRASHES, IndexRangeError):
            return
        wanted = widened(wanted) if subject.single else wanted
        try:
            states[1], got = other.step(step, states[1], bag)
        except CRASHES as failure:
            raise CheckFailure(Finding("I20", where, f"only the module raises, in {step}: {failure}")) from failure
        seen = [comparable(step, results, bag, live) for results in (got, wanted)]
        gap = mapping_difference(seen[0], seen[1], bound=subject.bound)
        names = [str(name) for name in ("length", "root_token", "finished", "remaining") if name in states[0]]
        control = [{name: state[name] for name in names} for state in states]
        defined = _finite(wanted)  # of numbers that are none, ops may make what they like: an argmax, say
        gap = gap or (mapping_difference(control[1], control[0]) if defined else None)
        checks.require(
            "I20", where, None if gap is None else f"{step}: the module differs from the interpreter in {gap}"
        )
        if not defined:
            return
        bag = {**bag, **wanted}


def _finite(results: Bag) -> bool:
    """Whether the logits, if there are any, are numbers: a mutated decay overflows, for example."""
    logits = results.get("logits")
    return logits is None or bool(logits.isfinite().all())


def _narrow(bag: Bag) -> Bag:
    """The inputs of a program in float32."""
    found = bag.items()
    return {name: value if value is None or value.dtype != torch.float64 else value.float() for name, value in found}


def _ascends(bag: Bag) -> bool:
    """Whether every accepted path ascends strictly from 0 (I1, I7): what moving rows within the cache relies on."""
    path, emitted = bag["path"], bag["emitted"]
    assert path is not None
    assert emitted is not None
    used = [row[:count] for row, count in zip(path.tolist(), emitted.tolist(), strict=True)]
    return all(not nodes or (nodes == sorted(set(nodes)) and nodes[0] == 0) for nodes in used)


def _in_range(program: DecodeProgram, step: str, state: State, bag: Bag) -> bool:
    """Whether every slot and input of the step holds what the program declares."""
    for port in input_ports(program.graphs[step]):
        kind, name = port.split(":", 1)
        value, bounds = (state if kind == "slot" else bag).get(name), program.ranges.get(port)
        if value is None or bounds is None or value.numel() == 0 or name == "lengths":
            continue
        if int(value.min()) < bounds.low or int(value.max()) > bounds.high:
            return False
    return True
