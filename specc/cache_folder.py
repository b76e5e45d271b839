"""Where fetched things are kept on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_root() -> Path:
    """`$SPECC_CACHE`, else `specc` in the platform's cache folder. The folder need not exist."""
    chosen = os.environ.get("SPECC_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "specc" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "specc"
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "specc"
