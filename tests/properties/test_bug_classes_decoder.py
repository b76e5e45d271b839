"""Known bug classes seen from the Decoder (public reports): batch sizes, positions, limits, re-use, tau."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest

from specc.diagnostics import SpecError
from specc.spec import loads
from specc.testing.oracles import acceptance_length
from tests.properties.bug_class_bench import (
    DEFERRED,
    DRAFTER,
    DRAFTS,
    LENGTH,
    PROMPTS,
    VOCABULARY,
    Check,
    Edit,
    append,
    bench,
    made_for,
    plain_text,
    spec_text,
    swap,
    unchanged,
)

EVERY_DRAFT = pytest.mark.parametrize("draft", list(DRAFTS))


@pytest.fixture
def edit() -> Edit:
    """No fault; `test_planted_fault_is_seen` calls the tests with one."""
    return unchanged


@pytest.mark.parametrize("draft", ["tree", "lookup tree", "eagle3"])
def test_every_batch_size(draft: str, edit: Edit) -> None:
    """sglang#9481: the mask was not padded to the captured batch. B = 1 to 4 of a module for 4; 5 is refused."""
    made = made_for(draft, edit)
    alone = [made.decoder().generate([list(prompt)], 7).tokens[0] for prompt in PROMPTS]
    for size in range(1, 5):
        prompts = [list(prompt) for prompt in PROMPTS[:size]]
        generation = made.decoder().generate(prompts, 7)
        assert generation.tokens == alone[:size]
    with pytest.raises(ValueError, match="max_batch_size"):
        made.decoder().generate([[1]] * 5, 2)
    with pytest.raises(ValueError, match="max_batch_size"):
        made.module.init_state(5)


@EVERY_DRAFT
def test_batch_equals_its_rows(draft: str, edit: Edit) -> None:
    """vllm#55504: the text of a row does not depend on who else is in the batch (I13), nor does its acceptance."""
    made = made_for(draft, edit)
    prompts = [list(prompt) for prompt in PROMPTS]
    together = made.decoder().generate(prompts, 11)
    for row, prompt in enumerate(prompts):
        single = made.decoder().generate([prompt], 11)
        assert single.tokens[0] == together.tokens[row] == plain_text(made, prompt, 11)
        mine = [step.emitted[0] for step in single.steps]
        assert mine == [step.emitted[row] for step in together.steps][: len(mine)]


def test_position_at_the_end_of_the_drafters_table() -> None:
    """vllm#48894, SpecForge PR 271: acceptance collapsed beyond the drafter's 2048 positions.

    A spec whose longest sequence and tree do not fit either table is refused; the longest that fits decodes.
    """
    drafter = "{{{0}, tree: dynamic, num_speculative_tokens: 7, num_steps: 3, top_k: 3}}"
    for positions, code in ((43, "SPC151"), (44, None)):
        text = spec_text(drafter.format(DRAFTER.replace("64", str(positions))), DEFERRED)
        assert refusal(text) == code
    eagle = DRAFTS["eagle3"].replace("draft_vocab_size: 11", "draft_vocab_size: 11, max_position_embeddings: {0}")
    for positions, code in ((43, "SPC151"), (44, None)):
        assert refusal(spec_text(eagle.replace("{0}", str(positions)), DEFERRED)) == code
    for positions, code in ((43, "SPC150"), (44, None)):
        assert refusal(spec_text("tree", DEFERRED, positions=positions)) == code
    made = bench(drafter.format(DRAFTER.replace("64", "44")), DEFERRED)
    seen: list[int] = []
    real = made.module.rope_tables

    def recorded(positions: Any, *rest: Any) -> Any:
        seen.append(int(positions.max()))
        return real(positions, *rest)

    made.module.rope_tables = recorded
    try:
        generation = made.decoder().generate([[3, 1], [8]], 100)
    finally:
        made.module.rope_tables = real
    assert max(seen) < 44
    assert [len(tokens) for tokens in generation.tokens] == [39, 40]
    assert generation.tokens == [plain_text(made, [3, 1], 39), plain_text(made, [8], 40)]
    late = [int(step.accept_length.max()) for step in generation.steps[-8:-1]]
    assert max(late) >= 2


def refusal(text: str) -> str | None:
    """The code of the only error, None for a spec that loads."""
    try:
        loads(text)
    except SpecError as refused:
        (entry,) = refused.diagnostics
        return entry.code
    return None


@pytest.mark.parametrize("draft", ["tree", "lookup", "eagle3"])
def test_decoder_is_used_again_and_closed(draft: str, edit: Edit) -> None:
    """vllm#53912, seen from the Decoder: the second request starts from nothing; a closed one says so."""
    made = made_for(draft, edit)
    decoder = made.decoder()
    first = decoder.generate([[3, 1, 4], [15, 9]], 8).tokens
    assert decoder.generate([[2]], 5).tokens == [plain_text(made, [2], 5)]
    decoder.start([[7, 7]], 20)
    decoder.step()  # left in the middle
    assert decoder.generate([[2]], 5).tokens == [plain_text(made, [2], 5)]
    assert decoder.generate([[3, 1, 4], [15, 9]], 8).tokens == first
    assert decoder.generate([[3, 1, 4]], 8, speculative=False).tokens == first[:1]
    with decoder:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        decoder.generate([[1]], 1)
    with pytest.raises(RuntimeError, match="start or generate"):
        decoder.state  # noqa: B018


@EVERY_DRAFT
def test_one_new_token(draft: str, edit: Edit) -> None:
    """EAGLE#95: max_new_tokens = 1 takes no step; every other limit is met exactly, speculative or not."""
    made = made_for(draft, edit)
    prompts = [[3, 1, 4], [9]]
    for count in range(1, 7):
        for speculative in (True, False):
            heard: list[list[int]] = [[], []]
            generation = made.decoder().generate(
                prompts,
                count,
                speculative=speculative,
                on_tokens=lambda row, new: heard[row].extend(new),  # noqa: B023
            )
            assert generation.tokens == [plain_text(made, prompt, count) for prompt in prompts]
            assert heard == generation.tokens
            assert count > 1 or generation.steps == []
    with pytest.raises(ValueError, match="max_new_tokens"):
        made.decoder().generate(prompts, 0)


@EVERY_DRAFT
def test_prompt_at_the_capacity(draft: str, edit: Edit) -> None:
    """vllm#48894, I25: prompts that fill the sequence to the last places, beside a short one, end cleanly."""
    made = made_for(draft, edit)
    rng = Random(6)
    for room in range(3):
        prompts = [[rng.randrange(VOCABULARY) for _ in range(LENGTH - room)], [9, 1]]
        for speculative in (True, False):
            tokens = made.decoder().generate(prompts, 8, speculative=speculative).tokens
            assert tokens == [plain_text(made, prompts[0], room + 1), plain_text(made, prompts[1], 8)]
    with pytest.raises(ValueError, match="1 to 40 tokens"):
        made.decoder().generate([[1] * (LENGTH + 1)], 1)


@EVERY_DRAFT
def test_plain_and_speculative_steps_by_turns(draft: str, edit: Edit) -> None:
    """vllm#52942: plain steps between speculative ones, with the module's own drafts; the text stays plain.

    Plain steps leave the drafter behind, so drafts get worse; they may never become wrong text or a wrong index.
    """
    made = made_for(draft, edit)
    decoder, prompts = made.decoder(), [[3, 1, 4, 3], [9]]
    tokens = [[token] for token in decoder.start(prompts, 14)]
    for number in range(14):
        new = decoder.plain_step() if number % 3 == 1 else decoder.step().emitted
        for row, more in enumerate(new):
            tokens[row].extend(more)
    assert bool(decoder.state.finished.all())
    assert tokens == [plain_text(made, prompt, 14) for prompt in prompts]


@pytest.mark.parametrize("draft", ["tree", "chain", "lookup", "lookup tree"])
def test_tau_counts_the_bonus(draft: str, edit: Edit) -> None:
    """EAGLE#95, #146: tau was off by one. accept_length counts accepted drafts, tau = mean(accept_length) + 1.

    Finished rows do not count; the token of the prefill is no step's; every emitted token is counted once.
    """
    made = made_for(draft, edit)
    decoder = made.decoder()
    prompts = [[3, 1, 4, 3, 1], [9], [2, 2, 2]]
    generation = decoder.generate(prompts, 15)
    accepted, emitted = [], 0
    for step in generation.steps:
        for row, new in enumerate(step.emitted):
            count = int(step.accept_length[row])
            if not new:
                assert count == 0
                continue
            assert len(new) == count + 1
            assert new[-1] == int(step.bonus[row])
            nodes = step.path[row, 1 : count + 1]
            assert new[:-1] == step.tokens[row, nodes].tolist()
            assert not bool(step.path[row, count + 1 :].any())
            accepted.append(count)
            emitted += len(new)
    assert max(accepted) >= 1
    assert emitted == sum(len(tokens) - 1 for tokens in generation.tokens)
    assert generation.acceptance_length == pytest.approx(acceptance_length(accepted), abs=1e-12)
    assert generation.acceptance_length == pytest.approx(emitted / len(accepted), abs=1e-12)
    assert decoder.generate(prompts, 15, speculative=False).acceptance_length == 0.0


FIRST_ROWS_LENGTH = """
_cached = tree_attention_cached


def tree_attention_cached(q, k_cache, v_cache, length, *rest):
    return _cached(q, k_cache, v_cache, length[:1].expand_as(length), *rest)
"""
FAULTS: dict[str, tuple[Check, Edit]] = {
    "length of row 0": (partial(test_every_batch_size, "tree"), append(FIRST_ROWS_LENGTH)),
    "rows share an argmax": (
        partial(test_batch_equals_its_rows, "tree"),
        swap(
            "target_argmax[batch_index(current), current.unsqueeze(1)].squeeze(1)",
            "target_argmax[0 * batch_index(current), current.unsqueeze(1)].squeeze(1)",
        ),
    ),
    "one token too many": (partial(test_one_new_token, "tree"), swap("max_new_tokens - 1)", "max_new_tokens)")),
    "state is kept": (
        partial(test_decoder_is_used_again_and_closed, "tree"),
        swap(
            "        self._state = None\n        state = init_state(len(lengths), self.device)",
            "        state = self._state\n        if state is None or len(state.length) != len(lengths):\n"
            "            state = init_state(len(lengths), self.device)",
        ),
    ),
    "stale pending before a plain step": (
        partial(test_plain_and_speculative_steps_by_turns, "tree"),
        swap("run_decode(weights, flush(state))", "run_decode(weights, state)"),
    ),
    "plain steps do not count": (
        partial(test_plain_and_speculative_steps_by_turns, "tree"),
        swap("new_remaining = state.remaining - count", "new_remaining = state.remaining"),
    ),
    "tau without the bonus": (
        partial(test_tau_counts_the_bonus, "tree"),
        swap("counts = [len(row) for step", "counts = [len(row) - 1 for step"),
    ),
    "tau over finished rows": (
        partial(test_tau_counts_the_bonus, "tree"),
        swap("for row in step.emitted if row]", "for row in step.emitted]"),
    ),
    "accept_length counts the root": (
        partial(test_tau_counts_the_bonus, "tree"),
        swap("        accept_length=accept_length,\n", "        accept_length=emitted,\n"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_seen(fault: str) -> None:
    """The test of a class fails on a module with that fault."""
    check, edit = FAULTS[fault]
    with pytest.raises(AssertionError):
        check(edit=edit)
