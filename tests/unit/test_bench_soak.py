"""The soak run's parts on the CPU, with the reference backend: what it compares, counts and refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specc.bench.soak import endless, failures, ragged_row, soak
from specc.bench.soak_check import Tally, compare, speculative_texts
from specc.bench.soak_plain import WHOLE, Bound, PlainRunner, PlainText, measure_bound
from specc.bench.step_cases import prompt_of, weights_on
from specc.driver import compile_spec
from specc.runtime.module import import_source
from tests.unit.bench_fixtures import Small

COUNT = 12
NO_BOUND = Bound(1, 1e-4, 0.0, 0)


@pytest.fixture(scope="module", params=["llama", "gdn"])
def setting(request: pytest.FixtureRequest) -> tuple[Any, Any, list[list[int]]]:
    """Module, weights, ragged prompts."""
    loaded = Small(request.param, "", 20, 64).loaded(WHOLE)
    module = import_source(compile_spec(loaded, "reference", verify=False).source, f"specc_soak_{request.param}")
    prompts = [prompt_of(loaded.spec, 9 + 3 * row, row) for row in range(5)]
    return module, weights_on(module, loaded, "cpu"), prompts


def speculative_of(setting: Any, weights: Any = None) -> tuple[list[list[int]], Tally]:
    module, own, prompts = setting
    tally = Tally()
    decoder = module.Decoder(own if weights is None else weights)
    return speculative_texts(decoder, prompts, range(len(prompts)), COUNT, tally), tally


def along(setting: Any, texts: list[list[int]]) -> list[PlainText]:
    module, weights, prompts = setting
    with torch.no_grad():
        return PlainRunner(module, weights, len(prompts) + 1, COUNT, "cpu").run(prompts, texts)


def test_plain_texts_are_the_decoders_with_the_logits_they_were_picked_from(setting: Any) -> None:
    module, weights, prompts = setting
    expected = module.Decoder(weights).generate(prompts, COUNT, speculative=False).tokens
    assert [text.tokens for text in along(setting, [])] == expected
    for text in along(setting, expected):
        assert [text.gap(at) for at in range(COUNT)] == [0.0] * COUNT
        assert min(text.margin(at) for at in range(COUNT)) > 0


def test_speculative_texts_are_equal_and_counted(setting: Any) -> None:
    texts, tally = speculative_of(setting)
    compare(range(len(texts)), texts, along(setting, texts), tally, 0.0)
    assert (tally.count, tally.tokens) == (0, len(texts) * COUNT)
    assert tally.emitted >= len(texts) * (COUNT - 1)
    assert tally.steps > 0


def test_every_planted_difference_is_found_and_what_follows_is_tested(setting: Any) -> None:
    module, weights, prompts = setting
    # Plain decoding that takes its second best token twice, and goes on from there.
    with torch.no_grad():
        runner = PlainRunner(module, weights, 1, COUNT, "cpu")
        tokens, gaps = runner.run(prompts[:1])[0].tokens, {}
        for at in (0, 4, 9):
            state_logits = runner.prefill([[*prompts[0], *tokens[:at]]])[0]
            second = int(state_logits.topk(2).indices[1])
            gaps[at] = float(state_logits.max() - state_logits[second])
            rest = runner.run([[*prompts[0], *tokens[:at], second]], count=COUNT - at - 1)[0].tokens
            tokens = [*tokens[:at], second, *rest]
    tally = Tally()
    compare([7], [tokens], along((module, weights, prompts[:1]), [tokens]), tally, max(gaps.values()) * 0.99)
    assert [(item.number, item.position) for item in tally.partings] == [(7, 0), (7, 4), (7, 9)]
    assert tally.tokens == COUNT
    for item in tally.partings:
        assert item.speculative == tokens[item.position]
        assert item.gap == pytest.approx(gaps[item.position], abs=1e-3)
        assert item.gap == pytest.approx(item.margin)
    assert tally.above == 1


def test_a_difference_above_the_bound_fails(setting: Any) -> None:
    norm = torch.randn_like(setting[1].norm) * 5
    texts, tally = speculative_of(setting, setting[1]._replace(norm=norm))
    compare(range(len(texts)), texts, along(setting, texts), tally, 0.01)
    assert tally.above > 1
    row = {"memory_growth": 0, **tally.as_json()}
    assert failures(row) == [f"{tally.above} differences above the bound"]
    fine = {"differences_above_bound": 0, "memory_growth": 8, "most_synchronisations_of_a_step": 2}
    assert len(failures(fine)) == 2
    assert not failures(fine | {"memory_growth": None, "most_synchronisations_of_a_step": 1})


def test_a_text_that_ends_early_is_a_difference_without_a_bound() -> None:
    text, tally = PlainText([1, 2, 3], torch.zeros(3, 2), torch.zeros(3)), Tally()
    compare([0], [[1]], [text], tally, 1e9)
    assert (tally.above, tally.tokens, tally.partings[0].position) == (1, 1, 1)


def test_the_soak_goes_on_until_enough_was_compared(setting: Any) -> None:
    module, weights, prompts = setting
    with torch.no_grad():
        runner = PlainRunner(module, weights, 4, COUNT, "cpu")
        row = soak(module.Decoder(weights), runner, prompts, 5 * COUNT, 0.0, 100.0)
        assert (row["complete"], row["batches"], row["tokens"], row["differences"]) == (True, 2, 8 * COUNT, 0)
        assert not soak(module.Decoder(weights), runner, prompts, 5 * COUNT, 0.0, 0.0)["complete"]


def test_the_bound_follows_rows_alone_along_the_same_tokens(setting: Any) -> None:
    module, weights, prompts = setting
    with torch.no_grad():
        bound = measure_bound(module, weights, prompts, 3, 1, "cpu")
        assert bound.positions == WHOLE * 3
        assert bound.flips == 0
        assert bound.largest < 1e-4

        class Other:
            """A module whose logits depend on the batch."""

            def __getattr__(self, name: str) -> Any:
                return getattr(module, name)

            def run_decode(self, weights: Any, state: Any) -> Any:
                state, decoded = module.run_decode(weights, state)
                moved = decoded.logits.clone()
                moved[:, 0] += 0.25 * (len(moved) == 1)
                return state, decoded._replace(logits=moved)

        found = measure_bound(Other(), weights, prompts, 3, 1, "cpu")
    assert found.largest == pytest.approx(0.25, abs=1e-3)


def test_ragged_prompts_are_decoded_together_and_alone(setting: Any) -> None:
    module, weights, prompts = setting
    with torch.no_grad():
        runner = PlainRunner(module, weights, 8, COUNT, "cpu")
        more = [*prompts, *(prompt[:-1] for prompt in prompts)]
        row = ragged_row(module.Decoder(weights), runner, more, NO_BOUND)
    assert (row["prompts"], row["equal_texts"], row["tokens_each"]) == (8, 8, COUNT)
    assert len(set(row["prompt_tokens"])) > 4
    assert row["batch_against_plain"]["differences"] == row["single_against_plain"]["differences"] == 0


def test_prompts_never_end() -> None:
    found = [prompt for prompt, _ in zip(endless([range(10), range(6)]), range(5), strict=False)]
    assert [len(prompt) for prompt in found] == [10, 6, 4, 4, 4]
