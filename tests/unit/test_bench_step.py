"""What `specc bench step` does around its measurements, on small models with the reference backend on the CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.bench import step as bench
from specc.bench.gpu_timing import RATE, Report
from specc.bench.step_cases import BETWEEN, CASES, DRAWN_APART, floor_of, full_tree, prompt_of
from specc.bench.step_stand import Launches, Stand, brought_up, host_row
from specc.driver import compile_spec
from specc.runtime.module import import_source
from tests.unit.bench_fixtures import Small


def stand_of(name: str, batch: int = 2) -> Stand:
    case = Small(name, "", 20, 64)
    loaded = case.loaded(batch)
    module = import_source(compile_spec(loaded, "reference", verify=False).source, f"specc_bench_{name}_{batch}")
    return brought_up(case, loaded, module, batch, "cpu")


@pytest.mark.parametrize("name", ["llama", "gdn"])
def test_every_form_runs_and_planted_drafts_are_taken(name: str) -> None:
    stand = stand_of(name)
    with torch.no_grad():
        stand.plant()
        before = [kept for _, kept in stand.moving()]
        stand.verify()
        stand.accept()
        assert stand.accepted.accept_length.tolist() == [3, 3]
        stand.make_draft()
        assert stand.drafted.valid.sum(1).min() > 1  # the prompts repeat their ends
        length = stand.state.length.clone()
        stand.commit()
        assert (stand.state.length - length).tolist() == [4, 4]
        for (slot, _), kept in zip(stand.moving(), before, strict=True):
            slot.copy_(kept)
        assert torch.equal(stand.state.length, length)
        stand.plain()
        assert (stand.state.length - length).tolist() == [1, 1]
        stand.step()
        assert (stand.state.length - length).min() >= 2


@pytest.mark.parametrize("page", [4, 16])
def test_a_case_in_pages_steps_as_the_contiguous_one(page: int) -> None:
    steps = []
    for rows in (0, page):
        case = Small("llama", "", 20, 64, page=rows)
        loaded = case.loaded(2)
        source = compile_spec(loaded, "reference", verify=False).source
        stand = brought_up(case, loaded, import_source(source, f"specc_bench_pages_{rows}"), 2, "cpu")
        assert ("block_table" in stand.state._fields) is (rows > 0)
        with torch.no_grad():
            stand.plant()
            moving = stand.moving()
            stand.verify()
            logits = stand.verified.logits.clone()
            stand.accept()
            stand.commit()
            stand.plain()
            after = stand.state.length.tolist(), stand.state.root_token.tolist()
            for slot, kept in moving:
                slot.copy_(kept)
            stand.step()
        steps.append((logits, after, stand.state.length.tolist()))
    assert torch.equal(steps[0][0], steps[1][0])
    assert steps[0][1:] == steps[1][1:]
    runtime = CASES["smollm2-paged-64"].loaded(1).spec.runtime
    assert (runtime.kv_layout, runtime.kv_block_size) == ("paged", 64)


@pytest.mark.parametrize("name", sorted(CASES))
def test_forms_find_what_the_ones_before_them_made(name: str) -> None:
    forms = CASES[name].forms
    for form, earlier in (("accept", "verify"), ("commit", "accept")):
        assert form not in forms or earlier in forms[: forms.index(form)]


@pytest.mark.parametrize("speculative", [False, True])
def test_the_decoder_from_the_host_counts_its_steps(speculative: bool) -> None:
    row = host_row(stand_of("llama"), speculative, steps=4)
    assert row["us"] > 0
    assert row["alone_us"] > 0
    per_step = row["tokens_per_row_step"]
    assert (1 < per_step <= 8) if speculative else per_step == 1
    # What two rows get in a step, by the time that the step takes.
    assert row["tokens_per_second"] == pytest.approx(2 * per_step / row["us"] * 1e6, rel=1e-2)


def test_products_beside_a_module_have_its_types() -> None:
    """gdn-15m is measured in float32, the others in bfloat16."""
    matrices = [torch.ones(3, 4), torch.ones(5, 4, dtype=torch.bfloat16), torch.ones(2, 6)]
    made = bench.activations(matrices, 7)
    for matrix in matrices:
        assert torch.mm(made[matrix.shape[1], matrix.dtype], matrix.T).shape == (7, len(matrix))
    assert len(made) == 3


def test_a_case_with_a_head_draws_its_weights_and_drafts() -> None:
    case = replace(CASES["gdn-15m-eagle"], context=12, capacity=48)
    loaded = case.loaded(1)
    module = import_source(compile_spec(loaded, "reference", verify=False).source, "specc_bench_head")
    stand = brought_up(case, loaded, module, 1, "cpu")
    with torch.no_grad():
        stand.plant()
        stand.make_draft()
        assert stand.drafted.valid.all()
        stand.step()
    assert stand.weights.draft_fc.shape == (256, 6 * 256)  # three layers, a hidden state and a readout of each
    assert (stand.state.length > 12).all()


@pytest.mark.parametrize("name", ["llama", "gdn"])
def test_the_check_compares_with_float64_and_fails_where_weights_differ(name: str) -> None:
    stand = stand_of(name)
    row = bench.check_row(stand, device="cpu")
    assert not row["wrong"]
    assert set(row["errors"]) == {"plain", "verify"}
    assert max(row["errors"].values()) < 1e-4
    last = stand.weights.down_proj[-1]
    last.copy_(torch.randn_like(last))
    assert bench.check_row(stand, device="cpu")["wrong"]


def test_floors_are_those_of_the_design() -> None:
    found = {name: floor_of(case.loaded(1).spec, 1, case.context) for name, case in CASES.items()}
    assert found["gdn-1.3b"].weights / RATE == pytest.approx(651e-6, rel=2e-3)
    assert found["gdn-1.3b"].state / RATE == pytest.approx(24e-6, rel=3e-2)
    assert found["llama-3.2-1b"].weights / RATE == pytest.approx(575e-6, rel=2e-3)
    assert found["llama-3.2-1b"].kv == 16 * 2 * 8 * 64 * 4096 * 2
    assert found["smollm2"].weights / RATE == pytest.approx(63e-6, rel=1e-2)
    eight = floor_of(CASES["gdn-1.3b"].loaded(8).spec, 8, 512)
    assert (eight.weights, eight.state) == (found["gdn-1.3b"].weights, 8 * found["gdn-1.3b"].state)


@given(st.sampled_from(sorted(CASES)), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_trees_are_full_legal_and_as_deep_as_the_spec(name: str, seed: int) -> None:
    spec = CASES[name].loaded(1).spec
    tree = full_tree(spec, 5, Random(seed))
    level = [0]
    for node in range(1, tree.num_nodes):
        assert 0 <= tree.parent[node] < node
        level.append(level[tree.parent[node]] + 1)
    assert (tree.num_nodes, tree.num_valid, max(level)) == (spec.num_nodes, spec.num_nodes, spec.depth)


@given(st.integers(8, 300), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_prompts_have_their_length_and_repeat_their_end(length: int, seed: int) -> None:
    prompt = prompt_of(CASES["smollm2"].loaded(1).spec, length, seed)
    assert len(prompt) == length
    text = ",".join(map(str, prompt))
    assert length < 20 or text.count(",".join(map(str, prompt[-3:]))) > 1


def test_bars_are_judged_at_one_row_only() -> None:
    stand = stand_of("gdn", 1)
    rows = [{"form": "plain", "us": 10.0}, {"form": "verify", "us": 13.0}]
    stand.case = Small("gdn", "", 20, 64, plain_bar=1.6, verify_bar=1.2)
    plain, verify = bench.judged(rows, stand)
    assert (plain["met"], verify["met"], verify["ratio"]) == (False, False, 1.3)
    floor = floor_of(stand.loaded.spec, 1, 20).us
    assert next(bench.judged([{"form": "plain", "us": 1.5 * floor}], stand))["met"]
    stand.prompts = stand.prompts * 2
    assert not [row for row in bench.judged(rows, stand) if "met" in row]


def test_what_stands_between_verifications_is_judged_without_a_drafters_network() -> None:
    seen = Launches(6, 30.0, {"row_argmax": [1, 3.0], "fused_old_length_kernel": [2, 9.0], "linear": [3, 18.0]})
    assert seen.without(("linear", "attention")) == {"own_launches": 3, "own_us": 12.0}
    assert seen.without(("attention",)) == {}
    greedy, sampled = CASES["smollm2"].loaded(1).spec, CASES["smollm2-true-q"].loaded(1).spec
    assert (greedy.num_nodes, sampled.num_nodes, sampled.sampling.top_p) == (16, 16, 1.0)
    row = {"form": BETWEEN, "us": 14.0, "launches": 5}
    assert not bench.between_bar(row, greedy)["met"]
    assert bench.between_bar(row | {"own_us": 13.0, "own_launches": 4}, greedy)["met"]
    assert not bench.between_bar(row | {"launches": 4, "us": 15.5}, greedy)["met"]
    assert bench.between_bar(row | {"us": 39.0}, sampled)["met"]
    assert not bench.between_bar(row | {"us": 41.0}, sampled)["met"]


def test_drawing_that_was_measured_alone_is_what_the_bar_is_for() -> None:
    case = replace(CASES["smollm2-true-q"], context=12, capacity=64)
    stand: Any = SimpleNamespace(case=case, loaded=case.loaded(1), batch=1)
    whole = {"form": BETWEEN, "us": 347.0, "launches": 93, "own_us": 164.0, "own_launches": 28}
    drawing = {"form": DRAWN_APART[1], "us": 39.0, "launches": 20}
    found = list(bench.judged([whole, drawing], stand))
    assert [(row["us"], row["launches"], row["met"]) for row in found] == [(39.0, 20, True)]
    assert [row["us"] for row in bench.judged([whole], stand)] == [164.0]


def test_modules_are_kept_and_used_again(tmp_path: Path) -> None:
    case = Small("llama", "", 20, 64)
    kept = tmp_path / "llama-2.py"
    kept.write_text("MARK = 5\n")
    module: Any = bench.module_of(case, 2, tmp_path)
    assert module.MARK == 5
    exact: Any = bench.module_of(case, 2, tmp_path, exact=True)
    assert exact.SPEC["runtime"]["dtype"] == "float64"
    (tmp_path / "llama-2-exact.py").write_text("MARK = 6\n")
    module = bench.module_of(case, 2, tmp_path, exact=True)
    assert module.MARK == 6


@pytest.mark.parametrize(("words", "expected"), [((), 14), (("--warm", "3"), 3), (("--warm", "0"), None)])
def test_kernels_are_compiled_beforehand_in_so_many_processes(
    words: tuple[str, ...], expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(bench, "compiled_in_parallel", lambda jobs, workers: asked.append(workers))
    monkeypatch.setattr(bench, "require_gpu", lambda command: None)
    monkeypatch.setattr(bench, "report", lambda name, module, argv, folder: Report(name, {}, folder))
    given = ["--case", "smollm2", "--batch", "1", "--seconds", "0", "--output", str(tmp_path), *words]
    assert bench.main(given) == 0
    assert asked == ([] if expected is None else [expected])
    kept = json.loads((tmp_path / "step.json").read_text("utf-8"))
    assert kept["rows"] == []
    assert [row["case"] for row in kept["skipped"]] == ["smollm2"]
