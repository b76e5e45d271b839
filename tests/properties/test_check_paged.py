"""`specc check` of specs with paged caches: they hold, I10 is tested, and faults of pages are found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specc.check import Workbench, run
from specc.spec import LoadedSpec, load
from tests.properties.test_check_finds_faults import Edit, append, planted, swap

SPECS = Path(__file__).resolve().parents[2] / "specs"
PAGED = ["runtime.kv_layout=paged"]
torch.set_num_threads(1)

SHARED = """
_taken = take_pages_


def take_pages_(block_table, page_owner, length, count, rows, page):
    _taken(block_table, page_owner, length, count, rows, page)
    if len(block_table) > 1 and block_table[1, 0] > 0:
        block_table[1, 0] = block_table[0, 0]
"""
LEFT = """
def release(state, row):
    state.block_table[row] = 0
"""
FAULTS: dict[str, tuple[Edit, frozenset[str]]] = {
    "a page goes to two rows": (append(SHARED), frozenset({"I10"})),
    "a page that is taken has no owner": (
        swap("page_owner.index_fill_(0, free, row + 1)", "page_owner.index_fill_(0, free, 0)"),
        frozenset({"I10"}),
    ),
    "a reset row's pages are not given back": (append(LEFT), frozenset({"I10"})),
    "pages for one row less than is appended": (
        swap("torch.div(wanted + page - 1,", "torch.div(wanted + page - 2,"),
        frozenset({"I10", "I20", "I22", "I23", "I27"}),
    ),
    "rows are written to the page behind theirs": (
        swap("rows[row, :kept]", "rows[row, :kept].flip(0)"),
        frozenset({"I8", "I20", "I22", "I23", "I27"}),
    ),
    "a committed row is taken from the first page": (
        swap("row, source, pool.shape[1])", "row, source % pool.shape[1], pool.shape[1])"),
        frozenset({"I8", "I20", "I23", "I27"}),
    ),
    "a row is read through another row's table": (
        swap("pool[blocks.long()]", "pool[blocks.roll(1, 0).long()]"),
        frozenset({"I14", "I20", "I22", "I23"}),
    ),
    "a row is brought back without its last page": (
        swap(
            "for name, pool in pools(state):\n            pool.index_copy_(",
            "for name, pool in ():\n            pool.index_copy_(",
        ),
        frozenset({"I21"}),
    ),
}


@pytest.fixture(scope="module")
def loaded() -> LoadedSpec:
    return load(SPECS / "smollm2-prompt-lookup-tree.yaml", PAGED)


@pytest.fixture(scope="module")
def bench(loaded: LoadedSpec) -> Workbench:
    return Workbench.of(loaded, limit=1)


def test_a_paged_spec_holds(loaded: LoadedSpec, bench: Workbench) -> None:
    """Pages of a few rows, so that every text has several; every pass is compared, this one too."""
    assert bench.variations[0].loaded.spec.runtime.kv_block_size == 5
    report = run(loaded, 20, bench=bench)
    assert report.ok, report.as_text("spec")
    assert report.passes["page-caches"] > 0
    assert report.counts["I10"] > 0
    assert "I10 paged-blocks       integer      not applicable" not in report.as_text("spec")


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_pages_is_found(fault: str, loaded: LoadedSpec, bench: Workbench) -> None:
    edit, ids = FAULTS[fault]
    with planted(bench.subject(0), edit):
        report = run(loaded, 60, bench=bench, shrink=False, judge=False)
    assert report.counterexample is not None, "not found"
    assert report.counterexample.finding.id in ids, report.as_text("spec")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["smollm2-plain", "qwen3-dynamic-tree", "smollm2-eagle", "smollm2-rejection", "qwen3-next-hybrid"]
)
def test_paged_specs_of_other_kinds_hold(name: str) -> None:
    """Plain decoding, drafters with caches of their own, a law, recurrent layers beside attention."""
    paged = load(SPECS / f"{name}.yaml", PAGED)
    report = run(paged, 12, bench=Workbench.of(paged, limit=2))
    assert report.ok, report.as_text(name)
    assert report.counts["I10"] > 0
