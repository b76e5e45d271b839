"""Whole texts by eager Ascend modules: the reference's, alone and in a batch, with drafts and without, in place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.ascend.modules import NAMES, QUICK, pair, prompts
from tests.cells import spread

TOKENS = 14
BATCHES = (1, 4)
# Both batches for a few specs, one each for the others.
CASES = [
    pytest.param(name, batch, id=f"{name}-{batch}", marks=() if name in QUICK else pytest.mark.slow)
    for number, name in enumerate(NAMES)
    for batch in (BATCHES if name in QUICK else BATCHES[number % 2 :][:1])
]


def addresses(state: Any) -> list[int]:
    """Where a state's tensors lie."""
    return [value.data_ptr() for value in state]


@pytest.mark.parametrize(("name", "batch"), CASES)
def test_text_is_the_references_and_the_state_stays_where_it_is(name: str, batch: int) -> None:
    both, texts = pair(name), prompts(batch)
    wanted = both.reference.module.Decoder(both.reference.weights, "cpu").generate(texts, TOKENS).tokens
    decoder = both.decoder()
    first = decoder.start(texts, TOKENS)
    before = addresses(decoder.state)
    tokens = [[token] for token in first]
    for _ in range(TOKENS):
        if bool(decoder.state.finished.all()):
            break
        for row, new in enumerate(decoder.step().emitted):
            tokens[row] += new
        assert addresses(decoder.state) == before
    assert tokens == wanted
    assert sum(map(len, tokens)) > batch, "something was decoded"
    if both.greedy:
        assert decoder.generate(texts, TOKENS, speculative=False).tokens == wanted
    assert addresses(decoder.state) == before, "another batch of the same size uses the same state"


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in spread(NAMES, 5)]
)
def test_a_row_does_not_depend_on_its_batch(name: str) -> None:
    both, texts = pair(name), prompts(4)
    decoder = both.decoder()
    together = decoder.generate(texts, TOKENS).tokens
    for row in (0, 3):
        assert decoder.generate([texts[row]], TOKENS, requests=[row]).tokens == [together[row]]
