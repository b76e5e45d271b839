"""Hypothesis profiles and thread limits for the whole suite.

HYPOTHESIS_PROFILE=quick (the default) draws the same examples every time; `ci` draws more, `thorough` many and
new ones. Under xdist each worker uses one thread, or the workers fight over the cores.

Kernels run in Triton's interpreter here. Triton reads that flag once, while it is imported, and torch imports Triton
on behalf of nearly every test: the flag of one folder would come too late. What needs compiled kernels runs in a
process of its own (tests/backends/triton/compiled_kernels.py).
"""

from __future__ import annotations

import gc
import os

from hypothesis import HealthCheck, Phase, settings

os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile(
    "quick",
    derandomize=True,
    deadline=None,
    print_blob=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("quick"), max_examples=100)
settings.register_profile("thorough", settings.get_profile("quick"), derandomize=False, max_examples=1000)
# For planted faults: whether a test fails, not its smallest example.
settings.register_profile(
    "hunt", settings.get_profile("quick"), phases=[Phase.explicit, Phase.generate], max_examples=25
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure() -> None:
    """Give each xdist worker one thread."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        import torch

        torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not walk over it again and again, nor over young objects so often.
    That is a fifth of the time of tests that compile specs."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
