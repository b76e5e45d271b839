"""legalize-ascend: the same results before and after, step by step, over all shipped specs in small geometries."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.ir.parser import parse_program
from specc.ir.printer import print_program
from specc.passes.legalize_ascend import illegal
from tests.passes.npu_steps import LONGEST, SPECS, Pair, Twins, pair, prefill, speculate

NAMES = [path.stem for path in SPECS]
Changes = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]


def changed(**sections: dict[str, Any]) -> Changes:
    """Changes of a spec's sections, in a form that can be cached by."""
    return tuple((section, tuple(keys.items())) for section, keys in sections.items())


VARIATIONS = [
    ("smollm2-dynamic-tree", changed(commit={"update": "immediate"})),
    ("smollm2-static-tree", changed(commit={"update": "deferred"})),
    ("eagle-pangu", changed(commit={"update": "immediate"}, verify={"attention": "eager"})),
    ("smollm2-rejection", changed(commit={"update": "deferred"})),
    ("qwen3-next-hybrid", changed(commit={"window": 6})),
    ("qwen3-next-hybrid", changed(commit={"update": "immediate", "window": None})),
    ("pangu-chain", changed(commit={"kv": "path_index", "update": "deferred"})),
]


def walk(twins: Twins, random: Random, steps: int) -> None:
    """A prompt, then steps, with a continued prompt, a plain step or a flush among them."""
    prefill(twins, random, least=1)
    twins.set(remaining=torch.tensor([random.choice([3, 9, 99]) for _ in range(twins.batch)]))
    for _ in range(steps):
        extra = random.choice(["", "", "prefill", "decode", "flush"])
        if extra == "prefill":
            prefill(twins, random)
        elif extra and (extra != "decode" or "recent_count" not in twins.state):
            twins.run(extra, {})
        speculate(twins, random)


def fill(twins: Twins, random: Random) -> None:
    """Steps until every row is as long as a sequence may be; nothing but that ends a row."""
    for _ in range(5):
        prefill(twins, random, least=5)
    while bool((twins.state["length"] < LONGEST).any()):
        twins.set(finished=twins.state["length"] >= LONGEST)
        speculate(twins, random)
    prefill(twins, random)
    speculate(twins, random)


@pytest.mark.parametrize("name", NAMES)
@given(random=st.randoms())
@settings(max_examples=1)
def test_steps_give_the_same_before_and_after(name: str, random: Random) -> None:
    walk(Twins(pair(name), random.randint(1, 3)), random, 2)


@pytest.mark.parametrize("name", ["eagle-pangu", "smollm2-dynamic-tree", "pangu-chain"])
@given(random=st.randoms())
@settings(max_examples=1)
def test_steps_give_the_same_up_to_a_full_cache(name: str, random: Random) -> None:
    fill(Twins(pair(name), 2), random)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(random=st.randoms())
@settings(max_examples=10)
def test_longer_walks_give_the_same(name: str, random: Random) -> None:
    walk(Twins(pair(name), random.randint(1, 3)), random, 5)
    fill(Twins(pair(name), random.randint(1, 2)), random)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "changes"), VARIATIONS, ids=[f"{name} {changes}" for name, changes in VARIATIONS])
@given(random=st.randoms())
@settings(max_examples=6)
def test_other_commits_give_the_same(name: str, changes: Changes, random: Random) -> None:
    walk(Twins(pair(name, changes), random.randint(1, 3)), random, 4)


@pytest.mark.parametrize("name", NAMES)
def test_the_form_is_legal_and_its_text_reads_back(name: str) -> None:
    both: Pair = pair(name)
    assert illegal(both.after) == []
    text = print_program(both.after)
    assert print_program(parse_program(text)) == text
    left = ("tree_attention", "causal_attention", "specc.rope(", "aten.rms_norm")
    assert not [line for line in text.splitlines() for op in left if op in line]
