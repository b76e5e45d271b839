"""The soak run's parts on the CPU, with the reference backend: what it compares, counts and refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specc.bench.soak import endless, failures, ragged_row
from specc.bench.soak_check import Tally, Work, check_all, compare, speculative_texts
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


def plain_of(setting: tuple[Any, Any, list[list[int]]]) -> list[PlainText]:
    module, weights, prompts = setting
    with torch.no_grad():
        return PlainRunner(module, weights, len(prompts) + 1, COUNT, "cpu").run(prompts)


def test_plain_texts_are_the_decoders_with_the_logits_they_were_picked_from(setting: Any) -> None:
    module, weights, prompts = setting
    texts = plain_of(setting)
    assert [text.tokens for text in texts] == module.Decoder(weights).generate(prompts, COUNT, speculative=False).tokens
    for text in texts:
        assert text.ids[:, 0].tolist() == text.tokens
        assert (text.values[:, :-1] >= text.values[:, 1:]).all()
        assert text.gap(3, text.tokens[3]) == 0
        second = int(text.ids[3, 1])
        assert text.gap(3, second) == pytest.approx(text.margin(3))
        assert text.gap(3, -1) >= text.margin(3)


def test_speculative_texts_are_equal_and_counted(setting: Any) -> None:
    module, weights, prompts = setting
    works = [Work(i, tuple(p), t) for i, (p, t) in enumerate(zip(prompts, plain_of(setting), strict=True))]
    tally = Tally()
    check_all(module.Decoder(weights), works, 2, tally, 0.0)
    assert (tally.count, tally.tokens) == (0, len(prompts) * COUNT)
    assert tally.emitted == len(prompts) * (COUNT - 1)
    assert tally.steps > 0


def test_every_planted_difference_is_found_once_and_the_rest_is_tested(setting: Any) -> None:
    module, weights, prompts = setting
    text = plain_of(setting)[0]
    # Plain decoding that took its second best token twice; what follows is plain decoding from there.
    tokens, values, ids = list(text.tokens), text.values.clone(), text.ids.clone()
    with torch.no_grad():
        runner = PlainRunner(module, weights, 1, COUNT, "cpu")
        for at in (4, 9):
            other = int(ids[at, 1])
            rest = runner.run([[*prompts[0], *tokens[:at], other]], COUNT - at - 1)[0] if at + 1 < COUNT else None
            assert rest is not None
            tokens = [*tokens[:at], other, *rest.tokens]
            values, ids = torch.cat((values[: at + 1], rest.values)), torch.cat((ids[: at + 1], rest.ids))
    work = Work(7, tuple(prompts[0]), PlainText(tokens, values, ids))
    tally = Tally()
    check_all(module.Decoder(weights), [work], 4, tally, 0.0)
    assert [(item.number, item.position) for item in tally.partings] == [(7, 4), (7, 9)]
    assert tally.tokens == COUNT
    assert all(item.plain == tokens[item.position] for item in tally.partings)


def test_a_difference_above_the_bound_fails(setting: Any) -> None:
    module, weights, prompts = setting
    works = [Work(0, tuple(prompts[0]), plain_of(setting)[0])]
    wrong = weights._replace(norm=torch.randn_like(weights.norm) * 5)
    tally = Tally()
    compare(works, speculative_texts(module.Decoder(wrong), works, tally), tally, 0.01)
    assert tally.above == 1
    row = {"memory_growth": 0, **tally.as_json()}
    assert failures(row) == ["1 differences above the bound"]
    fine = {"differences_above_bound": 0, "memory_growth": 8, "most_synchronisations_of_a_step": 2}
    assert len(failures(fine)) == 2
    assert not failures(fine | {"memory_growth": None, "most_synchronisations_of_a_step": 1})


def test_a_text_that_ends_early_is_a_difference_without_a_bound() -> None:
    text = PlainText([1, 2, 3], torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.int64))
    tally = Tally()
    (left,) = compare([Work(0, (5,), text)], [[1]], tally, 1e9)
    assert (tally.above, tally.tokens) == (1, 2)
    assert (left.prompt, left.plain.tokens, left.done) == ((5, 1, 2), [3], 2)


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
