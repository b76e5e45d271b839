"""Writing results: whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specc.diagnostics import DiagnosticError, error

CHECK = "check the folder and its permissions"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL = frozenset(os.strerror(number) for number in NO_ROOM)


def write_text(path: Path, text: str) -> None:
    """Write `text` to a temporary file beside `path`, then rename it; a kill leaves the old file or the new one.

    A link is followed. Raises DiagnosticError (SPC460) where the folder is missing or can't be written to, and where
    `path` is something else than a file: a rename would put a file in the place of /dev/null.
    """
    check_output(path)
    target = Path(os.path.realpath(path))
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as reason:
        raise cannot_write(path, str(reason.strerror)) from reason
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, target)
    except OSError as reason:
        os.unlink(temporary)
        raise cannot_write(path, str(reason.strerror)) from reason
    except BaseException:
        os.unlink(temporary)  # an interrupt, or text that UTF-8 can't hold
        raise


@contextmanager
def replacing(path: Path, *further: type[Exception], remedy: str = CHECK) -> Iterator[Path]:
    """The path of a temporary file beside `path`: renamed to `path` at the end of the block, removed where it fails.

    Raises DiagnosticError (SPC460) for an OSError in the block, and for what a library raises in its place (`further`).
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    kinds: tuple[type[Exception], ...] = (OSError, *further)
    try:
        yield temporary
        os.replace(temporary, path)
    except kinds as problem:
        raise cannot_write(path, reason_of(problem), remedy) from problem
    finally:
        temporary.unlink(missing_ok=True)


def reason_of(problem: Exception) -> str:
    """Why a file could not be written, in the words of the system, or of the library that did not pass those on."""
    return getattr(problem, "strerror", None) or str(problem).splitlines()[0]


def write_json(path: Path, value: Any, indent: int = 2) -> None:
    """`value` as indented JSON and a newline, as `write_text` does."""
    write_text(path, json.dumps(value, indent=indent) + "\n")


def umask() -> int:
    """The process's umask; there is no way to read it without setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_output(path: Path) -> None:
    """Refuse (SPC460) what can be seen to be no place for a file, before the work whose result goes there."""
    try:
        folder = Path(os.path.realpath(path)).parent
        if path.exists() and not path.is_file():
            raise cannot_write(path, "it is a folder" if path.is_dir() else "it is not a regular file")
        if not folder.is_dir():
            raise cannot_write(path, f"{folder} is not a folder" if folder.exists() else "there is no such folder")
    except OSError as reason:
        raise cannot_write(path, str(reason.strerror)) from reason
    if not os.access(folder, os.W_OK):
        raise cannot_write(path, "the folder can't be written to")


def make_folder(path: Path) -> None:
    """Create a folder for results unless it exists. Raises DiagnosticError (SPC460)."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as reason:
        raise cannot_write(path, "it is a file, not a folder", "name a folder, or one that can be created") from reason
    except OSError as reason:
        raise cannot_write(path, str(reason.strerror)) from reason


def cannot_write(path: Path | str, reason: str, remedy: str = CHECK) -> DiagnosticError:
    """SPC460; without a remedy of its own, that for a full disk where the system says that it is full."""
    if remedy == CHECK and any(text in reason for text in FULL):  # libraries wrap the words of the system in their own
        remedy = "make room on the disk"
    return DiagnosticError([error("SPC460", f"can't write `{path}`: {reason}", help=remedy)])
