"""What the demonstration demands of its runs, on made-up reports."""

from __future__ import annotations

from typing import Any

import pytest

from specc.bench.demo import MODES, Mode, excerpt, repetitive_acceptance, shortcomings, table
from specc.runtime.prompts import demo_prompts

LOOKUP, TREE = MODES[0], MODES[3]


def report(*, steps: int = 5, branches: int = 20, differences: int = 0, prompts: int = 7) -> dict[str, Any]:
    """A run of 11 tokens per prompt in `steps` steps."""
    requests = [
        {"name": prompt.name, "tokens": list(range(11)), "metrics": {"steps": steps if prompt.repetitive else 10}}
        for prompt in demo_prompts()[:prompts]
    ]
    return {
        "requests": requests,
        "metrics": {"tokens": 77, "acceptance_length": 1.7, "tokens_per_second": 20.0, "branch_steps": branches},
        "lossless": {"differences": [{}] * differences, "plain_tokens_per_second": 16.0},
    }


def test_the_demonstration_has_what_it_is_about() -> None:
    assert len(demo_prompts()) >= 5
    assert {"chat", "code", "summary", "arithmetic", "list"} <= {prompt.name for prompt in demo_prompts()}
    assert [mode.lookup for mode in MODES].count(True) >= 1
    assert {mode.spec for mode in MODES if mode.branches} == {"smollm2-static-tree", "smollm2-dynamic-tree"}
    assert all("simulated" in mode.title for mode in MODES if "--draft-model" in mode.options)


@pytest.mark.parametrize("mode", [LOOKUP, TREE])
def test_a_good_run_has_no_shortcomings(mode: Mode) -> None:
    assert repetitive_acceptance(mode, report()) == 2.0
    assert shortcomings(mode, 0, report()) == []


@pytest.mark.parametrize(
    ("mode", "code", "found", "expected"),
    [
        (LOOKUP, 3, None, "exit code 3 and no report"),
        (LOOKUP, 1, report(), "exit code 1"),
        (LOOKUP, 0, report(differences=1), "1 tokens differ"),
        (LOOKUP, 0, report(steps=7), "acceptance_length 1.43 on the repetitive prompts"),
        (LOOKUP, 0, report(prompts=4), "only 4 prompts"),
        (TREE, 0, report(branches=19), "19 steps accept a branch"),
    ],
)
def test_every_shortcoming_is_named(mode: Mode, code: int, found: dict[str, Any] | None, expected: str) -> None:
    (text,) = shortcomings(mode, code, found)
    assert text.startswith(mode.title)
    assert expected in text


def test_the_table_has_one_aligned_line_per_mode() -> None:
    lines = table([(LOOKUP, report()), (TREE, report(differences=12))]).split("\n")
    assert len({len(line) for line in lines}) == 1
    assert lines[2].split()[-6:] == ["12", "1.70", "2.00", "20", "16.0", "20.0"]


def test_the_excerpt_takes_telling_lines_of_verify_only() -> None:
    lines = ["  %mask: b = specc.ancestor_mask(%a, %b)  # keys: x", "  %c: i64 = aten.add(%a, 1)"]
    loop = "  %layers: (f32[B], f32[B]) = loop layer trip=30 carried=[%x] sliced=[] @body {  # passes: y"
    text = "\n".join(["graph draft {", lines[0], "}", "", "graph verify {", *lines, loop, "}", ""])
    assert excerpt("\n" + text) == ["  %mask: b = specc.ancestor_mask(%a, %b)", "  %layers = loop layer trip=30"]
