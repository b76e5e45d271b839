"""A cell that measures the numerical bound: how far plain decoding's logits move between a row alone and among 16.

Measured before anything is compared, with the same kernels (design: `specc bench soak`). It also says how often plain
decoding differs from itself, which speculative decoding is allowed to do twice as often.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from specc.bench.evaluation.modules import opened
from specc.bench.soak_plain import WHOLE, measure_bound


def bound_cell(inputs: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """inputs: those of a module (for 16 rows, without stop tokens), `prompts` (token ids), `count` positions of each
    row, `positions` in all. Result: `Bound.as_json`."""
    session = opened(inputs, places)
    count = int(inputs["count"])
    groups = max(1, -(-int(inputs["positions"]) // (WHOLE * count)))
    with torch.no_grad():
        found = measure_bound(
            session.module, session.decoder.weights, inputs["prompts"], count, groups, torch.device(inputs["device"])
        )
    return found.as_json()
