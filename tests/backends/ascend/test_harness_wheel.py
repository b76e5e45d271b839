"""The torch_npu wheel: found, unpacked whole or not at all, refused if it is another one. No network is needed here."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from specc.backends.ascend.harness import wheel as wheels
from specc.backends.ascend.harness.wheel import is_unpacked, unpack, unpacked, unzipped_wheel
from specc.cli import main
from specc.diagnostics import DiagnosticError
from specc.runtime import fetch_torch_npu
from specc.runtime.download import PinnedFile
from specc.runtime.fetch import Wanted

FILES = (*wheels.PROOF, f"torch_npu-{wheels.VERSION}.dist-info/METADATA", "torch_npu/lib/libtorch_npu.so")


def made_wheel(path: Path, names: tuple[str, ...] = FILES) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, f"# {name}\n")
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and no copy named."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECC_CACHE", str(folder))
    monkeypatch.delenv(wheels.VARIABLE, raising=False)
    return folder


def pinned(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `wheel` the pinned one."""
    sha256 = wheels._sha256(wheel)
    wanted = Wanted("torch_npu==0", PinnedFile(wheels.WHEEL_NAME, wheel.stat().st_size, sha256))
    monkeypatch.setattr(fetch_torch_npu, "WANTED", wanted)


def refusal(caught: pytest.ExceptionInfo[DiagnosticError]) -> tuple[str, str]:
    (found,) = caught.value.diagnostics
    return found.code, f"{found.message} {found.help}"


def test_without_the_wheel_the_remedy_is_named(cache: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        unzipped_wheel()
    code, text = refusal(caught)
    assert code == "SPC426"
    assert "specc fetch torch-npu" in text
    assert not cache.exists()


def test_fetch_unpacks_only_what_is_needed_and_keeps_no_wheel(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = made_wheel(tmp_path / "some.whl")
    pinned(source, monkeypatch)
    for _ in range(2):
        assert main(["fetch", "torch-npu", "--from", str(source), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["folder"] == str(unpacked())
    assert unzipped_wheel() == unpacked() == cache / wheels.FOLDER
    files = {str(path.relative_to(unpacked())) for path in unpacked().rglob("*") if path.is_file()}
    assert files == set(FILES) - {"torch_npu/lib/libtorch_npu.so"}
    assert [path for path in cache.rglob("*") if path.suffix in (".whl", ".part")] == []


def test_another_wheel_is_refused_and_removed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = made_wheel(tmp_path / "some.whl")
    pinned(source, monkeypatch)
    with zipfile.ZipFile(source, "a") as archive:
        archive.comment = b"one byte more"
    assert main(["fetch", "torch-npu", "--from", str(source)]) == 2
    assert "SPC422" in capsys.readouterr().err
    assert not is_unpacked(unpacked())


def test_a_named_folder_or_wheel_is_taken_as_it_is(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made_wheel(tmp_path / "torch_npu-9.whl")
    monkeypatch.setenv(wheels.VARIABLE, str(source))
    folder = unzipped_wheel()
    assert is_unpacked(folder)
    assert folder.parent == cache
    assert unzipped_wheel() == folder
    monkeypatch.setenv(wheels.VARIABLE, str(folder))
    assert unzipped_wheel() == folder


@pytest.mark.parametrize("kind", ["nothing", "no zip", "another package"])
def test_what_holds_no_wheel_is_refused(
    kind: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "named.whl"
    if kind == "no zip":
        path.write_text("not a zip file")
    elif kind == "another package":
        made_wheel(path, ("other/__init__.py",))
    monkeypatch.setenv(wheels.VARIABLE, str(path))
    with pytest.raises(DiagnosticError) as caught:
        unzipped_wheel()
    assert refusal(caught)[0] == "SPC426"
    assert not cache.exists() or list(cache.iterdir()) == []


def test_an_interrupt_while_unpacking_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: zipfile.ZipFile, path: Path, members: list[str]) -> None:
        self.extract(members[0], path)
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "extractall", interrupted)
    with pytest.raises(KeyboardInterrupt):
        unpack(made_wheel(tmp_path / "some.whl"), cache / "there")
    assert list(cache.iterdir()) == []


def test_the_pin_is_the_wheel_of_the_version_that_the_schemas_are_of() -> None:
    assert wheels.WHEEL_NAME.startswith(f"torch_npu-{wheels.VERSION}-")
    assert len(wheels.WHEEL_SHA256) == 64
    assert fetch_torch_npu.WANTED.requirement == f"torch_npu=={wheels.VERSION}"


def test_lowering_without_the_wheel_is_a_diagnostic_and_leaves_nothing_open(cache: Path) -> None:
    """In a process of its own: this one may have torchair loaded already."""
    script = (
        "import sys, torch\n"
        "from specc.backends.ascend.harness.lower import lower\n"
        "from specc.diagnostics import DiagnosticError\n"
        "try:\n    lower(torch.exp, (torch.ones(2),))\n"
        "except DiagnosticError as missing:\n    print(missing.diagnostics[0].code, torch.is_grad_enabled())\n"
        "assert not [name for name in sys.modules if name.startswith(('torch_npu', 'torchair'))]\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "SPC426 True\n", done.stderr
