"""Modules with paged caches: the contiguous module's text, pages conserved, rows taken away, saved and brought back."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import finish, loop_parts, modules
from specc.program import DecodeProgram
from tests.backends.mutate import mutate
from tests.backends.reference_support import Lockstep, fused_weights, generate, load_text, planned, program_of
from tests.backends.test_reference_mutations import files_of
from tests.paged import well_formed

PROMPTS = [[3, 4, 6, 3, 4, 7, 3, 4], [1], [8, 9, 8, 9, 8]]
CAPACITY = 48
PAGE = 3
CASES = [("plain", False), ("chain", False), ("tree", False), ("tree", True), ("model", True)]


@cache
def final(draft: str, deferred: bool, page: int) -> DecodeProgram:
    return planned(program_of(draft, update="deferred" if deferred else "immediate"), deferred=deferred, page=page)


@cache
def made(draft: str, deferred: bool, page: int) -> tuple[Any, Any]:
    """The module and its weights."""
    naive, program = program_of(draft, update="deferred" if deferred else "immediate"), final(draft, deferred, page)
    module = load_text(generate(program))
    return module, module.Weights(**fused_weights(naive, program))


def pages_held(state: Any) -> list[set[int]]:
    return [{int(number) for number in line if number > 0} for line in state.block_table]


@pytest.mark.parametrize(("draft", "deferred"), CASES)
def test_the_text_is_that_of_the_contiguous_module(draft: str, deferred: bool) -> None:
    """Speculative and plain, again and again with the same decoder, in batches and alone."""
    module, weights = made(draft, deferred, 0)
    expected = module.Decoder(weights).generate(PROMPTS, 20, speculative=False).tokens
    paged, weights = made(draft, deferred, PAGE)
    decoder = paged.Decoder(weights)
    for speculative in (True, False, True):
        assert decoder.generate(PROMPTS, 20, speculative=speculative).tokens == expected
        well_formed(decoder.state.block_table, decoder.state.page_owner)
        held = pages_held(decoder.state)
        assert all(len(pages) * PAGE >= int(n) for pages, n in zip(held, decoder.state.length, strict=True))
        # Rows grew in turns, so that their pages lie between each other's.
        assert max(held[0]) > min(held[2])
        assert max(held[2]) > min(held[0])
    assert [decoder.generate([prompt], 20).tokens[0] for prompt in PROMPTS] == expected


@pytest.mark.parametrize("page", [1, PAGE, 64])
def test_rows_end_at_the_capacity(page: int) -> None:
    module, weights = made("tree", False, 0)
    expected = module.Decoder(weights).generate(PROMPTS, 1000).tokens
    assert max(len(row) + len(prompt) for row, prompt in zip(expected, PROMPTS, strict=True)) > CAPACITY
    paged, weights = made("tree", False, page)
    decoder = paged.Decoder(weights)
    assert decoder.generate(PROMPTS, 1000).tokens == expected
    assert int(decoder.state.length.max()) == CAPACITY
    well_formed(decoder.state.block_table, decoder.state.page_owner)


@pytest.mark.parametrize("deferred", [False, True])
def test_the_module_follows_its_program_step_by_step(deferred: bool) -> None:
    naive, program = program_of("tree", update="deferred" if deferred else "immediate"), final("tree", deferred, PAGE)
    both = Lockstep(program, batch=3, weights=fused_weights(naive, program))
    both.prefill(torch.tensor([[3, 4, 6, 3, 4], [1, 0, 0, 0, 0], [8, 9, 8, 0, 0]]), torch.tensor([5, 1, 3]))
    for _ in range(4):
        both.speculate()
        assert torch.equal(both.state.block_table, both.interpreted["block_table"])
    both.decode()
    both.speculate()


def speculate(module: Any, weights: Any, state: Any) -> tuple[Any, list[list[int]]]:
    """One step through the public functions: the state, and the new tokens of every row."""
    state, draft = module.draft(weights, state)
    state, verified = module.verify(weights, state, draft.tokens, draft.parent, draft.valid)
    state, accepted = module.accept(state, verified, draft)
    state = module.commit(state, verified, accepted)
    well_formed(state.block_table, state.page_owner)
    return state, [row[:n].tolist() for row, n in zip(accepted.emitted_tokens, accepted.emitted, strict=True)]


def begun(module: Any, weights: Any, state: Any, lengths: list[int]) -> Any:
    """Prompts of these lengths appended; every row may go on."""
    ids = (torch.arange(len(lengths) * 8) % 3 + 3).reshape(len(lengths), 8)
    state, _ = module.prefill(weights, state, ids, torch.tensor(lengths))
    return state._replace(remaining=torch.full_like(state.remaining, 30))


@pytest.mark.parametrize("deferred", [False, True])
def test_a_row_is_saved_and_brought_back(deferred: bool) -> None:
    """Another row takes pages in between, so that the row comes back to other pages than it had."""
    module, weights = made("tree", deferred, PAGE)
    state = begun(module, weights, module.init_state(3), [6, 5, 0])
    state, _ = speculate(module, weights, state)
    state, saved = module.snapshot(state, [1, 0])
    assert saved.k_cache.shape[1] < state.k_cache.shape[1]
    well_formed(saved.block_table, saved.page_owner)
    kept = [value.clone() for value in saved]
    told = []
    for _ in range(3):
        state, emitted = speculate(module, weights, state)
        told.append(emitted[:2])
    before = pages_held(state)[1]
    state = module.reset(state, [1])
    state = begun(module, weights, state, [0, 0, 8])
    state = module.restore(state, [1, 0], saved)
    well_formed(state.block_table, state.page_owner)
    assert pages_held(state)[1] != before
    for emitted in told:
        state, again = speculate(module, weights, state)
        assert again[:2] == emitted
    assert all(torch.equal(one, other) for one, other in zip(saved, kept, strict=True))


def test_a_reset_row_gives_its_pages_back_wiped() -> None:
    module, weights = made("tree", False, PAGE)
    state = begun(module, weights, module.init_state(2), [8, 4])
    state, _ = speculate(module, weights, state)
    first, second = pages_held(state)
    state = module.reset(state, [0])
    assert pages_held(state) == [set(), second]
    assert not bool(state.k_cache[:, sorted(first)].any())
    assert bool(state.k_cache[:, sorted(second)].any())
    assert bool(state.finished[0])
    state = begun(module, weights, state, [8, 0])
    assert pages_held(state)[0] <= first


def test_a_snapshot_that_does_not_fit_says_so() -> None:
    module, weights = made("tree", False, PAGE)
    state = begun(module, weights, module.init_state(1), [8])
    state, saved = module.snapshot(state, [0])
    owner = torch.ones_like(state.page_owner)
    with pytest.raises(RuntimeError, match=r"pages are free, row 0 needs \d"):
        module.restore(state._replace(page_owner=owner, block_table=state.block_table * 0), [0], saved)


@pytest.mark.parametrize("step", ["verify", "commit"])
def test_code_follows_a_changed_node(step: str) -> None:
    """An op taken away, or one operand of it changed, is taken away and changed in the code."""
    program = final("tree", False, PAGE)
    graph = clone(program.graphs[step])
    wanted = {"verify": ops.take_pages_, "commit": ops.commit_pages_}[step]
    block, node = next((b, n) for b in modules(graph) for n in b.graph.nodes if n.target is wanted)
    if step == "verify":
        block.graph.erase_node(node)
    else:
        node.args = (*node.args[:-1], False)
    text, changed = generate(program), generate(program.with_graphs(**{step: finish(graph)}))
    if step == "verify":
        assert changed.count("    take_pages_(") == text.count("    take_pages_(") - 1
    else:
        assert len(re.findall(r"    commit_pages_\([^)]*False", changed)) == 1
        assert not re.findall(r"    commit_pages_\([^)]*False", text)
    assert changed != text


@pytest.mark.slow
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=15)
def test_generated_code_follows_a_mutated_program(seed: int) -> None:
    naive, program = program_of("tree", update="deferred"), final("tree", True, PAGE)
    changed, what = mutate(program, seed)
    assert generate(changed) != generate(program), what
    both = Lockstep(changed, batch=2, weights=fused_weights(naive, changed), edge=False)
    problem: Exception | None = None
    try:
        both.prefill(torch.tensor([[3, 4, 6, 3, 4], [1, 2, 0, 0, 0]]), torch.tensor([5, 2]))
        for _ in range(2):
            both.speculate()
        both.decode()
    except (RuntimeError, IndexError, ValueError) as raised:
        problem = raised
    # A program that does not run any more fails in the interpreter, which runs first.
    assert problem is None or "generated_module.py" not in files_of(problem), (what, problem)


def test_the_module_is_clean(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(generate(final("tree", True, PAGE)))
    assert path.read_text() == generate(final("tree", True, PAGE))
    ruff = [sys.executable, "-m", "ruff"]
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=cache", "--config-file="]
    for command in ([*ruff, "check", "--isolated"], [*ruff, "format", "--check", "--isolated"], mypy):
        done = subprocess.run([*command, str(path)], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout


def test_every_page_has_a_place_for_every_layer() -> None:
    """What a cache of two layers is made of: the slots, as the module declares them."""
    module, _ = made("tree", False, PAGE)
    state = module.init_state(2)
    blocks = -(-(CAPACITY + final("tree", False, PAGE).attributes["nodes"]) // PAGE)
    assert module.SLOTS["k_cache"].shape == (2, -(blocks + 1), PAGE, 2, 8)
    assert state.k_cache.shape == (2, 2 * (blocks + 1), PAGE, 2, 8)
    assert state.block_table.shape == (2, blocks)
    assert state.page_owner.shape == (2 * (blocks + 1),)
    loops = [n for n in final("tree", False, PAGE).graphs["commit"].graph.nodes if n.name.endswith("commit_layers")]
    assert all(len(loop_parts(loop).sliced) == 1 for loop in loops)
