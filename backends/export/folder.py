"""The folder of an export: written beside its place and renamed, so that it is there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from specc.backends.export.manifest import files_of, read_manifest
from specc.output import cannot_write, umask

OTHER = "name another folder with -o, or empty this one"


def check_folder(folder: Path) -> None:
    """Refuse (SPC460) a place where no export can go, before the work whose result goes there.

    A folder with an earlier export is replaced, if it holds nothing else.
    """
    parent = Path(os.path.realpath(folder)).parent
    if folder.exists() and not folder.is_dir():
        raise cannot_write(folder, "it is a file, not a folder", OTHER)
    if not parent.is_dir():
        raise cannot_write(folder, f"{parent} is not a folder" if parent.exists() else "there is no such folder")
    if not os.access(parent, os.W_OK):
        raise cannot_write(folder, "the folder above it can't be written to")
    if folder.is_dir() and any(folder.iterdir()):
        manifest = read_manifest(folder)
        if manifest is None:
            raise cannot_write(folder, "it is not empty and holds no export", OTHER)
        foreign = sorted({path.name for path in folder.iterdir()} - files_of(manifest))
        if foreign:
            raise cannot_write(folder, f"it holds `{foreign[0]}`, which no export has written", OTHER)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of an export in the place of an earlier one. Raises DiagnosticError (SPC460)."""
    check_folder(folder)
    target = Path(os.path.realpath(folder))
    try:
        made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
    except OSError as reason:
        raise cannot_write(folder, str(reason.strerror)) from reason
    old = made.with_suffix(".old")
    try:
        os.chmod(made, 0o777 & ~umask())
        for name, content in files.items():
            (made / name).write_bytes(content)
        if target.exists():
            os.rename(target, old)
        os.rename(made, target)
    except OSError as reason:
        raise cannot_write(folder, str(reason.strerror)) from reason
    finally:
        # An interrupt between the two renames leaves the earlier export where it was.
        if old.exists() and not target.exists():
            os.rename(old, target)
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
