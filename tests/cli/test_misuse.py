"""Places where no output can go, names that can't be, streams that take nothing, and kills in the middle."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from specc.cli import main
from specc.codes.entry import SPEC_START
from specc.diagnostics import DiagnosticError
from specc.output import check_output, write_text

ROOT = Path(__file__).resolve().parents[2]
LONG = "a" * 300


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small spec, a text file and a named pipe in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "demo.yaml"
    path.write_text(SPEC_START, encoding="utf-8")
    (tmp_path / "file.txt").write_text("text\n", encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    return path


def _never(*_: object, **__: object) -> None:
    raise AssertionError("compiled")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-o", "absent/x.py"], "there is no such folder"),
        (["-o", "file.txt/x.py"], "file.txt is not a folder"),
        (["-o", "."], "it is a folder"),
        (["-o", ""], "it is a folder"),
        (["-o", "/dev/null"], "it is not a regular file"),
        (["-o", "pipe"], "it is not a regular file"),
        (["-o", LONG], "File name too long"),
        (["-o", "demo.yaml"], "it is the spec"),
        (["-o", "./demo.yaml"], "it is the spec"),
        (["--dump", "file.txt"], "it is a file, not a folder"),
        (["--dump", "file.txt/x"], "can't write `file.txt/x`"),
        (["--set", "name=torch"], "it would hide the module `torch`"),
        (["--set", "name=random"], "it would hide the module `random`"),
        (["--set", "name=class"], "no module can have this name"),
    ],
)
def test_an_impossible_output_is_refused_before_anything_is_compiled(
    words: list[str], reason: str, spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specc.driver.compile_spec", _never)
    assert main(["compile", "demo.yaml", *words]) == 2
    text = capsys.readouterr().err
    assert text.startswith("error[SPC460]: ")
    assert reason in text
    assert "= help: " in text
    assert spec.read_text(encoding="utf-8") == SPEC_START
    assert sorted(path.name for path in Path().iterdir()) == ["demo.yaml", "file.txt", "pipe"]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("option", ["--trace", "--report"])
def test_run_looks_at_its_outputs_before_it_decodes(
    option: str, spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specc.runtime.session.open_session", _never)
    assert main(["run", "demo.yaml", "--model", ".", "--prompt", "x", option, "absent/file"]) == 2
    assert "error[SPC460]: can't write `absent/file`: there is no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompt", "code"), [("", "SPC452"), (os.fsdecode(b"caf\xe9"), "SPC450"), ("\ud800", "SPC450")]
)
def test_a_prompt_that_is_no_text(prompt: str, code: str, spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "demo.yaml", "--model", ".", "--prompt", prompt]) == 2
    text = capsys.readouterr().err
    assert text.startswith(f"error[{code}]: ")
    assert "= help: " in text


@pytest.mark.parametrize("model", [".", "file.txt", "absent", "absent/folder"])
def test_what_is_no_model_folder_says_what_to_give(model: str, spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "demo.yaml", "--model", model, "--prompt", "x"]) == 2
    assert "folder" in capsys.readouterr().err.split("= help: ")[1]


def command(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`specc LINE` in a shell, its standard output buffered as a user's is. The exit code is that of specc."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"} | environment
    text = f"{sys.executable} -m specc {line}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False, cwd=ROOT, env=variables)


@pytest.mark.parametrize("words", ["--help", "explain", "explain SPC020", "explain NOPE --json"])
def test_a_reader_that_has_gone_is_no_error_to_shout_about(words: str) -> None:
    done = command(f"{words} | sleep 0")
    assert done.returncode in (0, 1, 2)
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", ["--help", "explain", "explain SPC020"])
def test_a_full_disk_behind_standard_output(words: str) -> None:
    done = command(f"{words} >/dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("error[SPC460]: can't write `standard output`: ")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    "words", ["check {0}", "run specs/smollm2-plain.yaml --model {0} --prompt x", "report {0} -o no.html"]
)
def test_a_path_that_the_system_refuses(words: str, tmp_path: Path) -> None:
    """A name that is too long, as a spec, a model and a trace."""
    done = command(words.format("x" * 300))
    assert done.returncode == 2
    assert done.stderr.startswith("error[SPC461]: the system refuses the path `xxx")
    assert "help: give another path" in done.stderr


def test_streams_that_are_closed_or_ascii() -> None:
    closed = command("schema >&-")
    assert (closed.returncode, closed.stderr) == (0, "")
    narrow = command("--help", PYTHONIOENCODING="ascii")
    assert narrow.returncode == 0
    assert "\\u2026" in narrow.stdout


KILLED = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it ignored
from specc.output import write_text
def kill(*_, **__):
    os.kill(os.getpid(), signal.{signal})
os.{moment} = kill
write_text(Path("module.py"), "new\\n" * 100_000)
"""


@pytest.mark.parametrize("moment", ["fdopen", "fsync", "chmod", "replace"])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_a_kill_in_the_middle_leaves_the_old_file(moment: str, how: str, tmp_path: Path) -> None:
    output = tmp_path / "module.py"
    output.write_text("old\n", encoding="utf-8")
    program = KILLED.format(signal=how, moment=moment)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == -signal.Signals[how]
    assert output.read_text(encoding="utf-8") == "old\n"
    rest = [path.name for path in tmp_path.iterdir() if path != output]
    assert all(name.startswith(".module.py.") and name.endswith(".part") for name in rest)
    assert how == "SIGKILL" or not rest
    write_text(output, "new\n")
    assert output.read_text(encoding="utf-8") == "new\n"


def test_an_interrupted_compile_keeps_the_old_module(
    spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    Path("demo.py").write_text("old\n", encoding="utf-8")
    monkeypatch.setattr("specc.output.os.replace", interrupt)
    assert main(["compile", "demo.yaml"]) == 130
    assert Path("demo.py").read_text(encoding="utf-8") == "old\n"
    assert sorted(path.name for path in Path().iterdir()) == ["demo.py", "demo.yaml", "file.txt", "pipe"]
    assert capsys.readouterr().out == ""


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to("module.py")
    write_text(tmp_path / "link.py", "new\n")
    assert (tmp_path / "link.py").is_symlink()
    assert (tmp_path / "module.py").read_text(encoding="utf-8") == "new\n"


def test_text_that_utf_8_cannot_hold_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "x", "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_write_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specc.output.os.access", lambda *_: False)  # permissions don't bind the superuser
    with pytest.raises(DiagnosticError, match="can't be written to"):
        check_output(tmp_path / "x")
