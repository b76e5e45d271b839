"""The paper's kernel tables on GDN-1.3B's geometry, one row: the cases of `kernels_delta`, chosen and put side by side.

Every case is compared with float64 before it is timed (`specc.bench.gpu_timing`). Needs a CUDA device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

from specc.bench.delta_inputs import GDN, comb, inputs, ranked
from specc.bench.delta_schedules import shape_row, states_part
from specc.bench.delta_tree_cases import pending_part
from specc.bench.delta_walk_cases import commit_part
from specc.bench.gpu_timing import Row, timed

SHAPES: Mapping[str, list[int]] = {
    "chain of 8": list(range(8)),
    "chain of 16": list(range(16)),
    "top 2, depth 12, 16 nodes": ranked(2, 12, 16, 0.9),
    "top 4, depth 4, 32 nodes": ranked(4, 4, 32),
    "top 4, depth 6, 16 nodes": ranked(4, 6, 16),
    "4 branches of 4": comb(4, 4),
    "spine of 8, a leaf at each node": [0, 1, 1, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14],
}
"""Parent rows (0: the committed context); the depths are reached, which drawn trees of these sizes need not do."""

ACCEPTED = (2, 4, 8)
"""Accepted nodes that a state is recovered over."""


def verify_rows() -> Iterator[Row]:
    """Verify by shape of tree: hybrid, serial, tree form, and replay from the root to every leaf."""
    for name, parents in SHAPES.items():
        label = {"geometry": GDN.name, "batch": 1, "nodes": len(parents), "shape": name}
        yield label | shape_row(GDN, 1, parents)


def recovery_rows() -> Iterator[Row]:
    """All layers' states after accepted nodes: from factors, by replaying the tokens, from snapshots of every node."""
    yield from commit_part([GDN], [1], ACCEPTED)
    yield {"geometry": GDN.name, "batch": 1, "layers": GDN.layers, "form": "snapshot", "us": snapshot_us()}


def snapshot_us() -> float:
    """Microseconds of copying one node's state of 16 in every layer; that verify writes them all comes on top."""
    one = inputs(GDN, 1, 1).state
    kept = torch.randn(GDN.layers, 16, *one.shape[1:], device="cuda")
    state = torch.empty(GDN.layers, *one.shape[1:], device="cuda")
    node = torch.tensor([8], device="cuda")
    calls = [partial(torch.index_select, kept, 1, node, out=state.unsqueeze(1))] * 4
    return round(timed(calls).us, 2)


def states_rows() -> Iterator[Row]:
    """Verify that writes every node's state, which snapshots need."""
    yield from states_part([GDN], [(1, "top 4, depth 6, 16 nodes")])


def update_rows() -> Iterator[Row]:
    """Verify with factors pending (deferred, windowed) beside verify and commit as two calls."""
    yield from pending_part([GDN], [1])


PARTS: Mapping[str, Callable[[], Iterator[Row]]] = {
    "verify": verify_rows,
    "update": update_rows,
    "recovery": recovery_rows,
    "states": states_rows,
}
"""In the order of their importance."""
