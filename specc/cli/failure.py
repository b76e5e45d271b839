"""The boundary of the program: what leaves a command as an exception becomes a message and an exit code."""

from __future__ import annotations

import errno
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from specc import __version__
from specc.diagnostics import Diagnostic, DiagnosticError, error, render_json, render_text
from specc.output import NO_ROOM

FINE = 0
CHECK_FAILED = 1
INPUT_WRONG = 2
INTERNAL = 3
INTERRUPTED = 130

REFUSED = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS)
MAX_SPEC_CHARACTERS = 64 * 1024


class Boundary:
    """Context manager around a command. Diagnostics are printed (2), other errors become a repro bundle (3)."""

    def __init__(self, words: Sequence[str], spec: object = None, *, as_json: bool = False) -> None:
        self.words = list(words)
        self.spec = spec
        self.as_json = as_json
        self.exit_code = FINE

    def __enter__(self) -> Boundary:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if problem is None:
            return False
        if isinstance(problem, DiagnosticError):
            self.exit_code = INPUT_WRONG
            self._say(problem.diagnostics)
            return True
        if isinstance(problem, OSError) and problem.errno in NO_ROOM:
            self.exit_code = INPUT_WRONG
            if problem.filename is None:
                discard_output()  # it may be standard output that has no room
            where = problem.filename or "standard output"
            self._say([error("SPC460", f"can't write `{where}`: {problem.strerror}", help="make room on the disk")])
            return True
        if isinstance(problem, OSError) and problem.errno in REFUSED and problem.filename is not None:
            self.exit_code = INPUT_WRONG
            message = f"the system refuses the path `{problem.filename}`: {problem.strerror}"
            self._say([error("SPC461", message, help="give another path, or change its permissions")])
            return True
        if isinstance(problem, KeyboardInterrupt):
            self.exit_code = INTERRUPTED
            return True
        if isinstance(problem, BrokenPipeError):
            discard_output()  # the reader has gone (`specc show … | head`)
            self.exit_code = CHECK_FAILED
            return True
        if not isinstance(problem, Exception):
            return False
        self.exit_code = INTERNAL
        self._report(problem)
        return True

    def _report(self, problem: Exception) -> None:
        path = write_bundle(bundle_text(problem, self.words, self.spec))
        finding = error(
            "SPC900",
            f"internal error: {type(problem).__name__}: {problem}",
            help=f"this is a fault of the compiler; please report it with the file\n{path}",
        )
        self._say([finding])

    def _say(self, findings: Sequence[Diagnostic]) -> None:
        if not self.as_json:
            print(render_text(findings), file=sys.stderr)
            return
        try:
            print(render_json(findings), flush=True)
        except OSError:
            discard_output()  # nobody reads it


def discard_output() -> None:
    """Send standard output nowhere: Python would complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def bundle_text(problem: Exception, words: Sequence[str], spec: object) -> str:
    """What a maintainer needs to repeat the error: versions, command line, traceback, the spec's text."""
    parts = [
        "specc internal error report",
        f"specc {__version__}, Python {platform.python_version()}, {platform.platform()}",
        "",
        "command: specc " + " ".join(words),
        "",
        "".join(traceback.format_exception(problem)).rstrip(),
    ]
    if isinstance(spec, Path) and spec.is_file():
        text = spec.read_text(encoding="utf-8", errors="backslashreplace")[:MAX_SPEC_CHARACTERS]
        parts += ["", f"spec: {spec}", *("  " + line for line in text.splitlines())]
    return "\n".join(parts) + "\n"


def write_bundle(text: str) -> Path:
    """Write the report to a new file in the current folder (or, if that can't be, the temporary one)."""
    folder = Path.cwd()
    if not os.access(folder, os.W_OK):
        folder = Path(tempfile.gettempdir())
    handle, name = tempfile.mkstemp(prefix="specc-internal-error-", suffix=".part", dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
        stream.write(text)
    path = Path(name).with_suffix(".txt")
    os.replace(name, path)
    return path
