"""The last word: trees that look good are run on prompts that nothing was chosen by, and the fastest one is taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from specc.runtime.generate import BatchResult, Request, decode_batch
from specc.runtime.metrics import Metrics, run_metrics
from specc.runtime.module import DecoderLike
from specc.tune.choose import Choice
from specc.tune.report import Checked, Findings
from specc.tune.timing import time_steps
from specc.tune.variants import Tree

PASSES = 3
"""So often each tree decodes the prompts, in turn; the least time counts, for disturbances of a machine add time."""
FEWEST_STEPS = 50
"""Steps of a tree on these prompts, below which its speed there decides nothing."""
TIMED = 2
"""So many of the trees whose steps were timed are run too: they are built already."""
POINT_SECONDS = 0.5


def finalists(findings: Findings, timed: Sequence[Choice]) -> list[Choice]:
    """The tree that the model expects to be the fastest, the source's, the best by their own times of those that were
    timed, and the best of the other kinds; each once."""
    rates = {point.tree: 1 / point.seconds for point in findings.model.points}
    own = sorted(timed, key=lambda choice: -choice.replay.acceptance_length * rates[choice.tree])
    others = [choice for kind, choice in findings.best.items() if kind != findings.chosen.tree.kind]
    wanted: list[Choice] = []
    for choice in (findings.chosen, findings.before, *own[:TIMED], *others):
        if all(choice.tree != other.tree for other in wanted):
            wanted.append(choice)
    return wanted


def check(
    decoder_of: Callable[[Tree], DecoderLike],
    choices: Sequence[Choice],
    requests: Sequence[Request],
    new_tokens: int,
    seed: int,
    seconds: float,
    say: Callable[[str], None],
) -> list[Checked]:
    """The trees run on the same prompts: as many as the first of them decodes in its part of the seconds, which begin
    when all are built. A pass that has begun is ended, so that all trees have made as many."""
    found: dict[Tree, Metrics] = {}
    decoders = [(choice, decoder_of(choice.tree)) for choice in choices]
    points = [time_steps(decoder, [requests[0].ids], choice.tree, POINT_SECONDS) for choice, decoder in decoders]
    began = time.monotonic()
    for number in range(PASSES):
        if number and time.monotonic() > began + seconds:
            break
        for place, (choice, decoder) in enumerate(decoders):
            part = None if number or place else began + seconds / len(choices)
            made: list[BatchResult] = []
            for request in requests:
                if made and part is not None and time.monotonic() > part:
                    break
                made.append(decode_batch(decoder, [request], new_tokens, seed=seed))
            requests = requests[: len(made)]
            metrics = run_metrics(made)
            if choice.tree not in found or metrics.seconds < found[choice.tree].seconds:
                found[choice.tree] = metrics
    checked = []
    for (choice, _), point in zip(decoders, points, strict=True):
        metrics = found[choice.tree]
        checked.append(Checked(choice, metrics.acceptance_length, metrics.steps, metrics.tokens_per_second, point))
        say(f"checked {choice.tree.label}: acceptance_length {metrics.acceptance_length:.3f}")
    return checked


def decided(findings: Findings, checked: Sequence[Checked]) -> Findings:
    """The findings with the fastest of the checked trees, if these made enough steps; notes say what became of the
    tree that was expected to be the fastest."""
    rates = ", ".join(f"{one.choice.tree.label} {one.tokens_per_second:.0f}" for one in checked)
    found = replace(findings, checked=tuple(checked))
    if len(checked) < 2:
        return found
    if min(one.steps for one in checked) < FEWEST_STEPS:
        note = f"too few steps to decide by the run on other prompts (tokens/s: {rates})"
        return replace(found, notes=(*found.notes, note))
    best = max(checked, key=lambda one: one.tokens_per_second)
    notes = [f"chosen by tokens/s on other prompts: {rates}"]
    if best.choice.tree == findings.before.tree:
        notes.append("the tree that the source had is kept: none was faster there")
    elif best.choice.tree != findings.chosen.tree:
        notes.append(f"expected to be the fastest, and not so there: {findings.chosen.tree.label}")
    margins = found.margins if best.choice.tree == findings.chosen.tree else ()  # they are of the one, not of the other
    return replace(found, chosen=best.choice, margins=margins, notes=(*found.notes, *notes))
