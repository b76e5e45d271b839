"""The generated module against the interpreter, and the module as a piece of software."""

from __future__ import annotations

import pytest
import torch

from tests.backends.reference_support import (
    VOCABULARY,
    Lockstep,
    fused_weights,
    generate,
    load_text,
    planned,
    program_of,
    weights_of,
)

PROMPTS = [[3, 4, 6, 3, 4, 7, 3, 4], [1], [8, 9, 8, 9, 8]]


def padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    return ids, torch.tensor([len(prompt) for prompt in prompts])


@pytest.mark.parametrize("draft", ["plain", "chain", "tree", "model"])
def test_module_equals_interpreter_on_naive_programs(draft: str) -> None:
    both = Lockstep(program_of(draft), batch=3)
    both.prefill(*padded(PROMPTS))
    accepted = 0
    for _ in range(6):
        accepted += int(both.speculate()["accept_length"].sum())
    both.decode()
    assert draft in ("plain", "model") or accepted > 0


@pytest.mark.parametrize("draft", ["plain", "chain", "tree", "model"])
def test_decoder_is_lossless(draft: str) -> None:
    program = program_of(draft)
    module = load_text(generate(program))
    decoder = module.Decoder(module.Weights(**weights_of(program)))
    fast = decoder.generate(PROMPTS, 20)
    plain = decoder.generate(PROMPTS, 20, speculative=False)
    assert fast.tokens == plain.tokens
    assert len({len(row) for row in plain.tokens}) >= 1
    alone = [decoder.generate([prompt], 20).tokens[0] for prompt in PROMPTS]
    assert alone == fast.tokens
    if draft not in ("plain", "model"):
        assert fast.acceptance_length > 1.0
    assert all(0 <= token < VOCABULARY for row in fast.tokens for token in row)


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("draft", ["plain", "chain", "tree", "model"])
def test_module_equals_interpreter_on_planned_programs(draft: str, deferred: bool) -> None:
    naive = program_of(draft, update="deferred" if deferred else "immediate")
    program = planned(naive, deferred=deferred)
    both = Lockstep(program, batch=3, weights=fused_weights(naive, program))
    both.prefill(*padded(PROMPTS))
    for _ in range(6):
        both.speculate()
    both.decode()
    both.speculate()


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("draft", ["plain", "chain", "tree", "model"])
def test_planned_decoder_writes_the_same_text_as_the_naive_one(draft: str, deferred: bool) -> None:
    naive = program_of(draft, update="deferred" if deferred else "immediate")
    program = planned(naive, deferred=deferred)
    module, oracle = load_text(generate(program)), load_text(generate(naive))
    expected = oracle.Decoder(oracle.Weights(**weights_of(naive))).generate(PROMPTS, 20, speculative=False)
    decoder = module.Decoder(module.Weights(**fused_weights(naive, program)))
    assert decoder.generate(PROMPTS, 20).tokens == expected.tokens
    assert decoder.generate(PROMPTS, 20, speculative=False).tokens == expected.tokens
    assert [decoder.generate([prompt], 20).tokens[0] for prompt in PROMPTS] == expected.tokens


@pytest.mark.parametrize("plain", [False, True])
def test_a_step_that_was_cut_short_leaves_nothing_to_go_on_from(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state is changed in place: after Ctrl-C inside a step the decoder asks for a new start."""
    program = planned(program_of("tree"), deferred=True)
    module = load_text(generate(program))
    decoder = module.Decoder(module.Weights(**weights_of(program)))
    decoder.start([[1, 2, 3]], 8)

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_decode" if plain else "run_verify", cut)
    with pytest.raises(KeyboardInterrupt):
        decoder.plain_step() if plain else decoder.step()
    with pytest.raises(RuntimeError, match="call start"):
        decoder.step()
    monkeypatch.undo()
    assert len(decoder.generate([[1, 2, 3]], 8).tokens[0]) >= 1
