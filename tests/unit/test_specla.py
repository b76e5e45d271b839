"""SpecLA's evaluation on small models on the CPU: simulated decoding, its tables, its phases and its command."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.bench.evaluation.cells import Cell
from specc.bench.evaluation.store import Store
from specc.bench.specla import cells, main, paper, run, tables
from specc.bench.specla.cells import Setting
from specc.bench.specla.kernel_tables import kernel_tables
from specc.bench.specla.sensitivity import SHAPES, head_us, shape_rows, with_head
from specc.bench.specla.simulated import STEP
from specc.bench.specla.variants import ABLATIONS, GENERIC, LOOKUP_SPEC, READOUTS, SET_UP
from specc.report.results import results_of
from specc.spec import load
from tests.unit.specla_fixtures import TREE, bench, small_stand, turn, write_head

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled modules."""
    return tmp_path_factory.mktemp("sources")


def test_the_text_follows_from_its_last_token(sources: Path) -> None:
    stand = small_stand(sources)
    size = int(stand.module.VOCAB_SIZE)
    assert all(two == (one + STEP) % size for one, two in zip(stand.text, stand.text[1:], strict=False))
    assert len(set(stand.text)) > 30


@pytest.mark.parametrize(("p", "length"), [(0.0, 1.0), (1.0, 7.0)])
def test_the_oracle_is_taken_whole_and_wrong_drafts_are_not(sources: Path, p: float, length: float) -> None:
    stand = small_stand(sources)
    with torch.no_grad():
        found = stand.speculative(SHAPES[TREE].parent, p, 12)
    assert (found.acceptance_length, found.differences) == (length, 0)
    assert len(found.step_us) == 12
    assert found.us_per_token == pytest.approx(found.mean_us / length)


def test_a_bonus_that_is_not_the_texts_is_counted_and_replaced(sources: Path) -> None:
    stand = small_stand(sources)
    right = list(stand.text)
    try:
        stand.text[3] = (right[3] + 1) % int(stand.module.VOCAB_SIZE)
        with torch.no_grad():
            found = stand.speculative(SHAPES[TREE].parent, 0.0, 6)
        # The third step's bonus differs; so does the one after, since it follows the text's own token.
        assert found.differences == 2
    finally:
        stand.text[:] = right


def test_a_row_per_probability_and_the_cost_of_a_head(sources: Path) -> None:
    found = list(shape_rows(bench(sources), SHAPES[TREE]))
    assert [row["acceptance_length"] for row in found] == [1.0, 7.0]
    assert [row["expected_acceptance_length"] for row in found] == [1, 7.0]
    assert head_us(bench(sources), SHAPES[TREE])["nodes"] == 16


def sensitivity_rows() -> list[dict[str, Any]]:
    label = {"geometry": "gdn-1.3b", "shape": TREE, "kind": "simulated", "plain_us": 100.0, "step_us": 200.0}
    return [label | {"p": p, "acceptance_length": tau, "speed_up": tau / 2} for p, tau in ((0.0, 1.0), (1.0, 7.0))]


def test_a_drafts_time_adds_to_the_step() -> None:
    found = with_head(sensitivity_rows(), {TREE: {"draft_us": 150.0}})
    assert [row["speed_up_with_draft"] for row in found] == [0.286, 2.0]
    assert with_head(sensitivity_rows(), {}) == sensitivity_rows()
    made, curves = tables.sensitivity(sensitivity_rows(), {TREE: {"draft_us": 150.0}})
    points = {row["cost"]: row for row in made[0]["rows"]}
    assert points["draft free"]["break_even"] == pytest.approx(1 / 6, abs=1e-3)
    assert (points["draft free"]["oracle"], points["with a head's draft"]["oracle"]) == (3.5, 2.0)
    assert points["as reported"] == points["as reported"] | {"kind": "reported", "break_even": 0.7, "oracle": 3.71}
    assert [line["kind"] for line in curves[0]["series"]] == ["simulated", "simulated"]


def test_speed_ups_and_looping_turns() -> None:
    records = [turn("gsm8k/0", 101, 50, (1.0, 0.5)), turn("gsm8k/1", 201, 50, (2.0, 0.5), looping=True)]
    row = tables.decoding_row(records)
    assert (row["turns"], row["looping"], row["speed_up"], row["acceptance_length"]) == (2, 1, 3.0, 3.0)
    assert (row["straight_turns"], row["straight_speed_up"], row["straight_acceptance_length"]) == (1, 2.0, 2.0)
    assert (row["plain_us"], row["step_us"]) == (10_000, 10_000)
    found = tables.end_to_end({("gsm8k", "aligned"): records}, None)
    assert [(line["kind"], line["speed_up"]) for line in found["rows"]] == [("measured", 3.0), ("reported", 1.7)]


def test_kernels_stand_beside_the_papers_ranges() -> None:
    us = {"replay_leaf_by_leaf": 60.0, "hybrid": 18.0, "order": 2.0, "serial": 17.0, "tree": 10.0,
          "replay_leaf_parallel": 12.0}  # fmt: skip
    shape = {"shape": "s", "nodes": 16, "leaves": 4, "auto": "tree", "us": 18.0}
    shape |= {f"{name}_us": value for name, value in us.items()}
    recovery = [{"rows": 4, "form": form, "us": us} for form, us in (
        ("rank_n", 30.0), ("steps", 36.0), ("replay, one launch", 45.0), ("replay, a launch per layer and token", 300.0)
    )] + [{"form": "snapshot", "us": 25.0}]  # fmt: skip
    update = [{"kind": "deferred", "pending": 8, "window": 1, "us": 12.0, "verify_and_commit_us": 15.0}]
    states = [{"nodes": 16, "us": 20.0}]
    made = kernel_tables({"verify": [shape, shape | {"wrong": True}], "recovery": recovery, "update": update,
                          "states": states})  # fmt: skip
    verify, recovered, updated = (table["rows"] for table in made)
    assert (verify[0]["hybrid_gain"], verify[0]["best_gain"], len(verify)) == (3.0, 6.0, 2)
    assert (verify[1]["kind"], verify[1]["hybrid_gain"]) == ("reported", paper.HYBRID.text)
    assert (recovered[0]["gain"], recovered[0]["gain_many"], recovered[0]["snapshot_verify_us"]) == (1.5, 10.0, 240.0)
    assert (updated[0]["gain"], updated[1]["gain"]) == (1.25, "1.15x to 1.44x")
    results_of("specla", {"command": "c", "commit": "x", "device": "d", "tables": made})
    wrong = [row | {"wrong": True} for row in recovery[:2]]
    assert [row["kind"] for row in kernel_tables({"recovery": [*wrong, *recovery[2:]]})[0]["rows"]] == ["reported"]


@pytest.mark.parametrize("variant", ABLATIONS, ids=lambda one: one.name)
def test_every_variant_is_a_spec(variant: Any) -> None:
    spec = load(variant.spec, Setting("cpu", Path("cache"), overrides=("runtime.dtype=float64",)).overrides_of(variant))
    assert spec.spec.runtime.max_batch_size == 1
    assert spec.spec.runtime.dtype == "float64"  # the user's keys win
    assert variant is SET_UP or variant.change != "-"


def test_only_one_thing_changes_and_names_are_unique() -> None:
    assert len({one.name for one in ABLATIONS}) == len(ABLATIONS)
    own = load(SET_UP.spec).spec
    generic = load(GENERIC.spec, list(GENERIC.overrides)).spec
    readouts = load(READOUTS.spec, list(READOUTS.overrides)).spec
    assert generic.model_copy(update={"draft": own.draft}) == own
    assert readouts.draft.aux_features + generic.draft.aux_features == own.draft.aux_features
    assert {one.spec for one in ABLATIONS} == {SET_UP.spec, LOOKUP_SPEC}


def test_a_tuned_tree_is_one_more_ablation(tmp_path: Path) -> None:
    tuned = ("draft.num_speculative_tokens=7",)
    plan = run.Plan(Setting("cpu", tmp_path, tmp_path, {"aligned": tmp_path}), only="tuned", tuned=tuned)
    names = [(one.name, one.change) for one in evaluation(tmp_path, plan)._variants()]
    assert names == [("as shipped", "-"), ("the tree that was tuned", tuned[0])]


def evaluation(folder: Path, plan: run.Plan, deadline: float | None = None) -> run.Evaluation:
    return run.Evaluation(plan, Store(folder / "cells"), deadline, lambda _: None, lambda _: None)


def test_finished_cells_are_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def measured(inputs: cells.Inputs, places: cells.Places) -> dict[str, Any]:
        done.append(inputs["shape"])
        return {"rows": [row | {"shape": inputs["shape"]} for row in sensitivity_rows()]}

    monkeypatch.setattr(cells, "sensitivity_cell", measured)
    plan = run.Plan(Setting("cpu", tmp_path / "cache"), wanted=("sensitivity",))
    first = evaluation(tmp_path, plan).run()
    again = evaluation(tmp_path, plan).run()
    assert done == list(SHAPES)
    assert first.sensitivity == again.sensitivity
    assert again.left_out == ["decoding: needs --model, --draft-model and --data"]
    late = evaluation(tmp_path / "late", plan, time.monotonic()).run()
    assert late.not_reached == [f"sensitivity: {name}" for name in SHAPES]
    assert "Not reached: sensitivity: chain of 8" in late.told()


def test_parts_of_a_set_are_disjoint_and_spread(tmp_path: Path) -> None:
    setting = Setting("cpu", tmp_path, model=ROOT / "weights" / "gdn-15m", drafters={}, bound=0.25)
    talks = [{"name": f"{kind}/{number}"} for number in range(80) for kind in ("gsm8k", "humaneval", "mt-bench")]
    found = cells.decode_cells(setting, SET_UP, "mixed", talks, 40)
    names = [[talk["name"] for talk in cell.inputs["conversations"]] for cell in found]
    assert [len(part) for part in names] == [40] * 6
    assert sorted(name for part in names for name in part) == sorted(talk["name"] for talk in talks)
    for part in names:
        for kind in ("gsm8k", "humaneval", "mt-bench"):
            numbers = [int(name.rpartition("/")[2]) for name in part if name.startswith(kind)]
            assert len(numbers) in (13, 14)
            assert min(numbers) < 12
            assert max(numbers) > 67
    assert {cell.inputs["bound"] for cell in found} == {0.25}
    assert len({cell.key for cell in found}) == 6
    assert isinstance(found[0], Cell)
    other = next(one for one in ABLATIONS if one.other_type)
    assert cells.decode_cells(setting, other, "mixed", talks, 400)[0].inputs["bound"] is None
    assert not setting.has(other)
    assert Setting("cuda", tmp_path, ROOT, {"aligned": ROOT}).has(other)


@given(st.integers(0, 300))
@settings(max_examples=30, deadline=None)
def test_a_spread_order_has_every_item_once(size: int) -> None:
    assert sorted(cells.spread_order(range(size))) == list(range(size))


def test_what_is_not_lossless_fails_the_run() -> None:
    found = run.Found()
    assert not main.bad(found)
    found.records["gsm8k", "aligned"] = [turn("gsm8k/0", 10, 5, (1.0, 1.0)) | {"differences": [{"allowed": True}]}]
    assert not main.bad(found)
    found.records["gsm8k", "aligned"][0]["differences"].append({"allowed": False})
    assert main.bad(found)
    assert main.bad(run.Found(failed=["a cell: because"]))


@pytest.mark.slow
def test_the_command_decodes_with_an_untrained_head_and_nothing_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = write_head(tmp_path / "head", SET_UP.spec)
    data = tmp_path / "data" / "gsm8k"
    data.mkdir(parents=True)
    (data / "test.jsonl").write_text('{"question": "What is 2 + 2?", "answer": "-"}\n', encoding="utf-8")
    plan = run.Plan(
        Setting("cpu", tmp_path / "cache", ROOT / "weights" / "gdn-15m", {"aligned": head}, max_new_tokens=5),
        data.parent, 1, wanted=("decoding",),
    )  # fmt: skip
    made = evaluation(tmp_path, plan)
    made.sets = {"gsm8k": run.prepared(run.prompt_set("gsm8k", data.parent, 1), ROOT / "weights" / "gdn-15m", tmp_path)}
    made.sets |= {name: [] for name in ("mixed", "humaneval")}
    for phase in made.phases():
        phase()
    (record,) = made.found.records["gsm8k", "aligned"]
    assert record["differences"] == []
    assert record["speculative"]["tokens"] == record["plain"]["tokens"]
    result = {"command": "c", "commit": "x", "device": "d", **made.found.as_json()}
    assert results_of("specla", json.loads(json.dumps(result))).tables[0].rows[0]["kind"] == "measured"
    assert capsys.readouterr().out == ""


def test_drawn_drafts_are_the_same_for_a_seed(sources: Path) -> None:
    stand = small_stand(sources)
    with torch.no_grad():
        runs = [stand.speculative(SHAPES[TREE].parent, 0.5, 10, seed=5) for _ in range(2)]
    assert runs[0].tokens == runs[1].tokens
