"""The kernel families that `specc bench kernels` measures and `specc bench tune` tunes."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

FAMILIES: Mapping[str, str] = {
    "delta": "specc.bench.kernels_delta",
    "attention": "specc.bench.kernels_attention",
    "linear": "specc.bench.kernels_linear",
    "step-parts": "specc.bench.kernels_step_parts",
}
"""Name of `--family` -> the module of its cases: `main(argv)`, and `tune(report, seconds)` if there is a choice."""


def there(family: str) -> bool:
    """Whether this version has the family's cases."""
    return importlib.util.find_spec(FAMILIES[family]) is not None
