"""One file from one URL: resumable, pinned by size and sha256, under its final name only when it is whole.

What has arrived lies in `<target>.part`. A later call goes on from its end (HTTP Range); a server that does not
know ranges, or a `.part` that turns out to be wrong, costs a fresh start but never a wrong file.
"""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from specc.diagnostics import DiagnosticError, error
from specc.runtime.cache import sha256_of

SCHEMES = frozenset({"http", "https", "file"})
NOT_WORTH_RETRYING = frozenset({400, 401, 403, 404, 405, 410, 451})
RANGE_NOT_SATISFIABLE = 416
READ_BYTES = 1 << 16

Progress = Callable[[int, int], None]
"""Called with (bytes present, bytes in all)."""


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file that is known beforehand: its name, its size in bytes and its sha256 in hex."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts` in a row that bring nothing end the download; `pause` seconds double after each of them."""

    attempts: int = 4
    pause: float = 1.0
    timeout: float = 30.0


class DownloadFailed(Exception):
    """The file did not arrive; the text says why. The `.part` is kept for the next time."""


class _WrongRange(Exception):
    """A partial answer that does not continue the `.part`."""


def download(url: str, target: Path, pinned: PinnedFile, progress: Progress, policy: RetryPolicy | None = None) -> None:
    """Bring `url` to `target`. Raises DownloadFailed, or DiagnosticError (SPC422) if the contents are wrong."""
    policy = policy or RetryPolicy()
    if urlsplit(url).scheme not in SCHEMES:
        raise DownloadFailed(f"{_shown(url)} is neither http, https nor file")
    if urlsplit(url).scheme == "file":
        policy = replace(policy, attempts=1)
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    resumed = part.exists()
    _receive_all(url, part, pinned, progress, policy)
    if sha256_of(part) != pinned.sha256 and resumed:
        part.unlink()
        _receive_all(url, part, pinned, progress, policy)
    adopt(part, target, pinned)


def adopt(part: Path, target: Path, pinned: PinnedFile) -> None:
    """Rename `part` to `target` if it is the pinned file; else remove it and raise SPC422."""
    found = sha256_of(part)
    if found != pinned.sha256:
        part.unlink()
        message = f"{pinned.name} has sha256 {found}, not the pinned {pinned.sha256}"
        help_text = "the index may serve another build of the file; nothing of it was used"
        raise DiagnosticError([error("SPC422", message, help=help_text)])
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, target)


def _receive_all(url: str, part: Path, pinned: PinnedFile, progress: Progress, policy: RetryPolicy) -> None:
    """Fill `part` up to the pinned size, connecting again as long as that gets further than before."""
    fruitless = 0
    problem = ""
    if _size(part) > pinned.size:
        part.unlink()
    furthest = _size(part)
    while _size(part) < pinned.size:
        try:
            _receive(url, part, pinned, progress, policy.timeout)
            problem = "the connection ended early"
        except urllib.error.HTTPError as refusal:
            problem = f"HTTP status {refusal.code}"
            refusal.close()
            if refusal.code in NOT_WORTH_RETRYING:
                raise DownloadFailed(f"{_shown(url)}: {problem}") from None
            if refusal.code == RANGE_NOT_SATISFIABLE:
                part.unlink(missing_ok=True)
        except _WrongRange:
            problem = "the server sent another range than asked for"
            part.unlink(missing_ok=True)
        except (OSError, http.client.HTTPException, ValueError) as failure:
            problem = str(failure) or type(failure).__name__
        if _size(part) > furthest:
            furthest, fruitless = _size(part), 0
            continue
        fruitless += 1
        if fruitless >= policy.attempts:
            raise DownloadFailed(f"{_shown(url)}: {problem}")
        time.sleep(policy.pause * 2 ** (fruitless - 1))


def _receive(url: str, part: Path, pinned: PinnedFile, progress: Progress, timeout: float) -> None:
    """One connection: append from the end of `part`, or start again if the server ignores the range."""
    start = _size(part)
    request = urllib.request.Request(url)
    if start:
        request.add_header("Range", f"bytes={start}-")
    with urllib.request.urlopen(request, timeout=timeout) as response:
        resumes = start > 0 and response.status == 206
        if resumes and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise _WrongRange
        with part.open("ab" if resumes else "wb") as file:
            _copy(response, file, start if resumes else 0, pinned, progress)


def _copy(response: BinaryIO, file: BinaryIO, present: int, pinned: PinnedFile, progress: Progress) -> None:
    """Copy at most what is missing, plus one byte so that a longer file is noticed."""
    progress(present, pinned.size)
    while present <= pinned.size and (chunk := response.read(min(READ_BYTES, pinned.size + 1 - present))):
        file.write(chunk)
        file.flush()
        present += len(chunk)
        progress(min(present, pinned.size), pinned.size)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _shown(url: str) -> str:
    """The URL without user name, password and query, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
