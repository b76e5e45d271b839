"""`run_between` (accept, commit and draft as one graph, made to be timed) does what the three steps do one by one."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from specc.backends.triton.backend import TritonBackend
from specc.backends.triton.compose import BETWEEN, SHOWN, composed
from specc.check.machines import Bag, Generated, State, copied
from specc.driver import compile_spec, module_info
from tests.backends.triton.lockstep import check_record, padded
from tests.backends.triton.modules import Cell, built, modules

PROMPTS = ((3, 4, 7, 9, 3, 4), (1, 2, 1, 2, 1, 2, 1), (8, 8, 8, 8))
STOP = 5
"""The stop token of all cells."""
INTEGERS = ("path", "accept_length", "bonus", "emitted_tokens", "emitted", "stopped", "tokens", "parent", "valid")


@cache
def between(cell: Cell) -> Generated:
    """The cell's module with the function."""
    made = modules(cell).compilation
    source = TritonBackend().generate(made.program, module_info(cell.loaded(), "triton"), between=True)
    return built(made, "between", source=source)


def started(machine: Generated) -> State:
    """Rows with prompts, the last one finished."""
    state, given = machine.start(len(PROMPTS)), padded(PROMPTS)
    state["rng"] = torch.tensor([977, -5, 12])
    state, _ = machine.step("prefill", state, {"input_ids": given["input_ids"], "lengths": given["lengths"]})
    state["remaining"] = torch.tensor([9, 2, 5])
    state["finished"] = torch.tensor([False, False, True])
    return state


def turned(machine: Generated, state: State, bag: Bag) -> tuple[State, dict[str, Any]]:
    """The three steps in one; the state given is changed in place."""
    module = machine.module
    draft, verified = (record(**{n: bag[n] for n in record._fields}) for record in (module.Draft, module.Verified))
    with torch.no_grad():
        made = module.run_between(machine.weights, module.State(**state), verified, draft)
    return state, {name: value for name, value in made._asdict().items() if value is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    [
        Cell("llama", "lookup tree", "path"),
        Cell("llama", "bigram", "path, deferred", "target_only"),
        Cell("llama", "eagle", "path"),
        Cell("qwen3", "static tree", "path", "true_q"),
    ],
    ids=str,
)
def test_it_equals_accept_commit_and_draft(cell: Cell) -> None:
    machine = between(cell)
    state = started(machine)
    bag: dict[str, Any] = {}
    for name in ("draft", "verify"):
        state, made = machine.step(name, state, bag)
        bag |= made
    # The target says what was drafted below the root (no stop token), so that something is taken.
    child = bag["valid"] & (bag["parent"] == 0) & (bag["tokens"] != STOP)
    for row, node in enumerate(child.long().argmax(1).tolist()):
        bag["logits"][row, 0, bag["tokens"][row, node]] = 99.0
    mine, found = turned(machine, copied(state), bag)
    wanted: dict[str, Any] = {}
    for name in ("accept", "commit", "draft"):
        state, made = machine.step(name, state, {**bag, **wanted})
        wanted |= made
    for name in INTEGERS:
        assert torch.equal(found[name], wanted[name]), name
    for name, value in state.items():
        assert torch.equal(mine[name], value), name
    check_record(found.pop("record"), mine, found)
    assert (found["accept_length"] >= 1).any() or not child[:2].any()
    assert "run_between" not in compile_spec(cell.loaded(), "triton", verify=False).source


def test_a_step_without_what_it_needs_is_refused() -> None:

    graphs = modules(Cell("llama", "lookup tree", "path")).compilation.program.graphs
    with pytest.raises(ValueError, match="no earlier step results in"):
        composed(graphs, BETWEEN, SHOWN)


def test_fast_reorder_leaves_rows_that_are_in_place() -> None:
    """The rows' values are the same either way (see the kernel's tests); the kernel skips what is in place, or not."""
    fast, slow = (
        compile_spec(Cell("llama", "lookup tree", commit).loaded(), "triton", verify=False).source
        for commit in ("path", "slow path")
    )
    assert "        SKIP=True,\n" in fast
    assert "        SKIP=False,\n" in slow
