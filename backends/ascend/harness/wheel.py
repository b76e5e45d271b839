"""The Python files of the torch_npu wheel, unpacked into the cache folder and never installed.

Installing the wheel registers a torch backend that needs CANN's libraries, and `import torch` fails from then on.
Only torchair (pure Python and protobuf) and the operators' meta functions are used, so one wheel serves every
machine and every Python: the pinned one. `$SPECC_TORCH_NPU` names another copy, which is taken as it is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from specc.cache_folder import cache_root
from specc.diagnostics import DiagnosticError, error
from specc.output import umask

VERSION = "2.13.0"
FOLDER = f"torch_npu-{VERSION}"
WHEEL_NAME = f"torch_npu-{VERSION}-cp311-cp311-manylinux_2_28_x86_64.whl"
WHEEL_SIZE = 43638027
WHEEL_SHA256 = "0deb809cf447d3fce636ccfdc9c9f874950f1fe76f18f4aaab31e2d345f7dac0"
VARIABLE = "SPECC_TORCH_NPU"
NEEDED = ("torch_npu/dynamo/torchair/", "torch_npu/op_plugin/meta/", f"torch_npu-{VERSION}.dist-info/")
PROOF = ("torch_npu/dynamo/torchair/__init__.py", "torch_npu/op_plugin/meta/_meta_registrations.py")
REMEDY = "run `specc fetch torch-npu` (43 MB, once); without a network: --from FILE with the wheel"


def unpacked(root: Path | None = None) -> Path:
    """Where the pinned wheel is unpacked, whether or not it is there yet."""
    return (root or cache_root()) / FOLDER


def is_unpacked(folder: Path) -> bool:
    """Whether a folder holds what the harness needs. A folder under its final name is complete (see `unpack`)."""
    return all((folder / name).is_file() for name in PROOF)


def unzipped_wheel() -> Path:
    """The folder with the wheel's files: $SPECC_TORCH_NPU, else the cache. Raises DiagnosticError (SPC426)."""
    named = os.environ.get(VARIABLE, "")
    if not named:
        folder = unpacked()
        if is_unpacked(folder):
            return folder
        raise _problem("the torch_npu wheel has not been fetched", REMEDY)
    path = Path(named).expanduser()
    if path.is_file():
        folder = cache_root() / f"{path.stem}-{_sha256(path)[:12]}"
        return folder if is_unpacked(folder) else unpack(path, folder)
    if not is_unpacked(path):
        raise _problem(f"{VARIABLE} names {path}, which holds no torch_npu wheel", "name the wheel or its folder")
    return path


def importable_wheel() -> Path:
    """`unzipped_wheel`, where the package that it imports is there too. Raises DiagnosticError (SPC205, SPC426)."""
    folder = unzipped_wheel()
    try:
        version("protobuf")
    except PackageNotFoundError:
        remedy = "pip install 'specc[ascend]'"
        raise DiagnosticError([error("SPC205", "GE graphs need the package `protobuf`", help=remedy)]) from None
    return folder


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack what is needed of `wheel` so that `folder` appears whole or not at all. Raises SPC426."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.tmp-", dir=folder.parent))
    except OSError as reason:
        raise _problem(
            f"cannot write {folder.parent}: {reason.strerror}", "set SPECC_CACHE to another folder"
        ) from None
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(temporary, [name for name in archive.namelist() if name.startswith(NEEDED)])
        if not is_unpacked(temporary):
            raise _problem(f"{wheel} is no torch_npu wheel", REMEDY)
        os.chmod(temporary, 0o777 & ~umask())
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    except (OSError, zipfile.BadZipFile) as reason:
        if is_unpacked(folder):  # another process was faster
            return folder
        raise _problem(f"{wheel} can't be unpacked: {reason}", REMEDY) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _problem(message: str, remedy: str) -> DiagnosticError:
    return DiagnosticError([error("SPC426", message, help=remedy)])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
