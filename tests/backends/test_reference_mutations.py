"""I20 on mutated programs: the generated code is a function of the FX program, not of the spec."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.program import DecodeProgram
from tests.backends.mutate import mutate
from tests.backends.reference_support import Lockstep, fused_weights, generate, planned, program_of


@cache
def naive(draft: str) -> DecodeProgram:
    return program_of(draft, update="deferred")


@cache
def final(draft: str) -> DecodeProgram:
    return planned(naive(draft), deferred=True)


@cache
def text_of(draft: str, stage: str) -> str:
    return generate(naive(draft) if stage == "naive" else final(draft))


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["naive", "final"])
@pytest.mark.parametrize("draft", ["chain", "tree"])
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=20)
def test_generated_code_follows_a_mutated_program(draft: str, stage: str, seed: int) -> None:
    program = naive(draft) if stage == "naive" else final(draft)
    changed, what = mutate(program, seed)
    assert generate(changed) != text_of(draft, stage), what
    both = Lockstep(changed, batch=2, weights=fused_weights(naive(draft), changed), edge=False)
    ids, lengths = torch.tensor([[3, 4, 6, 3, 4], [1, 2, 0, 0, 0]]), torch.tensor([5, 2])
    problem: Exception | None = None
    try:
        both.prefill(ids, lengths)
        for _ in range(2):
            both.speculate()
        both.decode()
    except (RuntimeError, IndexError, ValueError) as raised:
        problem = raised
    # A program that does not run any more fails in the interpreter, which runs first.
    assert problem is None or "generated_module" not in files_of(problem), (what, problem)


def files_of(problem: BaseException) -> str:
    """File names of the frames that the problem went through."""
    names, frame = [], problem.__traceback__
    while frame is not None:
        names.append(frame.tb_frame.f_code.co_filename)
        frame = frame.tb_next
    return " ".join(names)
