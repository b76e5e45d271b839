"""`specc check` finds faults planted in a generated module with recurrent state, and names a fitting invariant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specc.check import Report, Workbench, run
from specc.check.machines import load_module
from specc.check.subject import Subject
from specc.spec import LoadedSpec, load

SPECS = Path(__file__).resolve().parents[2] / "specs"
torch.set_num_threads(1)
STATES = frozenset({"I16", "I20", "I23"})
LATER = frozenset({"I16", "I19", "I20", "I21", "I22", "I23", "I24", "I27"})

FAULTS: dict[str, tuple[str, str, frozenset[str]]] = {
    "parents of the convolution are not shifted": (
        "parent_row_2 = parent_or_committed + 1",
        "parent_row_2 = parent_or_committed.clamp(min=0)",
        STATES | {"I27"},
    ),
    "beta of the root for all": ("beta = sigmoid(b)", "beta = sigmoid(b)[:, :1].expand_as(b)", LATER),
    "the mask lets the last node in": (
        "mask = ancestor_mask(parent_row, valid)",
        "mask = ancestor_mask(parent_row, valid); mask[:, 2:, 1] = True",
        STATES | {"I17"},
    ),
    "the mask is applied after exp": (
        'ratio = ratio.masked_fill(~shown, float("-inf")).exp()',
        "ratio = ratio.exp() * shown",
        STATES,
    ),
    "factors of the root": (
        "state.g_factor[layer_2][batch_rows, accepted.path]",
        "state.g_factor[layer_2][batch_rows, 0 * accepted.path]",
        LATER,
    ),
    "a step overwrites what is pending": ("clamp_max(2)", "clamp_max(0)", LATER),
    "what is folded stays pending": (
        "still_pending = torch.where(window_full, nothing_pending,",
        "still_pending = torch.where(window_full, state.pending_factors,",
        LATER,
    ),
    "the convolution's window is one short": (
        "torch.cat((window, rows[batch, path]), dim=1), count, window.shape[1]",
        "torch.cat((window, rows[batch, path]), dim=1), (count - 1).clamp(min=0), window.shape[1]",
        LATER,
    ),
    "flush keeps the count": (
        "    return state._replace(pending_factors=nothing_pending)\n",
        "    return state\n",
        LATER,
    ),
    "a plain step on an unfolded state": ("state = flush(state)\n    return run_decode", "return run_decode", LATER),
}


@pytest.fixture(scope="module")
def loaded() -> LoadedSpec:
    return load(SPECS / "gdn-15m-tree.yaml", ["verify.recurrence=tree", "commit.window=3"])


@pytest.fixture(scope="module")
def bench(loaded: LoadedSpec) -> Workbench:
    made = Workbench.of(loaded, limit=1)
    assert made.subject(0).generated
    return made


@contextmanager
def planted(subject: Subject, old: str, new: str) -> Iterator[None]:
    """The subject's module with a text replaced, which must be there."""
    good = subject.generated
    assert old in subject.source, f"the generated module has no {old!r}"
    module = load_module(subject.source.replace(old, new), "specc_faulty_recurrent")
    subject.__dict__["generated"] = replace(good, module=module, weights=module.Weights(*good.weights))
    try:
        yield
    finally:
        subject.__dict__["generated"] = good


def checked(loaded: LoadedSpec, bench: Workbench, examples: int = 60) -> Report:
    against = ("oracle", "naive", "twins")
    return run(loaded, examples, bench=bench, shrink=False, judge=False, against=against, once=False)


def test_a_right_module_passes(loaded: LoadedSpec, bench: Workbench) -> None:
    report = checked(loaded, bench, 10)
    assert report.ok, report.as_text("spec")
    assert report.counts["I16"] > 0
    assert report.exercise["windowed"]["steps"] > 0


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_the_module_is_found(fault: str, loaded: LoadedSpec, bench: Workbench) -> None:
    old, new, ids = FAULTS[fault]
    with planted(bench.subject(0), old, new):
        report = checked(loaded, bench)
    assert report.counterexample is not None, "not found"
    assert report.counterexample.finding.id in ids, report.as_text("spec")
