"""`specc check` finds planted faults, names the right invariant, shrinks, and prints what replays it.

Faults are edits of the generated module's text, or of the program after one pass; the subject is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.fx import GraphModule

from specc.check import Report, Workbench, replay, run
from specc.check.example import USUAL
from specc.check.machines import load_module
from specc.check.subject import Stage, Subject
from specc.ir.clone import clone
from specc.program import DecodeProgram
from specc.spec import LoadedSpec, load

SPECS = Path(__file__).resolve().parents[2] / "specs"
Edit = Callable[[str], str]
torch.set_num_threads(1)


def swap(old: str, new: str, least: int = 1) -> Edit:
    """Replace text that must be there."""

    def edit(source: str) -> str:
        assert source.count(old) >= least, f"the generated module has no {old!r}"
        return source.replace(old, new)

    return edit


def append(text: str) -> Edit:
    """Redefine a function at the end of the module."""
    return lambda source: source + "\n\n" + text


DESCENDING = """
def commit_path_(cache, path, start, count, fast_reorder):
    for row in range(cache.shape[0]):
        first = int(start[row])
        for place in reversed(range(int(count[row]))):
            cache[row, first + place] = cache[row, first + int(path[row, place])]
"""
UNORDERED_V = """
_committed = commit_path_
_calls = [0]


def commit_path_(cache, path, start, count, fast_reorder):
    _calls[0] += 1
    _committed(cache, path if _calls[0] % 2 else torch.arange(path.shape[1]).expand_as(path), start, count, False)
"""

FAULTS: dict[str, tuple[Edit, frozenset[str]]] = {
    "parents are not shifted": (
        swap("parent_row = parent + 1", "parent_row = parent.clamp(min=0)"),
        frozenset({"I20", "I23"}),
    ),
    "positions come from shifted parents": (swap("depth = path_length - 1", "depth = path_length"), frozenset({"I23"})),
    "one mask bit is dropped": (
        swap(
            "mask = ancestor_mask(parent_row, valid)", "mask = ancestor_mask(parent_row, valid); mask[:, 1, 0] = False"
        ),
        frozenset({"I20", "I23"}),
    ),
    "one mask bit too many": (
        swap(
            "mask = ancestor_mask(parent_row, valid)", "mask = ancestor_mask(parent_row, valid); mask[:, 1:, 1] = True"
        ),
        frozenset({"I17", "I20", "I23"}),
    ),
    "rows are compacted in descending order": (append(DESCENDING), frozenset({"I8", "I27", "I20"})),
    "K and V are compacted differently": (append(UNORDERED_V), frozenset({"I8", "I27", "I20"})),
    "the commit is one row short": (
        swap("pending_emitted=accepted.emitted,", "pending_emitted=accepted.emitted - 1,"),
        frozenset({"I8", "I27", "I20"}),
    ),
    "what is pending is not cleared": (
        swap("return state._replace(pending_emitted=nothing_pending), Verified", "return state, Verified"),
        frozenset({"I8", "I20", "I23", "I24", "I27"}),
    ),
    "stop tokens are ignored": (swap("all_emitted == 2)", "all_emitted == 99)"), frozenset({"I7", "I20"})),
    "padding nodes are accepted": (
        swap("drafted_valid = draft.valid.narrow", "drafted_valid = torch.ones_like(draft.valid).narrow"),
        frozenset({"I7", "I20"}),
    ),
    "the bonus comes from the root": (
        swap("target_argmax[batch_index(current), current.unsqueeze(1)],", "target_argmax[:, :1],"),
        frozenset({"I7", "I20"}),
    ),
    "the length advances by accept_length": (
        swap("new_length = state.length + accepted.emitted", "new_length = state.length + accepted.accept_length"),
        frozenset({"I9", "I8", "I20", "I27"}),
    ),
    "finished rows go on": (
        swap("live = torch.logical_and(logical_not, limit > 0)", "live = limit > 0"),
        frozenset({"I14", "I20"}),
    ),
    "the token limit is off by one": (
        swap("== limit.unsqueeze(1) - 1", "== limit.unsqueeze(1)"),
        frozenset({"I7", "I20", "I25"}),
    ),
}


def bench_of(name: str) -> Workbench:
    bench = Workbench.of(load(SPECS / f"{name}.yaml"), limit=1)
    assert bench.subject(0).generated
    return bench


@pytest.fixture(scope="module")
def loaded() -> LoadedSpec:
    return load(SPECS / "smollm2-dynamic-tree.yaml")


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return bench_of("smollm2-dynamic-tree")


@contextmanager
def planted(subject: Subject, edit: Edit) -> Iterator[None]:
    """The subject's module with its text edited."""
    good = subject.generated
    module = load_module(edit(subject.source), "specc_faulty")
    subject.__dict__["generated"] = replace(good, module=module, weights=module.Weights(*good.weights))
    try:
        yield
    finally:
        subject.__dict__["generated"] = good


def checked(
    loaded: LoadedSpec, bench: Workbench, examples: int = 60, *, shrink: bool = False, against: Sequence[str] = USUAL
) -> Report:
    return run(loaded, examples, bench=bench, shrink=shrink, judge=False, against=against)


def test_a_right_module_passes(loaded: LoadedSpec, bench: Workbench) -> None:
    report = checked(loaded, bench, 8)
    assert report.ok, report.as_text("spec")
    assert report.counts["I23"] > 0
    assert report.counts["I27"] > 0


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_the_module_is_found(fault: str, loaded: LoadedSpec, bench: Workbench) -> None:
    edit, ids = FAULTS[fault]
    with planted(bench.subject(0), edit):
        report = checked(loaded, bench)
    assert report.counterexample is not None, "not found"
    assert report.counterexample.finding.id in ids, report.as_text("spec")


def test_counterexample_is_small_and_replays(loaded: LoadedSpec, bench: Workbench) -> None:
    edit, _ = FAULTS["one mask bit too many"]
    with planted(bench.subject(0), edit):
        report = checked(loaded, bench, shrink=True)
        found = report.counterexample
        assert found is not None
        assert found.example is not None
        assert found.finding.tree is not None
        assert found.finding.tree.num_valid <= 4, report.as_text("spec")
        assert len(found.example.prompts) == 1
        text = report.as_text("specs/x.yaml", ["commit.update=deferred"])
        assert f"specc check specs/x.yaml --set commit.update=deferred --replay {found.example.token}" in text
        assert "0:" in text  # the tree is drawn
        with monkey_bench(bench):
            again = replay(loaded, found.example.token)
    assert again.counterexample is not None
    assert again.counterexample.finding.id == found.finding.id
    with monkey_bench(bench):
        assert replay(loaded, found.example.token).ok


@contextmanager
def monkey_bench(bench: Workbench) -> Iterator[None]:
    """Replays use this bench, so that nothing is compiled again."""
    patch = pytest.MonkeyPatch()
    patch.setattr(Workbench, "of", classmethod(lambda cls, *_args, **_options: bench))
    try:
        yield
    finally:
        patch.undo()


def edited(program: DecodeProgram, step: str, edit: Callable[[GraphModule], None]) -> DecodeProgram:
    module = clone(program.graphs[step])
    edit(module)
    module.recompile()
    return program.with_graphs(**{step: module})


def no_shift(module: GraphModule) -> None:
    """parent + 1 becomes parent + 0: the committed sentinel stays -1."""
    node = next(node for node in module.graph.nodes if node.name == "parent_row")
    node.args = (node.args[0], 0)


def shifted_depth(module: GraphModule) -> None:
    """Positions are off by one."""
    node = next(node for node in module.graph.nodes if node.name == "depth")
    node.args = (node.args[0], 0)


@pytest.mark.parametrize(
    ("after", "edit", "ids"),
    [
        ("insert-tree-masks", no_shift, {"I3", "I6"}),
        ("layer-major", shifted_depth, {"I4", "I18"}),
        ("canonicalize", shifted_depth, {"I4", "I18"}),
    ],
)
def test_fault_of_a_pass_is_found_and_the_pass_named(
    after: str, edit: Callable[[GraphModule], None], ids: set[str], loaded: LoadedSpec, bench: Workbench
) -> None:
    """Only the program after one pass is wrong: before/after execution must say which."""
    subject = bench.subject(0)
    good = list(subject.stages)
    wrong = [
        Stage(stage.name, edited(stage.program, "verify", edit)) if stage.name == after else stage for stage in good
    ]
    subject.__dict__["stages"] = wrong
    subject._machines.clear()
    try:
        report = checked(loaded, bench, against=["stages"])
    finally:
        subject.__dict__["stages"] = good
        subject._machines.clear()
    assert report.counterexample is not None
    assert report.counterexample.finding.id in ids, report.as_text("spec")
    assert after in report.counterexample.finding.where


def test_selection_leaves_other_invariants_alone(loaded: LoadedSpec, bench: Workbench) -> None:
    edit, _ = FAULTS["stop tokens are ignored"]
    with planted(bench.subject(0), edit):
        assert run(loaded, 20, ["I3", "mask-ancestors", "I24"], bench=bench, shrink=False).ok


@pytest.mark.slow
def test_acceptance_without_a_coin_is_found_by_the_law() -> None:
    loaded, bench = load(SPECS / "smollm2-rejection.yaml"), bench_of("smollm2-rejection")
    wrong = append(
        "_uniform = counter_uniform\n\n\ndef counter_uniform(*args):\n    return torch.zeros_like(_uniform(*args))\n"
    )
    with planted(bench.subject(0), wrong):
        report = run(loaded, 1, ["output-law"], bench=bench, shrink=False)
    assert report.counterexample is not None
    assert report.counterexample.finding.id == "I11"
    with planted(bench.subject(0), wrong):
        report = run(loaded, 30, ["path-valid"], bench=bench, shrink=False)
    assert report.counterexample is not None
    assert report.counterexample.finding.id == "I7"
