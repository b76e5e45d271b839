"""Recipes, readers, contamination, the split, the prepared folder."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from specc.diagnostics import DiagnosticError
from specc.train.bpe import END_ID, train_tokenizer
from specc.train.corpus import build_corpus, forbidden_ngrams, shares_ngram, split
from specc.train.dataset import Dataset, Tokens, domain_stream, load_dataset, prepare
from specc.train.readers import Document
from specc.train.recipe import Recipe, Source, builtin_recipe, load_recipe
from tests.unit.disk_fixtures import files_up_to

THIRTEEN = "one two three four five six seven eight nine ten eleven twelve thirteen"


def source(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "domain": "code",
        "reader": "python",
        "path": name,
        "licence": "MIT",
        "version": "1",
        "origin": "a test",
        **more,
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Python files, word problems, a book, test prompts."""
    (tmp_path / "lib" / "tests").mkdir(parents=True)
    for number in range(12):
        text = f'def function_{number}(x):\n    """Add {number}."""\n    return x + {number}\n' * 3
        (tmp_path / "lib" / f"m{number}.py").write_text(text, encoding="utf-8")
    (tmp_path / "lib" / "copy.py").write_bytes((tmp_path / "lib" / "m0.py").read_bytes())
    (tmp_path / "lib" / "tests" / "test_x.py").write_text("assert 1 + 1 == 2  # left out\n" * 9, encoding="utf-8")
    (tmp_path / "lib" / "table.py").write_text("x = [" + "12345, " * 100 + "]\n", encoding="utf-8")
    (tmp_path / "lib" / "latin.py").write_bytes(b"# caf\xe9\n" * 20)
    (tmp_path / "lib" / "leak.py").write_text(f"# {THIRTEEN.upper()}!\nprint('leak')\n", encoding="utf-8")
    rows = [{"question": f"What is {n} + {n}?" + " Think." * 9, "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}"}
            for n in range(30)]  # fmt: skip
    data = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(data.encode()))
    (tmp_path / "test.jsonl").write_text(json.dumps({"turns": ["Say " + THIRTEEN]}) + "\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def recipe(root: Path) -> Recipe:
    content = {
        "name": "demo",
        "held_out_bytes": 100,
        "test_prompts": ["test.jsonl"],
        "sources": [
            source("lib", exclude=["*/tests/*"]),
            source("problems", domain="maths", reader="question-answer", path="train.jsonl.gz"),
        ],
    }
    path = root / "recipe.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return load_recipe(path)


def test_corpus_of_a_recipe(root: Path, recipe: Recipe) -> None:
    corpus = build_corpus(recipe, root)
    names = {document.name for document in corpus.train + corpus.held_out}
    assert names == {f"lib/m{n}.py" for n in range(1, 12)} | {"lib/copy.py"} | {f"problems/{n:05}" for n in range(30)}
    count = corpus.counts["lib"]
    assert (count.documents, count.copies, count.contaminated) == (12, 1, 1)
    assert {document.domain for document in corpus.held_out} == {"code", "maths"}
    assert not {d.name for d in corpus.train} & {d.name for d in corpus.held_out}
    problem = next(d for d in corpus.train + corpus.held_out if d.name == "problems/00003")
    assert problem.text.endswith("\nAnswer: 3+3=6\n")
    assert build_corpus(recipe, root) == corpus


def test_books_lose_their_header(tmp_path: Path) -> None:
    book = "# Title: X\n\n## Author: Y\n\n## Year: 1815\n\n-------\n\n" + "## I\n\n\n\n" + "Text of the book. \n" * 9
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.md").write_text(book, encoding="utf-8")
    books = Source("b", "prose", "book", "b", "public domain", "1", "a test")
    corpus = build_corpus(Recipe("books", (books,)), tmp_path)
    assert corpus.train[0].text == "## I\n\n" + "Text of the book.\n" * 9


@given(before=st.text(max_size=20), after=st.text(max_size=20), cut=st.integers(1, 12))
def test_thirteen_words_count_and_twelve_do_not(before: str, after: str, cut: int) -> None:
    forbidden = forbidden_ngrams([THIRTEEN])
    words = THIRTEEN.split()
    assert shares_ngram(f"{before} {' ,'.join(words).upper()} {after}", forbidden)
    assert not shares_ngram(" ".join([*words[:cut], "other", *words[cut:]]), forbidden)


@given(
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=30),
    share=st.floats(0.01, 0.4),
    at_least=st.integers(0, 2000),
)
def test_split_is_a_partition_by_name(sizes: list[int], share: float, at_least: int) -> None:
    documents = [Document(f"d{n}", "xy"[n % 2], "a" * size) for n, size in enumerate(sizes)]
    train, held_out = split(documents, share, at_least)
    assert sorted(d.name for d in (*train, *held_out)) == sorted(d.name for d in documents)
    assert split(documents[::-1], share, at_least) == (train, held_out)
    for domain in "xy":
        mine = [d for d in documents if d.domain == domain]
        if len(mine) > 1:
            assert [d for d in held_out if d.domain == domain]
        if mine:
            assert [d for d in train if d.domain == domain]


@given(st.text(max_size=60))
def test_tokenizer_loses_nothing(text: str) -> None:
    tokenizer = _tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if "<|endoftext|>" not in text:
        assert tokenizer.decode(ids) == text
        assert END_ID not in ids
    assert tokenizer.encode(text).ids == [END_ID, *ids]


_KNOWN: list[Any] = []


def _tokenizer() -> Any:
    if not _KNOWN:
        _KNOWN.append(train_tokenizer(iter(["def f(x):\n    return x + 12\n" * 5]), 300))
    return _KNOWN[0]


def _text(data: Dataset, tokens: Tokens) -> bytes:
    """Training tokens as text."""
    tokenizer = tokenizers.Tokenizer.from_file(str(data.folder / "tokenizer.json"))
    return str(tokenizer.decode(tokens.tolist())).encode()


def test_prepared_folder_is_whole_or_absent(root: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "corpus"

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("specc.train.dataset.held_out_arrays", fail)
        with pytest.raises(KeyboardInterrupt):
            prepare(recipe, root, folder, 300)
    assert not folder.exists()
    assert not list(root.glob(".corpus*"))
    data = prepare(recipe, root, folder, 300)
    assert int((data.train == END_ID).sum()) == data.facts["train_documents"] + 1
    assert data.train.max() < data.vocab_size
    assert sum(map(len, data.held_out.documents())) == data.held_out.tokens.size
    assert b"def " in _text(data, domain_stream(data, 0))
    assert b"Question" not in _text(data, domain_stream(data, 0))
    problems = domain_stream(data, 1)
    assert _text(data, problems).count(b"Question:") == int((problems == END_ID).sum()) - 1
    assert data.train.size + 1 == problems.size + domain_stream(data, 0).size
    again = load_dataset(folder)
    np.testing.assert_array_equal(again.train, data.train)
    assert again.facts == data.facts


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no data recipe"),
        ("[]", "expected a JSON object"),
        ('{"name": "x"}', "lacks the key 'sources'"),
        ('{"name": "x", "sources": []}', "it has no sources"),
        (json.dumps({"name": "x", "sources": [source("a", reader="pickle")]}), "there is no reader 'pickle'"),
        (json.dumps({"name": "x", "sources": [source("a", path="../a")]}), "must lie inside the data folder"),
        (json.dumps({"name": "x", "sources": [source("a", path="/etc")]}), "must lie inside the data folder"),
        (json.dumps({"name": "x", "sources": [source("a")], "held_out_share": 0.9}), "between 0 and 0.5"),
        (json.dumps({"name": "x", "sources": [source("a", other=1)]}), "unexpected keyword argument"),
    ],
)
def test_malformed_recipes_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DiagnosticError, match=message) as caught:
        load_recipe(path)
    assert [finding.code for finding in caught.value.diagnostics] == ["SPC470"]


def test_absent_sources_are_named_with_their_origin(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        prepare(recipe, tmp_path / "empty", tmp_path / "corpus", 300)
    assert [finding.code for finding in caught.value.diagnostics] == ["SPC471"] * 3


def test_the_builtin_recipe_needs_no_data() -> None:
    (stdlib,) = builtin_recipe().sources
    assert (stdlib.folder(Path("nowhere")) / "json" / "__init__.py").is_file()


def test_a_folder_that_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError, match="is no prepared corpus"):
        load_dataset(tmp_path)


def test_a_full_disk_leaves_no_half_corpus(recipe: Recipe, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "corpus"
    with files_up_to(4096), pytest.raises(DiagnosticError) as caught:
        prepare(recipe, root, folder, 300)
    (found,) = caught.value.diagnostics
    assert found.code == "SPC460"
    assert str(folder) in found.message
    assert found.help
    assert list(folder.parent.iterdir()) == []
    assert prepare(recipe, root, folder, 300).facts["train_documents"] > 0
