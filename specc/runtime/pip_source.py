"""Where a file of the Python package index lies, asked from pip so that the user's own pip settings hold.

pip knows the configured index, mirrors, proxies and local folders; no registry is named in this project.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specc.runtime.download import DownloadFailed

REPORT_TIMEOUT = 180.0
DOWNLOAD_TIMEOUT = 3600.0


def locate(requirement: str, options: Sequence[str] = ()) -> str:
    """The URL from which pip would download `requirement` (`name==version`). Raises DownloadFailed.

    `options` choose among a release's wheels, as `--platform` does; pip then asks for a target even for a dry run.
    """
    if options:
        options = (*options, "--target", "unused")
    command = ["install", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", *options, requirement]
    output = _pip(command, REPORT_TIMEOUT)
    try:
        report: Any = json.loads(output)
        url = report["install"][0]["download_info"]["url"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise DownloadFailed("pip's installation report has no download address") from None
    if not isinstance(url, str):
        raise DownloadFailed("pip's installation report has no download address")
    return url


def pip_download(requirement: str, folder: Path, options: Sequence[str] = ()) -> Path:
    """The one wheel that `pip download` puts into `folder`. Raises DownloadFailed."""
    command = ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), *options, requirement]
    _pip(command, DOWNLOAD_TIMEOUT)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadFailed("pip download left no wheel")
    return wheels[0]


def _pip(arguments: list[str], timeout: float) -> str:
    """Run pip of this Python and return what it prints."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    try:
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise DownloadFailed(f"pip gave no answer within {timeout:.0f} s") from None
    except OSError as problem:
        raise DownloadFailed(f"pip could not be started: {problem}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise DownloadFailed(f"pip: {lines[-1] if lines else 'failed without a message'}")
    return done.stdout
