"""`specc bench eagle-pangu`: its variants on the shipped specs, its plan, and a whole run on a tiny model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.bench.eagle_pangu import command, plan, tables
from specc.bench.eagle_pangu.variants import ablations, bigram, drafters
from specc.bench.evaluation import modules, turns
from specc.bench.evaluation.prompts import FILES, prompt_set
from specc.diagnostics import DiagnosticError
from specc.report.results import results_of
from specc.runtime.generate import Request
from specc.runtime.session import Session
from specc.spec import load
from specc.tune.variants import tuned_changes
from tests.run_support import CONFIG, write_model
from tests.unit.evaluation_fixtures import write_head, write_prompts

SPECS = Path(__file__).resolve().parents[2] / "specs"
CHAINS = (4, 6)
OWN = (16, 6)
SPEC = (
    "specc: 1\nname: tiny-eagle\n"
    f"target:\n  family: llama\n  config: {json.dumps(CONFIG)}\n"
    "draft:\n  method: eagle3\n  tree: dynamic\n  num_speculative_tokens: 5\n  num_steps: 3\n  top_k: 2\n"
    "  config: {draft_vocab_size: 64}\n  aux_hidden_state_layer_ids: [0, 1]\n  aux_hidden_state_of: output\n"
    "accept: {method: greedy}\ncommit: {kv: path_index, update: deferred}\n"
    "runtime: {max_sequence_length: 256, dtype: float64}\n"
)


@pytest.mark.parametrize("spec", ["smollm2-eagle"])
def test_every_variant_is_a_spec(spec: str, tmp_path: Path) -> None:
    variants = [*drafters(CHAINS, tmp_path), *ablations(CHAINS, OWN)]
    assert len({item.name for item in variants}) == len(variants)
    own = load(SPECS / f"{spec}.yaml").spec
    for item in variants:
        changed = load(SPECS / f"{spec}.yaml", list(item.changes)).spec
        assert (changed == own) == (not item.changes), item.name
        if item.nodes is not None:
            assert (changed.num_nodes, changed.depth) == (item.nodes, item.depth)


def test_ablations_change_one_thing() -> None:
    own = load(SPECS / "smollm2-eagle.yaml").spec
    expected = {
        "window-128": ("draft", "window", 128),
        "mask-eager": ("verify", "attention", "eager"),
        "all-rows": ("commit", "fast_reorder", False),
        "immediate": ("commit", "update", "immediate"),
        "top-k-2": ("draft", "top_k", 2),
    }
    for item in ablations(CHAINS, OWN):
        if item.name in expected:
            section, key, value = expected[item.name]
            changed = load(SPECS / "smollm2-eagle.yaml", list(item.changes)).spec
            part = getattr(own, section).model_copy(update={key: value})
            assert changed == own.model_copy(update={section: part})


def test_a_bigram_drafter_has_as_many_candidates_as_its_tables(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"candidates_per_token": 3}', encoding="utf-8")
    draft = load(SPECS / "smollm2-eagle.yaml", bigram(tmp_path)).spec.draft
    assert (draft.method, draft.top_k) == ("bigram", 3)


@settings(max_examples=30)
@given(st.integers(0, 80), st.integers(0, 80), st.integers(0, 60), st.integers(1, 60))
def test_the_subset_is_fixed_and_of_its_size(chats: int, functions: int, questions: int, turns: int) -> None:
    prompts = [{"name": f"mt-bench/{number}", "turns": ["a", "b"], "ids": [1]} for number in range(chats)]
    prompts += [{"name": f"humaneval/{number}", "turns": ["a"], "ids": [1]} for number in range(functions)]
    prompts += [{"name": f"gsm8k/{number}", "turns": ["a"], "ids": [1]} for number in range(questions)]
    chosen = plan.subset(prompts, turns)
    assert chosen == plan.subset(prompts, turns)
    names = [item["name"] for item in chosen]
    assert len(set(names)) == len(names)
    assert sum(len(item["turns"]) for item in chosen) <= turns
    if chats >= turns and functions >= turns and questions >= turns:
        assert sum(len(item["turns"]) for item in chosen) == turns


def test_the_sets(tmp_path: Path) -> None:
    data = write_prompts(tmp_path, mt_bench=80, humaneval=164, gsm8k=90)
    pangu = prompt_set("eagle-pangu", data)
    assert sum(len(prompt.turns) for prompt in pangu) == 240
    assert len({prompt.name for prompt in pangu}) == 160
    rest = prompt_set("humaneval-rest", data)
    assert {prompt.name for prompt in rest} & {prompt.name for prompt in pangu} == set()
    assert len(prompt_set("mixed", data)) == 240
    assert [prompt.name for prompt in prompt_set("gsm8k", data, 3)] == ["gsm8k/1", "gsm8k/31", "gsm8k/61"]
    assert all(prompt.raw for prompt in rest)
    (data / FILES["gsm8k"]).unlink()
    for name in ("gsm8k", "no-such-set"):
        with pytest.raises(DiagnosticError, match="SPC295"):
            prompt_set(name, data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("eagle")
    write_prompts(made / "data")
    write_model(made / "model")
    (made / "spec.yaml").write_text(SPEC, encoding="utf-8")
    write_head(made / "head", made / "spec.yaml")
    return made


def run(folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """The command on the tiny model; its exit status and its JSON."""
    words = ["--spec", str(folder / "spec.yaml"), "--model", str(folder / "model"), "--dtype", "float64"]
    words += ["--draft-model", str(folder / "head"), "--data", str(folder / "data"), "--limit", "2"]
    words += ["--max-new-tokens", "10", "--subset-turns", "3", "--sets", "eagle-pangu,gsm8k", "--chains", "3"]
    words += ["--output", str(folder / "out"), "--cache", str(folder / "cache"), *more]
    status = command.main(words)
    return status, json.loads((folder / "out" / "eagle-pangu.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_run_writes_its_tables_and_the_next_one_does_nothing_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, found = run(folder, "--parts", "drafters,commit", "--bound-positions", "40")
    assert status == 0
    assert found["failed"] == found["not_reached"] == []
    assert found["sets"]["all"]["lossless"]["differences"] == 0
    assert found["sets"]["eagle-pangu"]["all"]["turns"] == 3
    assert found["bound"]["positions"] >= 40
    names = {row["name"] for row in found["variants"]}
    assert names >= {"own", "lookup", "chain-3", "plain", "immediate", "immediate-all-rows", "all-rows"}
    assert all(row["differences"] == 0 for row in found["variants"])
    assert {"own", "immediate", "chain-3"} <= set(found["stages"])
    codes = {row["name"]: row["code"] for row in found["variants"]}
    assert codes["own"] != codes["immediate"]
    assert any(row.get("kind") == "reported" for row in found["tables"][0]["rows"])
    results_of("eagle-pangu", found)  # as `specc report` reads it
    text = (folder / "out" / "eagle-pangu.md").read_text(encoding="utf-8")
    for table in found["tables"]:
        assert f"## {table['title']}" in text
    monkeypatch.setattr(modules, "open_session", lambda *_, **__: pytest.fail("a finished cell was done again"))
    again = run(folder, "--parts", "drafters,commit", "--bound-positions", "40")[1]
    assert again["sets"] == found["sets"]
    assert again["variants"] == found["variants"]


def test_a_run_out_of_time_says_what_it_did_not_reach(folder: Path) -> None:
    shutil.rmtree(folder / "out", ignore_errors=True)
    status, found = run(folder, "--minutes", "0", "--parts", "drafters")
    assert status == 0
    assert found["sets"] == {}
    assert "variant/own" in found["not_reached"]
    assert any(name.startswith("turns/") for name in found["not_reached"])


def test_a_part_that_does_not_exist_is_refused(folder: Path) -> None:
    with pytest.raises(DiagnosticError, match="SPC295"):
        run(folder, "--parts", "windows")


def test_the_budget_map_has_the_specs_own_tree() -> None:
    rows = [{"part": "budget", "nodes": 8, "depth": 3, "speed_up": 1.5, "name": "b"}]
    rows += [{"part": "drafters", "nodes": None, "depth": None, "speed_up": 1.7, "name": "own"}]
    heat = tables.budget_map(rows, 16, 6)
    assert heat is not None
    assert (heat["y"]["values"], heat["x"]["values"]) == ([8, 16], [3, 6])
    assert heat["values"] == [[1.5, None], [None, 1.7]]
    assert tables.budget_map(rows[1:], 16, 6) is None


def test_a_difference_above_the_bound_fails_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = turns.decoded

    def lying(session: Session, request: Request, most: int, speculative: bool) -> dict[str, Any]:
        made = honest(session, request, most, speculative)
        if speculative and len(made["tokens"]) > 4:
            made["tokens"] = [*made["tokens"][:4], (made["tokens"][4] + 1) % 200, *made["tokens"][5:]]
        return made

    shutil.rmtree(folder / "out", ignore_errors=True)
    monkeypatch.setattr(turns, "decoded", lying)
    status, found = run(folder, "--parts", "")
    assert status == 1
    assert found["sets"]["all"]["lossless"]["above_bound"] > 0


def test_named_variants_alone_join_an_earlier_run(folder: Path) -> None:
    shutil.rmtree(folder / "out", ignore_errors=True)
    before = run(folder, "--parts", "commit", "--bound-positions", "40")[1]
    kept = folder / "earlier.json"
    kept.write_text(json.dumps(before).replace(before["commit"], "0ld"), encoding="utf-8")
    (folder / "tuned.yaml").write_text(SPEC.replace("num_speculative_tokens: 5", "num_speculative_tokens: 3"), "utf-8")
    shutil.rmtree(folder / "out")
    more = ("--only", "tuned,immediate", "--tuned", str(folder / "tuned.yaml"), "--earlier", str(kept))
    status, found = run(folder, *more)
    assert status == 0
    assert not any(name.startswith("turns/") for name in found["not_reached"])
    rows = {(row["name"], row["commit"] == "0ld"): row for row in found["variants"]}
    assert {name for name, old in rows if not old} == {"own", "tuned", "immediate"}
    names = {row["name"] for row in before["variants"]}
    assert {name for name, old in rows if old} == names - {
        "immediate"
    }  # its own tree stays: the others compare with it
    assert rows["tuned", False]["drafted_per_step"] < rows["own", False]["drafted_per_step"]
    assert found["stages"]["chain-path-index"]["commit"] == "0ld" != found["stages"]["own"]["commit"]
    assert found["sets"] == before["sets"]
    assert found["sets_commit"] == "0ld"
    text = (folder / "out" / "eagle-pangu.md").read_text(encoding="utf-8")
    assert "Measured at commit 0ld." in text
    results_of("eagle-pangu", found)
    for words in (("--only", "no-such-variant"), ("--earlier", str(folder / "spec.yaml"))):
        with pytest.raises(DiagnosticError, match=r"SPC29[35]"):
            run(folder, *words)


def test_a_tuned_tree_is_a_variant(folder: Path) -> None:
    spec = SPECS / "smollm2-eagle.yaml"
    changes = tuned_changes(spec, SPECS / "gdn-15m-eagle.yaml")
    made = load(spec, list(changes)).spec
    wanted = load(SPECS / "gdn-15m-eagle.yaml").spec.draft
    assert (made.draft.tree, made.draft.top_k, made.draft.num_steps) == (wanted.tree, wanted.top_k, wanted.num_steps)
    assert made.target == load(spec).spec.target
