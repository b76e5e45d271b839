"""The cache folder of fetched models, and files and folders that appear whole or not at all.

A published model folder holds a manifest, `specc-manifest.json`, with the size and sha256 of each of its
files. The folder is written under a temporary name, the manifest last, and then renamed: a folder under its
final name is complete whatever was killed, and a damaged one is found by its sizes (or hashes, on request).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specc.cache_folder import cache_root as cache_root
from specc.diagnostics import DiagnosticError, error
from specc.output import umask, write_json

MANIFEST = "specc-manifest.json"
MODELS_FOLDER = "models"
CHUNK_BYTES = 1 << 20


def model_folder(name: str) -> Path:
    """Where the fetched model `name` lies, whether or not it has been fetched."""
    return cache_root() / MODELS_FOLDER / name


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def is_complete(folder: Path, *, hashes: bool = False) -> bool:
    """True if the folder has a manifest and each listed file has its size (and its sha256, with `hashes`)."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        for name, entry in files.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != entry["size"]:
                return False
            if hashes and sha256_of(path) != entry["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return bool(files)


def write_manifest(folder: Path, source: dict[str, str]) -> None:
    """List every file of `folder` in its manifest; `source` says where the model came from."""
    files = {
        path.name: {"size": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }
    write_json(folder / MANIFEST, {"source": source, "files": files})


@contextmanager
def publishing(folder: Path, source: dict[str, str]) -> Iterator[Path]:
    """A new empty folder to fill; on success it gets its manifest and becomes `folder`.

    A broken folder of that name is replaced. On an error it is removed. Leftovers of killed runs are
    removed too: call this under `locked`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.tmp-", dir=folder.parent))
    try:
        yield temporary
        for path in temporary.iterdir():
            os.chmod(path, 0o666 & ~umask())
            _sync(path)
        write_manifest(temporary, source)
        os.chmod(temporary, 0o777 & ~umask())
        if folder.exists():
            aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.tmp-", dir=folder.parent))
            os.replace(folder, aside / folder.name)
            os.replace(temporary, folder)
            shutil.rmtree(aside)
        else:
            os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove what killed runs of `publishing` left beside `folder`."""
    for path in folder.parent.glob(f".{folder.name}.tmp-*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`; SPC424 if another process holds it.

    The system drops the lock when the process ends, also by kill -9. Where there is no fcntl (Windows) the
    file is held open exclusively by msvcrt.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        try:
            _lock(file.fileno())
        except OSError:
            busy = error(
                "SPC424",
                f"another `specc fetch` holds {path}",
                help="wait until it has ended; the lock goes away with its process",
            )
            raise DiagnosticError([busy]) from None
        yield


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync(path: Path) -> None:
    """Bytes on disk before the rename: a crash must not leave an empty file under a final name."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
