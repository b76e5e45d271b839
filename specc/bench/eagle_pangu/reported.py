"""The figures of the EAGLE-Pangu paper (arXiv 2603.08088) as reported: Ascend NPUs, a Pangu teacher, batch 1, greedy.

They stand beside ours for orientation; model, device and drafter differ.
"""

from __future__ import annotations

from typing import Any

SPEED_UP: dict[str, Any] = {"set": "EAGLE-Pangu, its paper", "turns": 240, "acceptance_length": 3.17, "mean": 1.27,
                            "p99": 2.46, "kind": "reported"}  # fmt: skip
BEST_BUDGET: dict[str, Any] = {"variant": "16 nodes, depth 10 (best of its paper)", "nodes": 16, "depth": 10,
                               "speed_up": 1.48, "kind": "reported"}  # fmt: skip
WINDOW: dict[str, Any] = {"variant": "drafter sees 128 or 256 tokens (its paper): acceptance collapses",
                          "kind": "reported"}  # fmt: skip
