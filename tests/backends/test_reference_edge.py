"""The public edge: readable errors, rows of a batch, re-use of a decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.backends.reference_support import fused_weights, generate, load_text, planned, program_of

PROMPTS = [[3, 4, 6, 3, 4, 7, 3, 4], [1], [8, 9, 8, 9, 8]]


@pytest.fixture(scope="module")
def built() -> tuple[Any, Any]:
    naive = program_of("tree", update="deferred")
    program = planned(naive, deferred=True)
    module = load_text(generate(program))
    return module, module.Weights(**fused_weights(naive, program))


def prefilled(module: Any, weights: Any, rows: int = 3) -> Any:
    state = module.init_state(rows)
    ids = torch.zeros((rows, 8), dtype=torch.int64)
    for row, prompt in enumerate(PROMPTS[:rows]):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    return module.prefill(weights, state, ids, torch.tensor([len(prompt) for prompt in PROMPTS[:rows]]))[0]


def step(module: Any, weights: Any, state: Any) -> tuple[Any, Any]:
    state, draft = module.draft(weights, state)
    state, verified = module.verify(weights, state, draft.tokens, draft.parent, draft.valid)
    state, accepted = module.accept(state, verified, draft)
    return module.commit(state, verified, accepted), accepted


def texts(module: Any, weights: Any, state: Any, steps: int = 4) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in range(state.length.shape[0])]
    for _ in range(steps):
        state, accepted = step(module, weights, state)
        for row, count in enumerate(accepted.emitted.tolist()):
            out[row] += accepted.emitted_tokens[row, :count].tolist()
    return out


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda a: a | {"tokens": a["tokens"][:, :2]}, ValueError, "tokens has shape"),
        (lambda a: a | {"tokens": a["tokens"].int()}, TypeError, "tokens has dtype"),
        (lambda a: a | {"tokens": a["tokens"] + 1000}, ValueError, "tokens holds"),
        (lambda a: a | {"parent": None}, ValueError, "parent and valid are needed"),
        (lambda a: a | {"parent": torch.zeros_like(a["parent"])}, ValueError, "node 0 is the root"),
        (
            lambda a: (
                a
                | {
                    "parent": torch.full_like(a["parent"], 4).index_fill(1, torch.tensor([0]), -1),
                    "valid": torch.ones_like(a["valid"]),
                }
            ),
            ValueError,
            "i - 1",
        ),
        (lambda a: a | {"state": a["state"]._replace(length=a["state"].length[:1])}, ValueError, "state.root_token"),
        (lambda a: a | {"state": 3}, TypeError, "must be a State"),
    ],
)
def test_verify_checks_its_arguments(built: Any, change: Any, error: type[Exception], message: str) -> None:
    module, weights = built
    state = prefilled(module, weights)
    state, draft = module.draft(weights, state)
    given = change({"state": state, "tokens": draft.tokens, "parent": draft.parent, "valid": draft.valid})
    with pytest.raises(error, match=message):
        module.verify(weights, given["state"], given["tokens"], given["parent"], given["valid"])


def test_prefill_checks_lengths_and_capacity(built: Any) -> None:
    module, weights = built
    state, ids = module.init_state(1), torch.ones((1, 60), dtype=torch.int64)
    with pytest.raises(ValueError, match="length after prefill"):
        module.prefill(weights, state, ids, torch.tensor([60]))
    with pytest.raises(ValueError, match="lengths holds"):
        module.prefill(weights, state, ids, torch.tensor([61]))
    with pytest.raises(ValueError, match="max_batch_size"):
        module.init_state(5)


@pytest.mark.parametrize(
    ("prompts", "tokens", "message"),
    [
        ([], 4, "list of prompts"),
        ([1, 2], 4, "list of prompts"),
        ([[]], 4, "1 to 48"),
        ([[1] * 49], 4, "1 to 48"),
        ([[99]], 4, "token ids"),
        ([[-1]], 4, "token ids"),
        ([[1]], 0, "max_new_tokens"),
    ],
)
def test_generate_checks_its_arguments(built: Any, prompts: Any, tokens: int, message: str) -> None:
    module, weights = built
    with pytest.raises(ValueError, match=message):
        module.Decoder(weights).generate(prompts, tokens)


def test_decoder_streams_and_is_reusable_until_closed(built: Any) -> None:
    module, weights = built
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    with module.Decoder(weights) as decoder:
        first = decoder.generate(PROMPTS, 12, on_tokens=lambda row, tokens: seen[row].extend(tokens))
        assert [seen[row] for row in range(3)] == first.tokens
        again = decoder.generate(torch.tensor(PROMPTS[:1]), 12)
        assert again.tokens[0] == first.tokens[0]
        one = decoder.generate(PROMPTS, 1)
        assert [len(row) for row in one.tokens] == [1, 1, 1]
        assert one.steps == []
        emitted = sum(len(row) for step_ in first.steps for row in step_.emitted)
        assert emitted == sum(len(row) - 1 for row in first.tokens)
        assert set(first.steps[0].seconds) == {"draft", "verify", "accept", "commit"}
    with pytest.raises(RuntimeError, match="closed"):
        decoder.generate(PROMPTS, 4)


def test_reaching_the_capacity_ends_cleanly(built: Any) -> None:
    module, weights = built
    decoder = module.Decoder(weights)
    fast, plain = decoder.generate([[1] * 45], 100), decoder.generate([[1] * 45], 100, speculative=False)
    assert fast.tokens == plain.tokens
    assert len(fast.tokens[0]) <= 4
    assert len(decoder.generate([[1] * 48], 100).tokens[0]) == 1


def test_snapshot_of_a_pending_row_restores_it_anywhere(built: Any) -> None:
    """Bug class: a prefix snapshot while a commit is pending."""
    module, weights = built
    state = step(module, weights, prefilled(module, weights))[0]
    assert bool((state.pending_emitted > 0).any())
    state, saved = module.snapshot(state, [0, 2])
    assert not bool(saved.pending_emitted.any())
    assert not bool(state.pending_emitted.any())
    expected = texts(module, weights, state)
    other = module.init_state(4)
    other = module.restore(other, [3, 1], saved)
    found = texts(module, weights, other)
    assert (found[3], found[1]) == (expected[0], expected[2])
    assert found[0] == found[2] == []


def test_reset_row_equals_a_fresh_one_and_leaves_the_others(built: Any) -> None:
    module, weights = built
    kept = texts(module, weights, step(module, weights, prefilled(module, weights))[0])
    state = step(module, weights, prefilled(module, weights))[0]
    state = module.reset(state, [1])
    assert bool(state.finished[1])
    found = texts(module, weights, state)
    assert (found[0], found[2]) == (kept[0], kept[2])
    assert found[1] == []
    with pytest.raises(ValueError, match="not distinct rows"):
        module.reset(state, [1, 1])
    with pytest.raises(ValueError, match="not distinct rows"):
        module.snapshot(state, [7])


def test_flush_is_idempotent_and_changes_no_text(built: Any) -> None:
    module, weights = built
    plain = texts(module, weights, step(module, weights, prefilled(module, weights))[0])
    state = step(module, weights, prefilled(module, weights))[0]
    once = module.flush(state)
    twice = module.flush(once)
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))
    assert texts(module, weights, twice) == plain
