"""The wheel holds one top-level name and all of it, and works where the repository is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import specc

ROOT = Path(__file__).resolve().parents[2]
NOT_PACKAGED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "htmlcov", "*.part")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without this process's Python settings; its output, or a failure that shows it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources so that the build leaves nothing in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=NOT_PACKAGED)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, cwd=folder / "source")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a clean environment that holds the wheel and sees this one's dependencies.

    The dependencies come second, by a .pth file: its path is searched, but the .pth files in it are not
    read, so the editable install of the repository stays invisible.
    """
    home = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    (site_packages,) = home.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def packaged_files() -> set[str]:
    """Every file below specc/, links followed, by its name inside the wheel; a linter's settings stay outside."""
    found = set()
    for folder, folders, names in os.walk(ROOT / "specc", followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        inside = Path(folder).relative_to(ROOT)
        found |= {
            (inside / name).as_posix() for name in names if not name.endswith((".pyc", ".part")) and name != "ruff.toml"
        }
    return found


def test_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    info = f"specc-{specc.__version__}.dist-info/"
    assert {name for name in names if not name.startswith(info)} == packaged_files()
    assert {f"{info}METADATA", f"{info}entry_points.txt", f"{info}licenses/LICENSE"} <= names


def test_wheel_holds_the_linked_folders_the_specs_and_the_type_marker(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"specc/py.typed", "specc/passes/__init__.py", "specc/backends/__init__.py"} <= names
    shipped = {f"specc/specs/{path.name}" for path in (ROOT / "specs").glob("*.yaml")}
    assert shipped
    assert shipped <= names


def test_command_runs_from_another_folder(python: Path, tmp_path: Path) -> None:
    assert run(python.parent / "specc", "--version", cwd=tmp_path).split() == ["specc", specc.__version__]


def test_package_is_imported_from_the_clean_environment(python: Path, tmp_path: Path) -> None:
    code = "import specc, specc.passes, specc.testing as t; print(specc.__file__); print(t.__file__)"
    for place in run(python, "-c", code, cwd=tmp_path).split():
        assert Path(place).is_relative_to(python.parents[1])


def test_linked_folders_are_not_installed_under_their_bare_names(python: Path, tmp_path: Path) -> None:
    names = ("passes", "backends", "specs", "tests")
    code = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
    assert run(python, "-c", code, cwd=tmp_path).strip() == "[]"
