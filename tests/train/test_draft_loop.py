"""The loop of draft training: resumed runs, and several processes, end where one uninterrupted process ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specc.cli import main
from specc.train.checkpoint import CHECKPOINT, LOG
from specc.train.draft import job as job_module
from tests.train.draft_stand import write_model, write_spec, write_texts

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ["--batch", "6", "--sequence", "64", "--log-every", "1", "--trial-prompts", "0", "--steps", "8",
           "--checkpoint-every", "3", "--evaluate-every", "4", "--unroll", "3"]  # fmt: skip


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec, a model and its texts, and a whole run in `whole`."""
    folder = tmp_path_factory.mktemp("stand")
    loaded = write_spec(folder / "spec.yaml", "llama", "output")
    write_texts(folder / "texts", write_model(folder / "model", loaded), 40)
    assert main(command(folder, folder / "whole")) == 0
    return folder


def command(stand: Path, out: Path, *more: str) -> list[str]:
    given = ["--model", str(stand / "model"), "--texts", str(stand / "texts"), "--out", str(out)]
    return ["train", "draft", str(stand / "spec.yaml"), *given, *OPTIONS, *more]


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The log without clocks."""
    lines = [json.loads(line) for line in (folder / LOG).read_text("utf-8").splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")} for line in lines]


def tensors(out: Path) -> dict[str, torch.Tensor]:
    return {k: v for path in (out / "head").glob("*.safetensors") for k, v in load_file(path).items()}


@pytest.mark.parametrize("stop_at", [1, 3, 5, 8])
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    stop_at: int, stand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = job_module.log_line

    def stop(record: dict[str, Any]) -> str:
        if record["step"] == stop_at:
            raise KeyboardInterrupt
        return line(record)

    with monkeypatch.context() as patch:
        patch.setattr(job_module, "log_line", stop)
        assert main(command(stand, tmp_path)) == 130
    assert main(command(stand, tmp_path)) == 0
    assert log_of(tmp_path) == log_of(stand / "whole")
    whole = tensors(stand / "whole")
    assert all(torch.equal(tensor, whole[name]) for name, tensor in tensors(tmp_path).items())


def test_a_checkpoint_of_other_options_is_refused(
    stand: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / CHECKPOINT).write_bytes((stand / "whole" / CHECKPOINT).read_bytes())
    assert main(command(stand, tmp_path, "--learning-rate", "0.5")) == 2
    assert "SPC473" in capsys.readouterr().err
    assert main(command(stand, tmp_path, "--minutes", "5")) == 0


def test_time_bounds_a_run_and_its_rate_ends_low(stand: Path, tmp_path: Path) -> None:
    assert main(command(stand, tmp_path, "--steps", "100000", "--minutes", "0.05", "--evaluate-every", "100000")) == 0
    rates = [line["rate"] for line in log_of(tmp_path) if "rate" in line]
    assert 1 < len(rates) < 2000
    assert rates[-1] < 0.2 * max(rates)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_processes_of_a_group_train_what_one_by_itself_trains(stand: Path, tmp_path: Path, count: int) -> None:
    """Each takes its part of every batch; the losses and the weights are those of one process, up to rounding."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "specc", *command(stand, tmp_path)],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    outputs = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0] * count, outputs
    assert outputs[1:] == [("", "")] * (count - 1)
    ours, theirs = log_of(tmp_path), log_of(stand / "whole")
    assert len(ours) == len(theirs)
    for mine, whole in zip(ours, theirs, strict=True):
        if "loss" in mine:
            assert mine["step"] == whole["step"]
            assert mine["loss"] == pytest.approx(whole["loss"], rel=2e-3)
            assert mine["norm"] == pytest.approx(whole["norm"], rel=1e-2)
    whole_tensors = tensors(stand / "whole")
    for name, tensor in tensors(tmp_path).items():
        torch.testing.assert_close(tensor, whole_tensors[name], rtol=0.05, atol=2e-3)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (["--set", "draft.method=prompt_lookup", "--set", "draft.config=null",
          "--set", "draft.aux_hidden_state_layer_ids=null", "--set", "draft.aux_hidden_state_of=null"], "SPC475"),
        (["--set", "draft.config.hidden_size=16", "--set", "draft.config.num_attention_heads=2",
          "--set", "draft.config.head_dim=8"], "SPC475"),
        (["--device", "cuda"], "SPC474"),
        (["--sequence", "4"], "SPC476"),
    ],
    ids=["no head", "narrow head", "no device", "no text"],
)  # fmt: skip
def test_wrong_input_has_a_code(
    changes: list[str], code: str, stand: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if code == "SPC474" and torch.cuda.is_available():
        pytest.skip("this machine has a device")
    assert main(command(stand, tmp_path, *changes)) == 2
    assert code in capsys.readouterr().err
