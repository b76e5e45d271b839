"""What the checks on a GPU call wrong: planted findings, and a module that is really wrong, in the interpreter."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from specc.driver import compile_spec
from tests.backends.triton.gpu.prepare import CELLS, name_of, wide, write
from tests.backends.triton.gpu.verdict import faults, sanitized
from tests.backends.triton.modules import clean

RIGHT: dict[str, Any] = {
    "steps32": {"wrong": {}, "ties": 0, "verify": 0.4},
    "graphs": {"equal": True},
    "padding": {"largest difference": 2e-5},
    "syncs": {"none": True},
    "steps16": {"prefill": 0.02, "verify": 0.05},
    "text": {"equal": True},
}
WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a step": ({"steps32": {"wrong": {"verify 0": {"u": 40.0}}}}, ["steps32"]),
    "a record": ({"graphs": {"triton32": ["0 step: ['record']"]}}, ["graphs"]),
    "an empty row": ({"padding": {"wrong": ["0 step: conv of the empty row"], "largest difference": 0.0}}, ["padding"]),
    "rows beside it": ({"padding": {"largest difference": 0.1}}, ["padding"]),
    "nothing in bfloat16": ({"steps16": {"verify": float("nan")}}, ["steps16"]),
    "logits in bfloat16": ({"steps16": {"verify": 0.3}}, ["steps16"]),
    "a text": ({"text": {"eager": {}}}, ["text"]),
    "an exception": ({"syncs": {"failed": "RuntimeError: x"}}, ["syncs"]),
    "the end": ({"missing": ["text"], "stopped": "out of time"}, ["stopped", "text is missing"]),
}
RACE = (
    "========= Error: Race reported between Read access at {0}+0x970\n=========     and Write access at {0}+0x39 [512]"
)
CUBLAS = RACE.format("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT")
OURS = RACE.format("delta_walk")
GPU = Path(__file__).parent / "gpu"


def test_right_findings_have_no_faults() -> None:
    assert faults(RIGHT) == []
    assert faults(RIGHT | {"syncs": {"not tried": "no CUDA device"}}) == []


@pytest.mark.parametrize("name", WRONG)
def test_faults(name: str) -> None:
    findings, wrong = WRONG[name]
    assert faults(RIGHT | findings) == wrong


@pytest.mark.parametrize(
    ("lines", "clean"),
    [
        (["end", "========= ERROR SUMMARY: 0 errors"], True),
        (["triton16 4 step", "========= ERROR SUMMARY: 0 errors"], False),
        (["end"], False),
        (["========= Invalid __global__ read of size 4 bytes", "end", "========= ERROR SUMMARY: 1 error"], False),
        ([CUBLAS, "end", "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"], True),
        ([CUBLAS, OURS, "end", "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"], False),
    ],
    ids=["clean", "not to the end", "no summary", "outside a tensor", "a race in cuBLAS", "a race of ours"],
)
def test_what_a_sanitizer_prints(lines: list[str], clean: bool) -> None:
    assert sanitized("\n".join(lines))["clean"] is clean


def repacked(archive: Path, name: str, old: str, new: str) -> None:
    """A module of an archive with one text for another, which it has."""
    with tarfile.open(archive) as packed:
        texts = {entry.name: packed.extractfile(entry).read().decode() for entry in packed}  # type: ignore[union-attr]
    assert old in texts[name]
    texts[name] = texts[name].replace(old, new)
    with tarfile.open(archive, "w:gz") as packed:
        for one, text in texts.items():
            entry = tarfile.TarInfo(one)
            entry.size = len(text.encode())
            packed.addfile(entry, io.BytesIO(text.encode()))


def checked(folder: Path) -> tuple[int, dict[str, Any]]:
    """(exit status, findings of the only case) of `check` without a GPU."""
    words = ["--output", str(folder / "out.json"), "--only", "steps32", "--only", "steps16", "--device", "cpu"]
    command = [sys.executable, str(GPU / "check.py"), str(folder), *words, "--seconds", "400"]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert (folder / "out.json").exists(), done.stdout + done.stderr
    return done.returncode, next(iter(json.loads((folder / "out.json").read_text()).values()))


@pytest.mark.slow
def test_a_module_that_is_wrong_fails(tmp_path: Path) -> None:
    write(CELLS[0], tmp_path)
    status, found = checked(tmp_path)
    assert (status, found["faults"]) == (0, [])
    repacked(
        tmp_path / f"{name_of(CELLS[0])}.tar.gz", "triton32.py", "squares / hidden + eps", "squares / hidden + 0.1"
    )
    status, found = checked(tmp_path)
    assert (status, found["faults"]) == (1, ["steps32"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wide-delta", "wide-pages-of-16", "wide-tree-of-64"])
def test_wide_modules_are_whole(name: str, tmp_path: Path) -> None:
    """No interpreter runs these, so a name that is not there would be found on a GPU only."""
    clean([compile_spec(wide(name, "bfloat16"), "triton", verify=False).source], tmp_path)
