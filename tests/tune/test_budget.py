"""`specc tune budget` on a tiny model: what is replayed is what is measured, the written spec has the chosen tree."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from specc.cli import main
from specc.codes import CODES
from specc.runtime.generate import Request, decode_batch
from specc.runtime.metrics import run_metrics
from specc.runtime.tokenizer import Tokenizer
from specc.spec import load
from specc.train.draft.store import StoreIndex, pack, write_shard
from specc.tune import budget, timing
from specc.tune.budget import Job, Options, _evidence
from specc.tune.build import Workplace
from specc.tune.choose import Bounds, judged
from specc.tune.evidence import Evidence
from specc.tune.prompts import TEST_NAMES, check_not_test, training_requests
from specc.tune.timing import StepModel
from specc.tune.variants import KINDS, Source, Tree, source_tree
from tests import run_support as support

TEXTS = ("abcabcabc", "xyxyxy and xy", "0101010")
STEP = StepModel(1.0, 0.0, 0.0, None, None, ())
TREES = (Tree("dynamic", 6, 2, 3, (), 3.0), Tree("static", 4, 2, 2, ((0,), (1,), (0, 0), (0, 1))))
MORE_TREES = (Tree("chain", 3, 3, 1), Tree("dynamic", 7, 3, 3), Tree("dynamic", 4, 2, 2))
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.write_model(tmp_path_factory.mktemp("tiny"))


def place(tmp_path: Path, draft: str) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(support.spec_text(draft, stop="[256]"), encoding="utf-8")
    return path


def recorded(path: Path, folder: Path, drafter: str | None, bounds: Bounds) -> tuple[Evidence, Any, list[Request]]:
    """Evidence of the texts, and a session to decode them with."""
    work = Workplace(Source.read(path, []), str(folder), drafter, "reference", "cpu")
    job = Job(Options(path, str(folder), path, rows=3, max_new_tokens=NEW_TOKENS), work, bounds, lambda _: None)
    more = ["runtime.max_batch_size=3", "draft.prune=null"]
    session = work.open(work.source.with_tree(job.advance, more))
    requests = [Request(n, f"p{n}", tuple(session.tokenizer.encode(text))) for n, text in enumerate(TEXTS)]
    evidence, texts = _evidence(job, session, requests, time.monotonic() + 600)
    assert texts == len(TEXTS)
    return evidence, (work, session), requests


def agrees(evidence: Evidence, stand: Any, requests: list[Request], tree: Tree) -> int:
    """The replay of a tree counts what decoding with it counts; returns the accepted tokens."""
    work, session = stand
    decoder = work.decoder(work.source.with_tree(tree), session)[1]
    batches = [decode_batch(decoder, [request], NEW_TOKENS) for request in requests]
    measured, choice = run_metrics(batches), judged(evidence, tree, STEP)
    assert choice.unknown == 0
    assert (choice.replay.steps, choice.replay.tokens) == (measured.steps, measured.decoded)
    return measured.accepted


@pytest.mark.parametrize(
    ("levels", "trees"), [(2, TREES), pytest.param(3, MORE_TREES, marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_replayed_trees_count_what_decoding_with_them_counts(
    tmp_path: Path, folder: Path, levels: int, trees: tuple[Tree, ...]
) -> None:
    bounds = Bounds(7, levels, 3, KINDS, "draft_model")
    evidence, stand, requests = recorded(place(tmp_path, "dynamic"), folder, "self-perturbed:0.3", bounds)
    accepted = [agrees(evidence, stand, requests, tree) for tree in trees]
    assert min(accepted) > 0
    assert sum(accepted) > 6


def test_replayed_lookups_count_what_decoding_with_them_counts(tmp_path: Path, folder: Path) -> None:
    bounds = Bounds(6, 4, 3, KINDS, "prompt_lookup")
    evidence, stand, requests = recorded(place(tmp_path, "chain"), folder, None, bounds)
    trees = [Tree("chain", 4, 4, 1), Tree("dynamic", 5, 3, 2), Tree("dynamic", 2, 2, 2)]
    assert sum(agrees(evidence, stand, requests, tree) for tree in trees) > 0


def words(path: Path, folder: Path, *more: str) -> list[str]:
    return ["tune", "budget", str(path), "--model", str(folder), "-o", str(path.with_name("tuned.yaml")), *more]


SMALL = ("--max-new-tokens", "16", "--depth", "2", "--top-k", "2", "--max-nodes", "4", "--minutes", "0.02")


def test_the_command_writes_the_chosen_spec(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, prompts = place(tmp_path, "dynamic"), tmp_path / "prompts.txt"
    prompts.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    drafter = ("--draft-model", "self-perturbed:0.3")
    more = ("--prompts", str(prompts), "--report", str(tmp_path / "r.json"), "--prune", "--json")
    assert main(words(path, folder, *drafter, *SMALL, *more, "--tree", "dynamic")) == 0
    shown = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert written["chosen"] == shown["chosen"]
    assert {"command", "commit", "device"} <= written.keys()
    tuned = load(tmp_path / "tuned.yaml")
    tree = source_tree(tuned)
    assert tree.label == shown["chosen"]["tree"]
    assert tree.kind == "dynamic"
    assert tree.margin is not None
    kept = {row["margin"]: row["acceptance_kept"] for row in shown_table(shown, "margins")}
    assert kept[tree.margin] >= 0.99
    source = load(path)
    assert tuned.spec.model_copy(update={"draft": source.spec.draft}) == source.spec
    assert tuned.spec.draft.method == "draft_model"
    text = (tmp_path / "tuned.yaml").read_text(encoding="utf-8")
    assert text.startswith("# Tree chosen by `specc tune budget tiny.yaml`")
    assert shown_table(shown, "checked")[0]["measured_steps"] > 0


def shown_table(shown: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return next(table["rows"] for table in shown["tables"] if table["name"] == name)


def test_prompts_come_from_a_store_or_a_training_file(tmp_path: Path, folder: Path) -> None:
    path, store = place(tmp_path, "chain"), tmp_path / "store"
    ids = [list(text.encode()) for text in TEXTS]
    StoreIndex("", {}, shards=[{"file": "shard-00000.safetensors", "tokens": sum(map(len, ids))}]).write(store)
    write_shard(store / "shard-00000.safetensors", pack(ids, [len(one) - 2 for one in ids]))
    found, origin = training_requests(Tokenizer.from_folder(folder), None, store, 9, 99, 0, test=False)
    assert origin == "store"
    assert sorted(list(one.ids) for one in found) == sorted(one[:-2] for one in ids)
    with gzip.open(tmp_path / "train.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"question": text, "answer": ""}) + "\n" for text in TEXTS)
    assert main(words(path, folder, *SMALL, "--data", str(tmp_path))) == 0
    assert "train.jsonl.gz" in (tmp_path / "tuned.yaml").read_text(encoding="utf-8")


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> list[str]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 2
    return [item["code"] for item in json.loads(capsys.readouterr().out)["diagnostics"]]


def test_what_cannot_be_tuned_is_refused(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "prompts.txt"
    good.write_text("abcabc\n", encoding="utf-8")
    more = (*SMALL, "--prompts", str(good))
    assert refused(capsys, words(place(tmp_path, "none"), folder, *more)) == ["SPC490"]
    path = place(tmp_path, "chain")
    assert refused(capsys, words(path, folder, *more, "--set", "accept={method: typical, lossless: false}",
                                 "--set", "sampling.temperature=1.0")) == ["SPC490"]  # fmt: skip
    assert refused(capsys, words(path, folder, *more, "--max-new-tokens", "2")) == ["SPC492"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert refused(capsys, words(path, folder, *SMALL, "--data", str(empty))) == ["SPC494"]
    assert {"SPC490", "SPC491", "SPC492", "SPC493", "SPC494"} <= CODES.keys()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("set/test.jsonl", {"question": "abc"}),
        ("humaneval/all.jsonl", {"prompt": "abc"}),
        ("mt_bench/some.jsonl", {"prompt": "abc"}),
        ("set/named_otherwise.jsonl", {"question_id": 81, "turns": ["abc"]}),
        ("set/named_otherwise.jsonl", {"task_id": "HumanEval/0", "prompt": "abc"}),
    ],
)
def test_test_sets_are_refused_unless_allowed(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], name: str, line: dict[str, Any]
) -> None:
    path, prompts = place(tmp_path, "chain"), tmp_path / name
    prompts.parent.mkdir()
    prompts.write_text(json.dumps(line) + "\n", encoding="utf-8")
    arguments = words(path, folder, *SMALL, "--prompts", str(prompts))
    assert refused(capsys, arguments) == ["SPC491"]
    assert check_not_test(prompts, allowed=True)


def test_a_longer_name_is_not_taken_for_a_test_set() -> None:
    for name in ("train.jsonl", "latest.jsonl", "contest.txt", "questions.jsonl"):
        assert not TEST_NAMES.search(name)
    for name in ("test.jsonl", "gsm8k_test.jsonl", "mt-bench.jsonl", "mt_bench", "humaneval"):
        assert TEST_NAMES.search(name)


@pytest.mark.slow
def test_kept_measurements_are_used_again_and_damaged_ones_made_again(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, prompts, cache = place(tmp_path, "dynamic"), tmp_path / "prompts.txt", tmp_path / "cache"
    prompts.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    more = ("--draft-model", "self-perturbed:0.3", "--prompts", str(prompts), "--cache", str(cache), "--tree", "chain")
    arguments = [*words(path, folder, *SMALL, *more), "--minutes", "9", "--max-new-tokens", "18"]
    monkeypatch.setattr(timing, "STEPS", 5)
    monkeypatch.setattr(budget, "check", lambda *_: [])
    assert main(arguments) == 0
    first = json.loads((tmp_path / "tuned.json").read_text(encoding="utf-8"))
    kept = sorted(cache.iterdir())
    assert [file.suffix for file in kept].count(".npz") == 1

    monkeypatch.setattr(timing, "time_steps", None)

    def fails(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(budget, "record", fails)
    assert main(arguments) == 0
    second = json.loads((tmp_path / "tuned.json").read_text(encoding="utf-8"))
    for key in ("acceptance", "step_time", "grid", "chosen"):
        assert first[key] == second[key]
    assert sorted(cache.iterdir()) == kept
    next(cache.glob("*.npz")).write_bytes(b"PK damaged")
    with pytest.raises(AssertionError, match="measured again"):
        budget.tune(options_of(path, folder, prompts, cache), lambda _: None)


def options_of(path: Path, folder: Path, prompts: Path, cache: Path) -> Options:
    return Options(
        path, str(folder), path.with_name("tuned.yaml"), "self-perturbed:0.3", prompts, cache=cache,
        max_new_tokens=18, nodes=4, levels=2, top_k=2,
    )  # fmt: skip
