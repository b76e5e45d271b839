"""Prompts files in the formats that people have, and the shipped demonstration set."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import tokenizers

from specc.diagnostics import DiagnosticError
from specc.runtime.prompts import demo_prompts, load_prompts
from specc.runtime.tokenizer import Tokenizer


def _jsonl(tmp_path: Path, *objects: object) -> Path:
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(json.dumps(item) for item in objects) + "\n", encoding="utf-8")
    return path


def test_the_demonstration_covers_what_it_promises() -> None:
    prompts = demo_prompts()
    assert len({prompt.name for prompt in prompts}) == len(prompts) >= 5
    assert {"chat", "code", "summary", "arithmetic", "list"} <= {prompt.category for prompt in prompts}
    assert Counter(prompt.repetitive for prompt in prompts)[True] >= 2


def test_text_files_have_one_prompt_per_line(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes("\ufeffone\r\n\n  two  \nthree\u2028still three".encode())
    assert [prompt.turns for prompt in load_prompts(path)] == [("one",), ("  two  ",), ("three\u2028still three",)]
    assert [prompt.name for prompt in load_prompts(path)] == ["p-1", "p-3", "p-4"]


def test_known_benchmark_formats_are_understood(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    path = _jsonl(
        tmp_path,
        {"prompt": "plain", "name": "a", "repetitive": True},
        {"messages": chat},
        {"question_id": 81, "category": "writing", "turns": ["first", "second"]},
        {"question": "How many?", "answer": "#### 3"},
        {
            "task_id": "HumanEval/0",
            "prompt": "def f():\n",
            "canonical_solution": "pass",
            "test": "",
            "entry_point": "f",
        },
    )
    plain, messages, bench, grade, code = load_prompts(path)
    assert (plain.name, plain.turns, plain.repetitive, plain.raw) == ("a", ("plain",), True, False)
    assert (messages.messages, messages.turns) == (tuple(chat), ())
    assert (bench.name, bench.category, bench.turns) == ("81", "writing", ("first", "second"))
    assert (grade.turns, grade.raw) == (("How many?",), False)
    assert (code.name, code.turns, code.raw) == ("HumanEval/0", ("def f():\n",), True)


def test_chats_use_the_template_and_raw_prompts_do_not(tmp_path: Path) -> None:
    vocab = {chr(code): code for code in range(128)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    tokenizer = Tokenizer(backend, (), template, {})
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    path = _jsonl(tmp_path, {"prompt": "p"}, {"prompt": "p", "raw": True}, {"messages": chat})
    texts = ["".join(chr(code) for code in prompt.first_ids(tokenizer)) for prompt in load_prompts(path)]
    assert texts == ["<user>p", "p", "<system>s<user>u"]
    assert load_prompts(path)[0].first_ids(Tokenizer(backend, (), None, {})) == [ord("p")]


def test_every_bad_line_is_reported_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    lines = [
        '{"prompt": "fine"}',
        "not json",
        '{"promt": "x"}',
        "",
        '{"prompt": ""}',
        '{"prompt": 3}',
        '{"prompt": "x", "question": "y"}',
        "[1]",
        '{"turns": []}',
        '{"messages": [{"role": "user"}]}',
        '{"prompt": "x", "repetitive": "yes"}',
        "[" * 100_000,
    ]
    path.write_text("\n".join(lines))
    with pytest.raises(DiagnosticError) as caught:
        load_prompts(path)
    found = caught.value.diagnostics
    assert {item.code for item in found} == {"SPC451"}
    assert [item.span.line for item in found if item.span] == [2, 3, 5, 6, 7, 8, 9, 10, 11, 12]


def test_many_bad_lines_are_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("x\n" * 500)
    with pytest.raises(DiagnosticError) as caught:
        load_prompts(path)
    assert len(caught.value.diagnostics) == 21
    assert "480 more" in caught.value.diagnostics[-1].message


@pytest.mark.parametrize(("content", "code"), [(None, "SPC450"), (b"\xff\xfe", "SPC450"), (b" \n\n", "SPC452")])
def test_unreadable_and_empty_files_are_diagnostics(tmp_path: Path, content: bytes | None, code: str) -> None:
    path = tmp_path / "p.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DiagnosticError) as caught:
        load_prompts(path)
    assert [item.code for item in caught.value.diagnostics] == [code]
