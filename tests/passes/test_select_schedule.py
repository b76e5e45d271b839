"""select-schedule: every schedule is the same decoder, the choice is reasoned, and prompts go in chunks."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Node

from specc.bench import tables
from specc.bench.results import RESULTS
from specc.bench.schedule_points import text_of
from specc.ir import ops
from specc.ir.edit import modules
from specc.ir.op import info
from specc.ir.printer import fingerprint
from specc.ir.verifier import verify
from specc.manager import PassContext, PassResult
from specc.passes.select_schedule import SelectSchedule
from specc.passes.select_schedule.cost import Case, estimate
from specc.passes.select_schedule.measured import H200, TIMES, Point, Sizes
from specc.passes.select_schedule.sites import sites
from specc.passes.select_schedule.tiles import SCHEDULES, chain_rows, likely_rows, verify_tiles
from specc.program import DecodeProgram
from tests.passes.recurrent_steps import Lockstep, any_steps, layer_major_program

STATES = ("factors", "replay", "snapshots")


@cache
def scheduled(target: str, draft: str, state: str, schedule: str) -> PassResult:
    before = layer_major_program(target, draft, state)
    made = SelectSchedule(schedule=schedule).run(before, PassContext())  # type: ignore[arg-type]
    verify(made.program, after="select-schedule")
    return made


def targets_in(program: DecodeProgram, step: str) -> list[str]:
    found = [(site.node, info(site.node.target)) for site in sites(program.graphs[step])]
    return [declared.name for _, declared in found if declared is not None]


def all_nodes(program: DecodeProgram, step: str) -> list[Node]:
    return [node for module in modules(program.graphs[step]) for node in module.graph.nodes]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("draft", ["tree", "chain"])
@pytest.mark.parametrize("target", ["delta", "hybrid"])
@given(data=st.data())
@settings(max_examples=2)
def test_steps_are_the_same_under_every_schedule(target: str, draft: str, schedule: str, data: st.DataObject) -> None:
    state = data.draw(st.sampled_from(STATES))
    before, after = layer_major_program(target, draft, state), scheduled(target, draft, state, schedule).program
    batch = data.draw(st.integers(1, 3))
    any_steps(Lockstep([before, after], target, batch, exact=False), data, batch, draft == "tree", steps=3)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("draft", ["tree", "chain"])
def test_every_op_of_verify_and_commit_has_the_schedule_and_its_form(draft: str, schedule: str) -> None:
    program = scheduled("hybrid", draft, "factors", schedule).program
    found = list(sites(program.graphs["verify"]))
    assert [site.node.target for site in found] == [ops.delta_rule_verify] * 1
    assert {site.argument("schedule") for site in found} == {schedule}
    committed = list(sites(program.graphs["commit"]))
    assert {site.argument("form") for site in committed} == {"rank_n" if schedule == "tree" else "steps"}
    assert {site.slot for site in committed} == {site.slot for site in found} == {"l0_state"}


def test_prompts_go_in_chunks_and_decode_in_single_steps() -> None:
    before, after = layer_major_program("delta", "tree"), scheduled("delta", "tree", "factors", "tree").program
    assert targets_in(before, "prefill") == ["delta_rule"]
    assert targets_in(after, "prefill") == []
    chunks = [node for node in all_nodes(after, "prefill") if node.target is ops.delta_rule_chunk]
    assert [node.args[6] for node in chunks] == [64]
    assert targets_in(after, "decode") == ["delta_rule"]


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_the_size_of_a_chunk_is_an_option_and_changes_nothing_else(chunk: int) -> None:
    before = layer_major_program("delta", "chain")
    after = SelectSchedule(chunk=chunk).run(before, PassContext()).program
    assert [node.args[6] for node in all_nodes(after, "prefill") if node.target is ops.delta_rule_chunk] == [chunk]
    lockstep = Lockstep([before, after], "delta", 2, exact=False)
    ids = torch.arange(14).reshape(2, 7)
    for lengths in ([7, 4], [0, 7], [1, 2]):
        lockstep.run("prefill", input_ids=ids, lengths=torch.tensor(lengths))
        lockstep.compare()


def test_a_second_run_changes_nothing() -> None:
    for draft in ("tree", "chain"):
        for schedule in ("auto", *SCHEDULES):
            once = scheduled("hybrid", draft, "factors", schedule)
            assert once.changed
            twice = SelectSchedule(schedule=schedule).run(once.program, PassContext())  # type: ignore[arg-type]
            assert not twice.changed
            assert fingerprint(twice.program) == fingerprint(once.program)
            assert [note.message for note in twice.notes] == [note.message for note in once.notes]


def test_another_schedule_replaces_one_that_was_chosen_before() -> None:
    once = scheduled("delta", "tree", "factors", "tree").program
    program = SelectSchedule(schedule="serial").run(once, PassContext()).program
    assert fingerprint(program) == fingerprint(scheduled("delta", "tree", "factors", "serial").program)


def test_a_program_without_recurrent_layers_stays_as_it_is() -> None:
    program = layer_major_program("delta", "tree")
    bare = program.with_graphs(verify=program.graphs["flush"])
    result = SelectSchedule().run(bare, PassContext())
    assert not result.changed
    assert [note.fired for note in result.notes] == [False]


def test_notes_have_a_number_for_each_schedule_and_say_what_decided() -> None:
    notes = scheduled("delta", "tree", "factors", "auto").notes
    assert [note.fired for note in notes].count(True) == 2
    assert "`state`: tree (least estimated time on cpu" in notes[0].message
    assert "not bit-identical" in notes[0].message
    for schedule, note in zip(SCHEDULES, notes[1:], strict=True):
        assert note.message.startswith(f"{schedule}: ")
        assert " us a layer" in note.message
        assert note.keys[0] == "verify.recurrence"
    asked = scheduled("delta", "tree", "factors", "serial").notes[0].message
    assert "serial (asked for); the bits of plain decoding" in asked


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_model_gives_back_what_was_measured(schedule: str) -> None:
    """Shapes of as many levels and nodes are one case to the tree form: it gives back their mean."""
    points = [point for point in H200 if point.schedule == schedule]
    assert points
    for point in points:
        found = estimate(point.schedule, case_at(point), "h200").microseconds
        assert found == pytest.approx(point.microseconds, rel=3e-3 if schedule == "tree" else 1e-3), point


def case_at(point: Point) -> Case:
    return Case(point.sizes, point.batch, point.parent_row, point.keep)


def by_case() -> dict[Case, dict[str, float]]:
    """Measured times of all schedules by case."""
    found: dict[Case, dict[str, float]] = {}
    for point in H200:
        found.setdefault(case_at(point), {})[point.schedule] = point.microseconds
    return {case: times for case, times in found.items() if len(times) == len(SCHEDULES)}


def taken(case: Case, points: tuple[Point, ...] = H200) -> str:
    return min(SCHEDULES, key=lambda schedule: estimate(schedule, case, "h200", points).microseconds)


def test_what_auto_takes_follows_the_measurements() -> None:
    def best(sizes: Sizes, batch: int, rows: list[int], keep: bool) -> str:
        return taken(Case(sizes, batch, tuple(rows), keep))

    gdn, tree = Sizes(8, 8, 256, 256), likely_rows(16, 6)
    assert best(gdn, 1, tree, False) == "tree"
    assert best(gdn, 32, tree, False) == "tree"
    # Node states must be written anyway: the sequential schedules have them in registers.
    assert best(gdn, 32, tree, True) in ("serial", "hybrid")
    assert best(gdn, 1, chain_rows(2), False) == "serial"


def test_auto_takes_the_fastest_wherever_all_were_measured() -> None:
    cases = by_case()
    assert len(cases) >= 36
    for case, times in cases.items():
        assert times[taken(case)] == min(times.values()), (case, times)


def test_auto_stays_near_the_fastest_where_it_was_not_measured() -> None:
    """Each shape left out in turn, in all its sizes: the others have to do, also beyond the least and the most."""
    for shape in {case.parent_row for case in by_case()}:
        others = tuple(point for point in H200 if point.parent_row != shape)
        for case, times in by_case().items():
            if case.parent_row == shape:
                bound = 1.25 if case.keep else 1.15
                assert times[taken(case, others)] <= bound * min(times.values()), (case, times)


def test_the_table_of_times_is_of_the_results_that_are_kept() -> None:
    kept = tables.read(RESULTS / "kernels_delta.json")
    assert text_of(kept) == TIMES.read_text(encoding="utf-8")


@given(nodes=st.integers(1, 40), depth=st.integers(0, 12))
def test_the_likely_tree_has_the_nodes_and_levels_asked_for(nodes: int, depth: int) -> None:
    if depth == 0 and nodes > 1:
        return
    rows = likely_rows(nodes, depth)
    assert len(rows) == nodes
    levels: list[int] = []
    for node, above in enumerate(rows):
        assert 0 <= above <= node
        levels.append(levels[above - 1] + 1 if above else 0)
    assert rows.count(0) == 1
    assert max(levels) == min(depth, nodes - 1)


@given(nodes=st.integers(1, 12), keep=st.booleans())
def test_in_a_chain_serial_and_hybrid_move_one_tile(nodes: int, keep: bool) -> None:
    rows = chain_rows(nodes)
    for schedule in ("serial", "hybrid", "tree"):
        tiles = verify_tiles(schedule, rows, keep)
        assert (tiles.read, tiles.written) == (1, nodes if keep else 0)
    assert torch.tensor(rows).tolist() == rows
