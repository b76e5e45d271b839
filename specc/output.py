"""Writing results: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from specc.diagnostics import DiagnosticError, error


def write_text(path: Path, text: str) -> None:
    """Write `text` to a temporary file beside `path`, then rename it; a kill leaves the old file or the new one.

    Raises DiagnosticError (SPC460) where the folder is missing or can't be written to.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as reason:
        raise _refused(path, reason) from reason
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as reason:
        os.unlink(temporary)
        raise _refused(path, reason) from reason


def _refused(path: Path, reason: OSError) -> DiagnosticError:
    message = f"can't write `{path}`: {reason.strerror}"
    return DiagnosticError([error("SPC460", message, help="check the folder and its permissions")])
