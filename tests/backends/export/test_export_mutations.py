"""Faults planted in a program before it is exported: ONNX Runtime and IREE must show each of them.

The fault is in the printed step that is exported, nothing else: the host side and the other steps stay right. Trees and
prompts are those of `specc check --target ascend`; what is held against the float64 program is logits, committed rows,
and every integer of the accepted path.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from specc.check.ascend.half import Half
from specc.check.ascend.ladder import walked
from specc.check.ascend.walk import Trio
from specc.check.ascend.witness import Witness, witness_half
from specc.spec import load
from tests.backends.export.exports import SPECS

SPEC = "smollm2-prompt-lookup-tree"
BATCH = 2
WALKS = 4


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of one step's text, and what a walk says of it."""

    step: str
    old: str
    new: str
    noticed: str


FAULTS = {
    "masks of the opposite meaning": Fault("verify", ", hidden_from_rows, ", ", 1 - hidden_from_rows, ", "logits"),
    "siblings see each other": Fault("verify", "(parent_row, valid)", "(parent_row.clamp(max=1), valid)", "logits"),
    "positions of a chain": Fault("verify", "depth = path_length - 1", "depth = path_length", "logits"),
    "rows one place off": Fault("verify", "state.length, k_rope, 1", "state.length + 1, k_rope, 1", "logits"),
    "another parent is asked": Fault("accept", "current == parent_node", "current == parent_node + 1", "acceptance"),
    "padding is accepted": Fault(
        "accept", "drafted_valid[:, token : token + 1].squeeze(1)", "is_child", "acceptance: `path`"
    ),
    "an accepted node is not counted": Fault("accept", "depth = count + 1", "depth = count", "acceptance"),
    "another path is committed": Fault(
        "commit", "accepted.path, accepted.emitted", "(accepted.path - 1).clamp(min=0), accepted.emitted", "_cache`"
    ),
    "a row too few is committed": Fault(
        "commit", "state.length + accepted.emitted", "state.length + accepted.emitted - 1", "length"
    ),
}
COMPILED = ("masks of the opposite meaning", "padding is accepted", "another path is committed")
"""Those that IREE sees, too: one of each step."""


def planted(target: str, fault: Fault | None) -> str | None:
    """What walks find where the step of `fault` is exported with it; without a fault, of that module's commit."""
    half = witness_half(load(SPECS / f"{SPEC}.yaml"), "float32", target)
    step = "commit" if fault is None else fault.step
    if fault is not None:
        half.__dict__["source"] = changed(half, fault)
    return walked(Trio(half, Witness(half, BATCH, steps=(step,)), None), WALKS, 0, lambda what, done, total: None)


def changed(half: Half, fault: Fault) -> str:
    """The module's text with the fault in one step."""
    source = half.source
    start = source.index(f"def run_{fault.step}(")
    end = source.index("\n\n\n", start)
    assert fault.old in source[start:end], fault
    return source[:start] + source[start:end].replace(fault.old, fault.new) + source[end:]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_onnxruntime_shows_a_planted_fault(name: str) -> None:
    found = planted("onnx", FAULTS[name])
    assert found is not None
    assert FAULTS[name].noticed in found


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_iree_shows_a_planted_fault(name: str) -> None:
    found = planted("mlir", FAULTS[name])
    assert found is not None
    assert FAULTS[name].noticed in found


def test_without_a_fault_nothing_is_found() -> None:
    assert planted("onnx", None) is None
