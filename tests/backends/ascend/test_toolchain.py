"""The optional rung: what the compilers' texts mean, and, where they are installed, what they say of our kernels."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from specc.backends.ascend.toolchain import cases, rung
from specc.backends.ascend.toolchain.cases import CASES, KERNELS
from specc.cli import main
from specc.codes.ascend import ASCEND_CODES

ROOT = Path(__file__).resolve().parents[3]
END = "error: External hivmc run fails, returning module before running external compiler\n"
RETRIED = "[NOTE] Ub overflow detected; automatically set enable-auto-multi-buffer to false and retrying compilation.\n"
OVERFLOW = "error: ub overflow, requires 2646016 bits while 1572864 bits available! (possible reason: ...)\n"


def outcome(log: str, stage: str = "hivm", fits: bool = True) -> rung.Outcome:
    case = next(case for case in CASES if case.fits is fits)
    return rung.judged(case, {"stage": stage, "mix_mode": "aiv", "log": log, "returncode": 1})


def test_only_the_closed_compiler_missing_counts_as_the_end() -> None:
    found = outcome(END)
    assert (found.end, found.overflowed, found.expected) == (True, False, True)
    assert "fits; only the closed hivmc is left" in found.text()


def test_an_overflow_that_a_retry_cures_is_reported_as_one() -> None:
    found = outcome(RETRIED + END, fits=False)
    assert (found.end, found.overflowed, found.expected) == (True, True, True)
    assert "overflows with double buffering" in found.text()
    assert not outcome(RETRIED + END, fits=True).expected


def test_an_overflow_for_good_says_how_much_is_missing() -> None:
    found = outcome(RETRIED + OVERFLOW, fits=False)
    assert (found.end, found.overflow, found.expected) == (False, (2646016, 1572864), False)
    assert found.text() == "unified buffer overflow: 323 KiB required, 192 KiB available"


@pytest.mark.parametrize("stage", ["parse", "linalg"])
def test_a_kernel_that_stops_early_is_unexpected(stage: str) -> None:
    found = outcome("error: unknown operation", stage)
    assert not found.end
    assert not found.expected
    assert f"stopped in the stage `{stage}`" in found.text()


def test_what_is_missing_is_said_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(rung.RungUnavailable, match=r"make ascend-kernels.*triton-ascend==3\.2\.0"):
        rung.python_of(tmp_path / "python")
    with pytest.raises(rung.RungUnavailable, match="ascendnpuir"):
        rung.run(Path(sys.executable))


def test_every_case_binds_every_argument_of_its_kernel() -> None:
    for case in CASES:
        tree = ast.parse((KERNELS / f"{case.kernel}.py").read_text("utf-8"))
        kernel = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == case.kernel)
        assert {argument.arg for argument in kernel.args.args} == {*case.signature, *case.constants}
        assert case.request()["file"].endswith(f"kernels/{case.kernel}.py")


def test_the_doctor_names_every_rung_and_what_it_lacks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--ascend-python", str(tmp_path / "no-python")]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = ("1 contracts", "2 npu ops", "3 GE graph", "4 ONNX", "5 IREE", "6 Triton kernels", "an NPU")
    assert [line.strip().startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 7
    assert "not here: there is no" in lines[5]


def test_the_kernels_compile_to_the_closed_stage(capsys: pytest.CaptureFixture[str]) -> None:
    python = ROOT / rung.FOLDER / "bin" / "python"
    if not python.is_file():
        pytest.skip("make ascend-kernels makes the environment; it is optional")
    found = rung.run(python)
    assert [one.expected for one in found] == [True] * len(cases.CASES), [one.log for one in found]
    assert main(["doctor", "--ascend", "--ascend-python", str(python)]) == 0


def test_the_page_lists_every_contract() -> None:
    page = (ROOT / "backends" / "ascend" / "ASCEND.md").read_text("utf-8")
    declared = {code.code for code in ASCEND_CODES}
    assert declared
    assert {line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| SPC5")} == declared
