"""`specc bench traffic`: the model's bytes are those counted while the interpreter runs, by schedule and commit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.bench.traffic import COMMITS, commit_moves, main, period_of, setting_of, table, verify_moves
from specc.check.machines import Interpreted
from specc.check.weights import program_weights
from specc.diagnostics import DiagnosticError
from specc.ir.interpreter import Event
from specc.ir.traffic import Recorder, recording, snapshot_commit
from specc.manager import Pass, PassContext, Pipeline
from specc.passes.canonicalize import Canonicalize
from specc.passes.cse import CommonSubexpressions
from specc.passes.dce import DeadCode
from specc.passes.fuse_deferred_state_update import FuseDeferredStateUpdate
from specc.passes.plan_buffers import PlanBuffers
from specc.passes.select_schedule import SelectSchedule
from specc.passes.select_schedule.tiles import SCHEDULES, Tiles
from specc.program import DecodeProgram
from specc.spec import load
from tests.passes.recurrent_steps import layer_major_program, random_path, random_tree, weights_of

WINDOW = 4
SPECS = Path(__file__).resolve().parents[2] / "specs"


@cache
def program(target: str, draft: str, commit: str, schedule: str) -> DecodeProgram:
    state = commit if commit in ("snapshots", "replay") else "factors"
    passes: list[Pass] = [Canonicalize(), CommonSubexpressions(), DeadCode()]
    if commit in ("deferred", "windowed"):
        passes.insert(0, FuseDeferredStateUpdate(window=WINDOW if commit == "windowed" else 0))
    passes += [SelectSchedule(schedule=schedule), PlanBuffers()]  # type: ignore[arg-type]
    before = layer_major_program(target, draft, state)
    return Pipeline(tuple(passes)).run(before, PassContext(verify=False)).program


def gathered_states(event: Event) -> None:
    """Counts the gather of node states [B,N,HV,V,K] that a commit from snapshots is."""
    if event.node.target is torch.ops.aten.index.Tensor and event.args[0].dim() == 5:
        snapshot_commit(event.value)


def counted(
    machine: Interpreted, step: str, state: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]
) -> Recorder:
    with recording() as recorder:
        updates, _ = machine.step(step, state, inputs)
    state.update(updates)
    return recorder


def expect(recorder: Recorder, tiles: Tiles, made: DecodeProgram, where: str) -> None:
    states = [slot for name, slot in made.slots.items() if name.endswith("state")]
    layer = sum(slot.shape[0] for slot in states) * 8 * states[0].shape[2] * states[0].shape[3] * states[0].shape[4]
    assert recorder.total("read") == tiles.read * layer, where
    assert recorder.total("write") == tiles.written * layer, where


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@settings(max_examples=2)
def test_the_model_equals_what_the_interpreter_moves(schedule: str, commit: str, data: st.DataObject) -> None:
    target, draft = (
        data.draw(st.sampled_from(["delta", "hybrid"])),
        data.draw(st.sampled_from(["tree", "tree", "chain"])),
    )
    made = program(target, draft, commit, schedule)
    naive, logical = layer_major_program(target, "chain"), weights_of(target)
    hooks = (gathered_states,)
    machine = Interpreted("program", made, program_weights(made.weights, naive, logical), hooks=hooks)
    batch, nodes, longest = data.draw(st.integers(1, 3)), made.attributes["nodes"], made.attributes["max_path"]
    state = machine.start(batch)
    pending = [0] * batch
    for _ in range(4):
        drawn = random_tree(data, batch, nodes)
        parents, valid = drawn["parent"], drawn["valid"]
        if draft == "chain":
            parents, valid = torch.arange(-1, nodes - 1).expand(batch, -1), torch.ones(batch, nodes, dtype=torch.bool)
            drawn = {"tokens": drawn["tokens"]}
        rows = (torch.where(valid, parents, -1) + 1).tolist()
        moved = verify_moves(schedule, commit, rows, pending, WINDOW)  # type: ignore[arg-type]
        expect(counted(machine, "verify", state, drawn), moved, made, "verify")
        path = random_path(data, parents.tolist(), valid.tolist(), longest)
        emitted = path["emitted"].tolist()
        expect(counted(machine, "commit", state, path), commit_moves(commit, emitted, longest), made, "commit")  # type: ignore[arg-type]
        pending = [0 if commit != "windowed" or count >= WINDOW else count for count in pending]
        if commit in ("deferred", "windowed"):
            pending = [count + more for count, more in zip(pending, emitted, strict=True)]


def test_the_table_has_every_schedule_with_every_commit(capsys: pytest.CaptureFixture[str]) -> None:
    path = SPECS / "gdn-1b3-specla.yaml"
    assert main([str(path), "--batch", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(row["schedule"], row["commit"]) for row in found["rows"]} == {(s, c) for s in SCHEDULES for c in COMMITS}
    tile = 2 * 2**20
    by_name = {(row["schedule"], row["commit"]): row for row in found["rows"]}
    assert by_name["tree", "deferred"]["state"] == 2 * 2 * tile
    assert by_name["tree", "factors"]["state"] == 2 * 3 * tile
    assert by_name["tree", "snapshots"]["verify_written"] == 2 * len(found["setting"]["schedule_rows"]) * tile
    assert main([str(path)]) == 0
    text = capsys.readouterr().out
    assert "tree      deferred" in text
    assert "MiB" in text


def test_a_window_writes_the_state_once_per_period() -> None:
    spec = load(SPECS / "gdn-1b3-specla.yaml").spec
    setting = setting_of(spec, 1, 3, 10, 8)
    rows = {(row.schedule, row.commit): row for row in table(spec, setting)}
    assert period_of("windowed", setting) == 3
    assert rows["tree", "windowed"].verify_written == rows["tree", "deferred"].verify_written / 3
    assert rows["tree", "windowed"].verify_read == rows["tree", "deferred"].verify_read


def test_a_target_without_states_is_refused_with_a_code() -> None:
    with pytest.raises(DiagnosticError) as caught:
        main([str(SPECS / "smollm2-plain.yaml")])
    assert [item.code for item in caught.value.diagnostics] == ["SPC291"]


@pytest.mark.parametrize("words", ["--batch 0", "--emitted 0", "--emitted 7", "--context -1", "--window 0"])
def test_numbers_out_of_range_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([str(SPECS / "gdn-15m-tree.yaml"), *words.split()])
    assert left.value.code == 2
    assert words.split()[0] in capsys.readouterr().err
