"""Turns decoded both ways, baselines kept, differences found by position and margin; what the records say together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.bench.evaluation import along, modules
from specc.bench.evaluation.bound import bound_cell
from specc.bench.evaluation.metrics import in_set, looping, paired, summary
from specc.bench.evaluation.prompts import prepared, prompt_set
from specc.bench.evaluation.stages import STAGES, stage_cell
from specc.bench.evaluation.turns import decode_cell
from specc.bench.evaluation.warm import compile_cell, warm_cell
from specc.runtime.metrics import Paired, is_looping, percentile, repeated_share, speed_up
from tests.unit.evaluation_fixtures import tiny, write_prompts

NEW = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("evaluation")
    write_prompts(made / "data")
    return made


def decode(folder: Path, draft: str = "dynamic", overrides: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """The first conversation of MT-Bench and two functions, by the tiny model."""
    inputs, places = tiny(folder, draft, overrides)
    prompts = prompt_set("eagle-pangu", folder / "data", 3)
    told = prepared(prompts, Path(places["model"]), folder / "cache")
    rest = {"conversations": told, "max_new_tokens": NEW, "plain_turns": None, "bound": None, "first_number": 0}
    return decode_cell(inputs | rest | more, places)


@pytest.mark.parametrize("draft", ["chain", "dynamic"])
def test_turns_are_decoded_both_ways_and_equal(folder: Path, draft: str) -> None:
    found = decode(folder, draft)
    turns = found["turns"]
    assert [turn["name"] for turn in turns] == ["mt-bench/81", "mt-bench/81/2", "humaneval/25", "humaneval/52"]
    for turn in turns:
        assert turn["plain"]["tokens"] == turn["speculative"]["tokens"]
        assert turn["differences"] == []
        assert turn["plain"]["decode_seconds"] > 0 and turn["speculative"]["prefill_seconds"] > 0  # noqa: PT018
        ours = turn["speculative"]
        assert ours["accepted"] + ours["steps"] == len(ours["tokens"]) - 1
        assert sum(ours["depths"]) == ours["accepted"]
    told = summary(turns)
    assert told["lossless"]["differences"] == 0
    assert told["all"]["turns"] == 4
    assert told["all"]["speculative"]["tokens"] == sum(len(turn["speculative"]["tokens"]) for turn in turns)


def test_the_second_turn_is_asked_with_plain_decodings_answer(folder: Path) -> None:
    turns = decode(folder)["turns"]
    inputs, places = tiny(folder)
    tokenizer = modules.opened(inputs, places).tokenizer
    answer = tokenizer.decode(turns[0]["plain"]["tokens"])
    messages = [{"role": "user", "content": "hi 0"}, {"role": "assistant", "content": answer}]
    assert turns[1]["ids"] == tokenizer.encode_chat([*messages, {"role": "user", "content": "and?"}])


def test_another_module_takes_the_kept_texts_and_times_some_turns_only(folder: Path) -> None:
    first = decode(folder)["turns"]
    second = decode(folder, "chain", plain_turns=1)["turns"]
    assert [turn["ids"] for turn in second] == [turn["ids"] for turn in first]
    assert [turn["plain"]["tokens"] for turn in second] == [turn["plain"]["tokens"] for turn in first]
    assert [turn["plain"]["decode_seconds"] is None for turn in second] == [False, True, True, True]
    told = summary(second)["all"]
    assert told["plain"]["turns"] == 1
    assert told["speed_up"]["turns"] == 1
    assert told["speed_up_by_rates"] > 0


def test_a_prompt_that_does_not_fit_is_skipped_and_named(folder: Path) -> None:
    found = decode(folder, overrides=("runtime.max_sequence_length=48",))
    assert found["skipped"]
    assert len(found["turns"]) + len(found["skipped"]) <= 4


@pytest.mark.parametrize("place", [0, 7, NEW - 1])
def test_a_planted_token_is_found_with_its_gap(folder: Path, place: int) -> None:
    turn = decode(folder)["turns"][0]
    session = modules.opened(*tiny(folder))
    plain = turn["plain"]["tokens"]
    wrong = [*plain]
    wrong[place] = (plain[place] + 1) % 200
    found = along.differences(session, "x", 0, turn["ids"], (plain, wrong), NEW, None)
    assert (found[0].position, found[0].plain, found[0].speculative) == (place, plain[place], wrong[place])
    assert not found[0].allowed
    assert found[0].gap >= found[0].margin > found[0].bound
    # The logits again, by plain decoding from the start.
    ids = torch.tensor([[*turn["ids"], *plain[:place]]])
    module: Any = session.module
    with torch.no_grad():
        logits = module.prefill(session.decoder.weights, module.init_state(1), ids, torch.tensor([ids.shape[1]]))[1][0]
    assert found[0].gap == pytest.approx(float(logits[plain[place]] - logits[wrong[place]]), abs=1e-5)
    # With a bound above the gap it would be rounding.
    allowed = along.differences(session, "x", 0, turn["ids"], (plain, wrong), NEW, found[0].gap + 1)
    assert allowed[0].allowed


def test_positions_after_a_difference_are_tested_too(folder: Path) -> None:
    turn = decode(folder)["turns"][0]
    session, plain = modules.opened(*tiny(folder)), turn["plain"]["tokens"]
    wrong = [(token + 1) % 200 if place in (3, 9) else token for place, token in enumerate(plain)]
    found = along.differences(session, "x", 0, turn["ids"], (plain, wrong), NEW, None)
    ids: Any = [*turn["ids"]]
    module: Any = session.module
    expected = []
    for place, token in enumerate(wrong):
        with torch.no_grad():
            state, prompt = module.init_state(1), torch.tensor([ids])
            logits = module.prefill(session.decoder.weights, state, prompt, torch.tensor([len(ids)]))[1]
        expected += [place] if int(logits.argmax()) != token else []
        ids.append(token)
    assert {3, 9} <= set(expected)
    assert [item.position for item in found] == expected


def test_a_text_that_ends_early_is_no_rounding(folder: Path) -> None:
    turn = decode(folder)["turns"][0]
    session, plain = modules.opened(*tiny(folder)), turn["plain"]["tokens"]
    found = along.differences(session, "x", 0, turn["ids"], (plain, plain[:5]), NEW, 1e9)
    assert [(item.position, item.speculative, item.allowed) for item in found] == [(5, None, False)]


def test_the_bound_of_float64_on_a_cpu_is_rounding(folder: Path) -> None:
    inputs, places = tiny(folder, "chain")
    more = {"ignore_eos": True, "prompts": [[1, 2, 3], [4, 5]], "count": 3, "positions": 90}
    found = bound_cell(inputs | more, places)
    assert found["positions"] == 96
    assert found["max_logit_difference"] < 1e-9
    assert found["flips"] == 0


def test_the_stages_of_a_step(folder: Path) -> None:
    inputs, places = tiny(folder)
    found = stage_cell(inputs | {"ids": [1, 2, 3], "max_new_tokens": 6}, places)
    assert sum(found["shares"].values()) == pytest.approx(1, abs=1e-3)
    assert set(found["us"]) == {*STAGES, "step", "plain"}


def test_a_module_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, places = tiny(folder, "none")
    assert compile_cell(inputs, places)["bytes"] > 0
    monkeypatch.setattr(modules, "compile_spec", lambda *_, **__: pytest.fail("compiled again"))
    assert warm_cell(inputs, places)["seconds"] >= 0


SETS = ("mt-bench/81", "mt-bench/81/2", "humaneval/79", "humaneval/80", "gsm8k/7")


def test_turns_belong_to_sets() -> None:
    def names(name: str) -> list[str]:
        return [turn for turn in SETS if in_set({"name": turn}, name)]

    assert names("eagle-pangu") == ["mt-bench/81", "mt-bench/81/2", "humaneval/79"]
    assert names("humaneval") == ["humaneval/79", "humaneval/80"]
    assert names("humaneval-rest") == ["humaneval/80"]
    assert names("gsm8k") == ["gsm8k/7"]
    assert names("all") == list(SETS)


@given(st.lists(st.integers(0, 3), max_size=60))
def test_repeated_share_counts_what_stood_before(tokens: list[int]) -> None:
    seen: set[tuple[int, ...]] = set()
    again = count = 0
    for place in range(len(tokens) - 7):
        piece = tuple(tokens[place : place + 8])
        again, count = again + (piece in seen), count + 1
        seen.add(piece)
    assert repeated_share(tokens) == pytest.approx(again / count if count else 0)
    assert is_looping(tokens) == (count > 0 and again / count >= 0.05)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.floats(0, 1))
def test_percentiles_are_ordered_and_within(values: list[float], share: float) -> None:
    assert min(values) <= percentile(values, share) <= max(values)
    assert percentile(values, 0) == min(values)
    assert percentile(values, 1) == max(values)


COUNTS = st.integers(1, 300)
SECONDS = st.floats(0.01, 10)


@given(st.lists(st.builds(Paired, COUNTS, SECONDS, COUNTS, SECONDS), min_size=1, max_size=20))
def test_the_headline_lies_among_the_turns_and_scales_with_time(turns: list[Paired]) -> None:
    found = speed_up(turns)
    assert found is not None
    slower = [Paired(t.plain_tokens, 2 * t.plain_seconds, t.speculative_tokens, t.speculative_seconds) for t in turns]
    twice = speed_up(slower)
    assert twice is not None
    for name in ("headline", "mean", "p50", "p90", "p99"):
        assert getattr(twice, name) == pytest.approx(2 * getattr(found, name))
    if len({(t.plain_tokens, t.speculative_tokens) for t in turns}) == 1 == len({t.plain_seconds for t in turns}):
        assert min(t.ratio for t in turns) <= found.headline * 1.000001
    assert found.p50 <= found.p90 <= found.p99 <= max(t.ratio for t in turns) * 1.000001


def test_turns_without_steps_do_not_count() -> None:
    assert speed_up([Paired(0, 0.0, 0, 0.0)]) is None
    one = {"plain": {"tokens": [1], "decode_seconds": 0.0}, "speculative": {"tokens": [1], "decode_seconds": 0.0}}
    pair = paired(one)
    assert pair is not None
    assert pair.ratio == 0
    assert not looping(one)
