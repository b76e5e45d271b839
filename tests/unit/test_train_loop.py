"""The training loop and its command: it learns, a killed run goes on as if nothing had been, errors are coded."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specc.cli import main
from specc.diagnostics import DiagnosticError
from specc.train.checkpoint import CHECKPOINT, LOG
from specc.train.dataset import Dataset, HeldOut
from specc.train.gated_delta import GatedDeltaConfig, GatedDeltaModel
from specc.train.loop import Trainer
from specc.train.schedule import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
GEOMETRY = GatedDeltaConfig(20, 32, 2, 2, 8, 32)
CONFIG = TrainConfig(
    steps=12, batch=4, sequence=32, warmup_steps=3, log_every=1, evaluate_every=6, checkpoint_every=5, seed=3
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Texts that count upwards."""
    document = np.arange(1, 20, dtype=np.uint16)
    stream = np.concatenate([[0], *([document, [0]] * 60)]).astype(np.uint16)
    held_out = HeldOut(document, np.array([0, 19]), np.array([19]), np.array([0]), ("numbers",))
    return Dataset(stream, np.zeros(60, dtype=np.int64), held_out, 20, Path(), {})


def trainer(data: Dataset, folder: Path, config: TrainConfig = CONFIG) -> Trainer:
    folder.mkdir(exist_ok=True)
    return Trainer(GatedDeltaModel(GEOMETRY), data, config, folder, CPU)


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The log without clocks."""
    lines = [json.loads(line) for line in (folder / LOG).read_text("utf-8").splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")} for line in lines]


def test_it_learns(data: Dataset, tmp_path: Path) -> None:
    config = TrainConfig(steps=40, batch=4, sequence=32, warmup_steps=5, log_every=1, learning_rate=1e-2)
    trainer(data, tmp_path, config).run()
    losses = [line["loss"] for line in log_of(tmp_path) if "loss" in line]
    assert losses[0] > 2.5
    assert losses[-1] < 1.0


@pytest.mark.parametrize("stop_at", [1, 5, 7, 11])
def test_an_interrupted_run_ends_as_if_it_had_not_been(stop_at: int, data: Dataset, tmp_path: Path) -> None:
    whole = trainer(data, tmp_path / "whole")
    whole.run()

    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer(data, tmp_path / "cut").run(interrupt)
    resumed = trainer(data, tmp_path / "cut")
    resumed.run()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name
    assert log_of(tmp_path / "cut") == log_of(tmp_path / "whole")


def test_a_kill_while_the_checkpoint_is_written_leaves_the_one_before(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, calls = torch.save, []

    def cut_short(content: object, path: Path) -> None:
        calls.append(path)
        if len(calls) == 2:
            path.write_bytes(b"half of it")
            raise KeyboardInterrupt
        save(content, path)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", cut_short)
        with pytest.raises(KeyboardInterrupt):
            trainer(data, tmp_path).run()
    assert torch.load(tmp_path / CHECKPOINT, weights_only=True)["step"] == 5
    resumed = trainer(data, tmp_path)
    assert resumed.resume()
    assert resumed.state.step == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == [CHECKPOINT, LOG]


def test_a_full_disk_is_an_error_with_a_code_and_leaves_the_checkpoint_before(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(data, tmp_path)
    made.save()
    before = (tmp_path / CHECKPOINT).read_bytes()

    def full(content: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("[enforce fail at inline_container.cc] . unexpected pos")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(DiagnosticError) as caught:
        made.save()
    assert [item.code for item in caught.value.diagnostics] == ["SPC460"]
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_file_in_the_place_of_the_output_folder_is_refused(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    assert main(words(recipe, tmp_path / "out", "--steps", "2")) == 2


def test_time_ends_a_run_and_a_finished_run_is_not_trained_on(data: Dataset, tmp_path: Path) -> None:
    config = TrainConfig(steps=10**6, minutes=0.002, batch=4, sequence=32)
    state = trainer(data, tmp_path, config).run()
    assert 0 < state.step < 10**5
    before = log_of(tmp_path)
    assert trainer(data, tmp_path, config).run().step == state.step
    assert log_of(tmp_path) == before


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The project's own sources as training text."""
    entry = {
        "name": "own",
        "domain": "code",
        "reader": "python",
        "path": "specc/ir",
        "licence": "Apache-2.0",
        "version": "1",
        "origin": "here",
    }
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"name": "own", "held_out_bytes": 4000, "sources": [entry]}), encoding="utf-8")
    return path


def words(recipe: Path, out: Path, *more: str) -> list[str]:
    return ["train", "target", "--data", str(recipe), "--root", str(ROOT), "--out", str(out), "--config", "tiny", *more]


def test_command_from_text_to_model_card(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(words(recipe, out, "--prepare-only")) == 0
    ngram = json.loads(capsys.readouterr().out)
    assert main(words(recipe, out, "--steps", "30", "--json")) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ngram"] == ngram
    assert result["steps"] == 30
    assert result["held_out"]["all"]["bits_per_byte"] < 6
    names = {path.name for path in (out / "model").iterdir()}
    assert names >= {"README.md", "config.json", "tokenizer.json", "model.safetensors.index.json", "result.json", LOG}
    card = (out / "model" / "README.md").read_text("utf-8")
    assert f"| code | {result['held_out']['code']['bytes']:,} |" in card
    assert "| own | code | Apache-2.0 | 1 |" in card
    assert main(words(recipe, out, "--steps", "30", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == result["sha256"]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--device", "cuda"], "SPC474"),
        (["--corpus", "no-such-folder"], "SPC472"),
        (["--root", "no-such-folder"], "SPC471"),
        (["--batch", "100000"], "SPC471"),
        (["--data", "no-such-file"], "SPC470"),
    ],
)
def test_errors_are_coded(
    more: list[str], code: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if code == "SPC474" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(words(recipe, tmp_path / "out", *more)) == 2
    assert code in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_refused(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    torch.save({"step": 1, "seconds": 1.0, "model": {}, "optimiser": {}}, tmp_path / "out" / CHECKPOINT)
    assert main(words(recipe, tmp_path / "out", "--steps", "2")) == 2
    assert "SPC473" in capsys.readouterr().err
    (tmp_path / "out" / CHECKPOINT).write_bytes(b"no checkpoint")
    assert main(words(recipe, tmp_path / "out", "--steps", "2")) == 2
    assert "SPC473" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_process_goes_on_at_its_checkpoint(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "specc", *words(recipe, out, "--steps", "40", "--checkpoint-every", "10")]
    assert main(words(recipe, out, "--prepare-only")) == 0
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (out / CHECKPOINT).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = torch.load(out / CHECKPOINT, weights_only=True)["step"]
    assert reached in (10, 20, 30, 40)
    assert main(words(recipe, out, "--steps", "40", "--checkpoint-every", "10")) == 0
    assert main(words(recipe, tmp_path / "straight", "--steps", "40", "--corpus", str(out / "corpus"))) == 0
    sums = [json.loads((folder / "model" / "result.json").read_text("utf-8"))["sha256"]
            for folder in (out, tmp_path / "straight")]  # fmt: skip
    assert sums[0] == sums[1]
