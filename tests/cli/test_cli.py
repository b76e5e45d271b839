"""The command: exit codes, JSON, lazy imports, the internal-error bundle."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from specc import __version__
from specc.cli import COMMANDS, main
from specc.cli.failure import Boundary, write_bundle
from specc.codes import CODES
from specc.codes.entry import SPEC_START
from specc.diagnostics import DiagnosticError, error

HEAVY = ("torch", "pydantic", "rich", "yaml", "numpy", "hypothesis", "transformers")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small spec in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "demo.yaml"
    path.write_text(SPEC_START, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["schema"], ["explain", "SPC020"], ["compile", "--help"], ["doctor"]]
)
def test_light_commands_import_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys\nfrom specc.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit as stop:\n    assert not stop.code\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.rstrip().endswith("HEAVY []")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(f"  {name}" in text for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"specc {__version__}\n"


@pytest.mark.parametrize(
    "words", [[], ["compil"], ["--bogus"], ["compile"], ["run", "x.yaml"], ["check", "x.yaml", "--max-examples", "0"]]
)
def test_wrong_usage_exits_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage: specc" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: specc {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_module_has_the_agreed_functions(name: str) -> None:
    module = importlib.import_module(f"specc.cli.{name}")
    assert callable(module.run)
    assert callable(module.add_arguments)


def test_explain_one_and_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "spc020"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("SPC020: ")
    assert "num_speculative_token: 4" in text
    assert main(["explain", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["code"] for entry in listed] == list(CODES)
    assert main(["explain", "SPC016", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["overrides"] == ["commit.update deferred"]


def test_explain_of_an_unknown_code_is_wrong_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "SPC999"]) == 2
    assert "error[SPC901]" in capsys.readouterr().err


def test_schema_prints_the_shipped_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"].startswith("specc decoding spec")


def test_doctor_reports_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["missing"] == []
    assert report["required"]["torch"]
    monkeypatch.setattr("specc.cli.doctor.REQUIRED", ("torch", "no-such-package-of-ours"))
    assert main(["doctor"]) == 1
    assert "no-such-package-of-ours" in capsys.readouterr().err


def test_wrong_spec_prints_its_diagnostics_and_exits_with_2(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(SPEC_START + "verify: {attention: flash}\n", encoding="utf-8")
    assert main(["compile", str(spec)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error[SPC023]: `verify.attention`")
    assert main(["compile", str(spec), "--json"]) == 2
    output = capsys.readouterr()
    assert [item["code"] for item in json.loads(output.out)["diagnostics"]] == ["SPC023"]
    assert list(spec.parent.iterdir()) == [spec], "wrong input is no internal error and leaves no report"


def test_overrides_reach_the_spec(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(spec), "--set", "sampling.seed=x", "--set", "numerics=fastest"]) == 2
    text = capsys.readouterr().err
    assert "--> --set:1:15" in text
    assert "--> --set:2:10" in text


@pytest.mark.parametrize("command", ["compile", "check", "show"])
def test_refusals_of_the_target_exit_with_2(command: str, spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(spec), "--target", "cuda"]) == 2
    assert "error[SPC200]" in capsys.readouterr().err


def failing(words: list[str], problem: BaseException, spec: object = None, as_json: bool = False) -> int:
    boundary = Boundary(words, spec, as_json=as_json)
    with boundary:
        raise problem
    return boundary.exit_code


def test_an_internal_error_leaves_a_report(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(["compile", "demo.yaml"], ZeroDivisionError("by zero"), spec) == 3
    text = capsys.readouterr().err
    assert "error[SPC900]: internal error: ZeroDivisionError: by zero" in text
    (report,) = spec.parent.glob("specc-internal-error-*.txt")
    assert str(report) in text
    written = report.read_text(encoding="utf-8")
    for part in (
        f"specc {__version__}",
        "command: specc compile demo.yaml",
        "ZeroDivisionError: by zero",
        "in failing",
        "name: demo",
    ):
        assert part in written
    assert not list(spec.parent.glob("*.part"))


def test_an_internal_error_as_json(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(["show"], KeyError("x"), as_json=True) == 3
    assert json.loads(capsys.readouterr().out)["diagnostics"][0]["code"] == "SPC900"


def test_reports_do_not_overwrite_each_other(spec: Path) -> None:
    assert len({write_bundle("one"), write_bundle("two")}) == 2


def test_other_ways_out_of_a_command(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(["show"], DiagnosticError([error("SPC290", "no")])) == 2
    assert failing(["show"], KeyboardInterrupt()) == 130
    with pytest.raises(SystemExit):
        failing(["show"], SystemExit(2))
    assert list(spec.parent.iterdir()) == [spec]
    assert "SPC290" in capsys.readouterr().err


def test_a_closed_pipe_ends_quietly() -> None:
    command = f"{sys.executable} -m specc explain | head -c 5"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "SPC00"
    assert done.stderr == ""


def test_an_unknown_benchmark_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speeed"]) == 2
    text = capsys.readouterr().err
    assert "SPC290" in text
    assert "cpu-speed" in text
