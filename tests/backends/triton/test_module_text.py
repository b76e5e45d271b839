"""Whole texts by Triton modules under the interpreter: the reference's, in any batch, however it is padded."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from specc.check.machines import Generated, State
from specc.check.view import view
from tests.backends.triton.lockstep import FLOOR, PROMPTS
from tests.backends.triton.modules import Cell, Modules, modules
from tests.cells import spread

TOKENS = 6
QUICK = (Cell("llama", "lookup tree", "path, deferred"),)
ALWAYS = (Cell("delta", "lookup tree", "windowed"),)
SLOW = (
    Cell("pangu", "chain", "length"),
    Cell("qwen3", "dynamic tree", "path, deferred"),
    Cell("llama", "static tree", "path", "true_q"),
    Cell("llama", "eagle", "path"),
    Cell("experts", "lookup tree", "deferred"),
    Cell("shared heads", "chain", "snapshots", schedule="serial"),
)
CELLS = [
    *(pytest.param(cell, id=str(cell)) for cell in QUICK),
    *(pytest.param(cell, id=str(cell), marks=pytest.mark.slow) for cell in (*ALWAYS, *spread(SLOW, 3))),
]


def decoder(machine: Generated) -> Any:
    """The module's Decoder on the CPU."""
    return machine.module.Decoder(machine.weights, "cpu")


@pytest.mark.parametrize("cell", CELLS)
def test_text_is_the_references_alone_and_in_a_batch(cell: Cell) -> None:
    """Ragged prompts at once and one by one, with drafts and without; every row has its own random stream."""
    made = modules(cell)
    wanted = decoder(made.reference).generate(PROMPTS, TOKENS).tokens
    own = decoder(made.triton)
    assert own.generate(PROMPTS, TOKENS).tokens == wanted
    for row, prompt in enumerate(PROMPTS):
        assert own.generate([prompt], TOKENS, requests=[row]).tokens == [wanted[row]]
    if cell.accept == "greedy":
        assert own.generate(PROMPTS, TOKENS, speculative=False).tokens == wanted


@pytest.mark.parametrize("cell", CELLS[:2])
def test_starting_steps_before_the_last_was_read_changes_nothing(cell: Cell) -> None:
    """Texts that end at different steps, by a stop token or by length: each step is read once and in order, one at most
    runs too many, and what the host sees of the state at the end is what it sees without."""
    made = modules(cell)
    plain, ahead = decoder(made.triton), decoder(made.triton)
    ahead._look_ahead = True
    runs, module = [], made.triton.module
    original = module.Captured.run

    def counted(self: Any, name: str) -> Any:
        runs.append(name)
        return original(self, name)

    for speculative in (True, False) if cell.accept == "greedy" else (True,):
        wanted = plain.generate(PROMPTS, TOKENS, speculative=speculative)
        runs.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module.Captured, "run", counted)
            found = ahead.generate(PROMPTS, TOKENS, speculative=speculative)
        assert found.tokens == wanted.tokens
        for one, two in zip(found.steps, wanted.steps, strict=True):
            assert one.emitted == two.emitted
            assert torch.equal(one.path, two.path)
        steps = len(wanted.steps) if speculative else TOKENS - 1
        kind = "step" if speculative else "plain"
        assert steps <= runs.count(kind) <= steps + 1
        assert torch.equal(ahead.state.length, plain.state.length)
        assert torch.equal(ahead.state.root_token, plain.state.root_token)


def test_a_text_that_was_broken_off_is_not_gone_on_with() -> None:
    own = decoder(modules(QUICK[0]).triton)
    own._look_ahead = True

    def stop(row: int, tokens: list[int]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own.generate(PROMPTS, TOKENS, on_tokens=stop)
    with pytest.raises(RuntimeError, match="nothing is being decoded"):
        own.step()
    assert len(own.generate(PROMPTS, TOKENS).tokens) == len(PROMPTS)


def prefilled(made: Modules, size: int) -> Any:
    """The captured steps of `size` rows (one by one, without CUDA), with PROMPTS in the first of them."""
    module, machine = made.triton.module, made.triton
    steps = module.Captured(machine.weights, size, torch.device("cpu"), False)
    rows = len(PROMPTS)
    ids = torch.zeros(size, max(map(len, PROMPTS)), dtype=torch.int64)
    for row, prompt in enumerate(PROMPTS):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    lengths = torch.tensor([len(prompt) for prompt in PROMPTS] + [0] * (size - rows))
    steps.state.rng[:rows] = torch.arange(rows) * 977
    with torch.no_grad():
        module.take_over(steps.state, module.run_prefill(machine.weights, steps.state, ids, lengths)[0])
    steps.state.remaining.fill_(TOKENS)
    return steps


def test_steps_that_nobody_holds_are_gone_at_once() -> None:
    """Not when Python next collects garbage: a graph that dies while another one is captured ends the capture."""
    made = modules(QUICK[0])
    gc.disable()
    try:
        gone = weakref.ref(prefilled(made, len(PROMPTS)))
        assert gone() is None
    finally:
        gc.enable()


def observed(made: Modules, state: Any, rows: slice) -> State:
    """These rows of what can be seen of a state."""
    seen = view(made.triton, state._asdict(), made.eagle)
    dims = {name: made.triton.slots[name].batch_dim for name in seen}
    return {name: value.narrow(dims[name], rows.start, rows.stop - rows.start) for name, value in seen.items()}


@pytest.mark.parametrize("cell", CELLS)
def test_padding_a_batch_changes_nothing(cell: Cell) -> None:
    """I14: rows behind the batch are finished rows. They stay as they are, and nothing else depends on them.

    Integers equal; floats within FLOOR, as tiles may be split otherwise for another number of rows.
    """
    made = modules(cell)
    rows, size = len(PROMPTS), 4
    alone, padded = prefilled(made, rows), prefilled(made, size)
    fresh = observed(made, padded.state, slice(rows, size))
    for name in ("step", "step", "flush", "plain"):
        with torch.no_grad():
            records = [steps.run(name) for steps in (alone, padded)]
        assert torch.equal(records[1][:rows], records[0]), name
        kept = observed(made, padded.state, slice(rows, size))
        assert all(torch.equal(value, fresh[slot]) for slot, value in kept.items()), name
        pair = [observed(made, steps.state, slice(0, rows)) for steps in (alone, padded)]
        for slot, value in pair[0].items():
            other = pair[1][slot]
            if value.is_floating_point():
                assert (other - value).abs().max() <= FLOOR * value.abs().max().clamp(min=1.0), (name, slot)
            else:
                assert torch.equal(other, value), (name, slot)
