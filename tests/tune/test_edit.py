"""Edits of a spec's text: the keys change, everything else stays as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.spec import load, loads
from specc.tune.edit import NotEditable, edited, rewritten, with_header
from specc.tune.variants import Source, Tree
from tests import run_support as support

SPECS = Path(__file__).resolve().parents[2] / "specs"
TUNABLE = ("gdn-15m-tree", "smollm2-dynamic-tree", "smollm2-static-tree", "smollm2-prompt-lookup", "pangu-chain")
TREES = st.one_of(
    st.builds(lambda n: Tree("chain", n, n, 1), st.integers(1, 9)),
    st.builds(lambda n, d, k: Tree("dynamic", n, d, k), st.integers(4, 9), st.integers(2, 4), st.integers(3, 4)),
    st.just(Tree("static", 4, 2, 2, ((0,), (1,), (0, 0), (0, 1)))),
)


def comments(text: str) -> list[str]:
    return [line.partition("#")[2] for line in text.splitlines() if "#" in line]


@pytest.mark.parametrize("name", TUNABLE)
def test_a_written_spec_is_the_tuned_one_and_keeps_its_comments(name: str) -> None:
    source = Source.read(SPECS / f"{name}.yaml", [])

    @settings(max_examples=8, deadline=None, database=None)
    @given(TREES)
    def check(tree: Tree) -> None:
        if tree.kind == "static" and source.loaded.spec.draft.method == "prompt_lookup":
            return
        text = source.path.read_text(encoding="utf-8")
        wanted = source.with_tree(tree)
        changes = tree.settings(source.loaded)
        made, same = rewritten(text, source.path, wanted, changes)
        assert same
        assert loads(made, str(source.path)).spec == wanted.spec
        # Only lines of keys that go away take their comment along.
        gone = [line for line in text.splitlines() if line.strip().startswith(("prune:", "choices:"))]
        assert [line for line in comments(text) if line not in comments("\n".join(gone))] == [
            line for line in comments(made) if line not in comments("\n".join(gone))
        ]
        drafted = {"tree", "num_speculative_tokens", "num_steps", "top_k", "choices", "prune"}
        before, after = yaml.safe_load(text), yaml.safe_load(made)
        for section in before:
            if section not in ("draft", "commit"):
                assert before[section] == after[section]
        kept = {key: value for key, value in before["draft"].items() if key not in drafted}
        assert kept == {key: value for key, value in after["draft"].items() if key not in drafted}

    check()


BLOCK = """\
a:
  x: 1      # one
  list:
    - [0]
    - [1]   # two
  y: 2
# behind
b: {p: 1, q: 2}  # flow
"""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"a.x": 7}, BLOCK.replace("x: 1 ", "x: 7 ")),
        ({"a.x": None}, BLOCK.replace("  x: 1      # one\n", "")),
        ({"a.y": None}, BLOCK.replace("  y: 2\n", "")),
        ({"a.z": [[0]]}, BLOCK.replace("  y: 2\n", "  y: 2\n  z: [[0]]\n")),
        ({"a.list": [[3]]}, BLOCK.replace("list:\n    - [0]\n    - [1]   # two", "list: [[3]]   # two")),
        ({"b.p": None}, BLOCK.replace("p: 1, ", "")),
        ({"b.q": None}, BLOCK.replace(", q: 2", "")),
        ({"b.r": "word"}, BLOCK.replace("q: 2", "q: 2, r: word")),
        ({"c": {"k": 1.5}}, BLOCK + "c: {k: 1.5}\n"),
        ({"none": None}, BLOCK),
    ],
)
def test_an_edit_touches_one_entry(changes: dict[str, object], expected: str) -> None:
    assert edited(BLOCK, changes) == expected


def test_text_that_cannot_be_edited_in_place_is_written_anew() -> None:
    for text in ("a: &x {k: 1}\nb: *x\n", "b: 3\n"):
        with pytest.raises(NotEditable):
            edited(text, {"b.k": 2})
    source = Source.read(SPECS / "smollm2-prompt-lookup.yaml", [])
    wanted = source.with_tree(Tree("chain", 3, 3, 1))
    text, same = rewritten("draft: 3\n", SPECS / "x.yaml", wanted, {"draft.tree": "chain"})
    assert not same
    assert loads(text, "x.yaml").spec == wanted.spec


def test_the_header_stands_behind_the_line_that_editors_read() -> None:
    text = (SPECS / "gdn-15m-tree.yaml").read_text(encoding="utf-8")
    made = with_header(text, ["one", "two"])
    assert made.splitlines()[:3] == [text.splitlines()[0], "# one", "# two"]
    assert made.splitlines()[3:] == text.splitlines()[1:]
    assert loads(made, "x.yaml", base=SPECS).spec == load(SPECS / "gdn-15m-tree.yaml").spec
    assert with_header("a: 1\n", ["x"]) == "# x\na: 1\n"


def test_a_spec_written_elsewhere_finds_its_checkpoint(tmp_path: Path) -> None:
    source, model = tmp_path / "specs", support.write_model(tmp_path)
    source.mkdir()
    path = source / "a.yaml"
    path.write_text(
        "specc: 1\nname: a\ntarget: {family: llama, checkpoint: ..}  # the folder above\n"
        "draft: {method: prompt_lookup, tree: chain, num_speculative_tokens: 4}\ncommit: {kv: length}\n"
        "runtime: {max_sequence_length: 128}\n",
        encoding="utf-8",
    )
    spec = Source.read(path, ["runtime.max_sequence_length=64"])
    tree = Tree("dynamic", 5, 3, 2)
    output = tmp_path / "deep" / "er" / "b.yaml"
    output.parent.mkdir(parents=True)
    settings = {"runtime.max_sequence_length": 64, **tree.settings(spec.loaded)}
    text, same = rewritten(path.read_text(encoding="utf-8"), output, spec.with_tree(tree), settings)
    output.write_text(text, encoding="utf-8")
    made = load(output)
    assert same
    assert "# the folder above" in text
    assert made.target_folder is not None
    assert made.target_folder.resolve() == model.resolve()
    assert made.spec.commit.kv == "path_index"  # `length` is for chains only
    assert made.spec.runtime.max_sequence_length == 64
