"""Where the unzipped torch_npu wheel lies (first form)."""

from __future__ import annotations

import os
from pathlib import Path


def unzipped_wheel() -> Path:
    return Path(os.environ["SPECC_TORCH_NPU"])
