"""Every verify schedule with every commit of recurrent states decodes token for token what plain decoding does.

A small random model in float32, drafts simulated: the plain text with planted errors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from specc.bench import lossless_matrix
from specc.bench.lossless_matrix import BRANCH_SHARE, CELLS, Cell
from specc.bench.planted_decoding import CellResult, decode_planted
from specc.diagnostics import DiagnosticError
from specc.spec import load
from tests.properties.recurrent_bench import (
    VOCABULARY,
    Compiled,
    compiled,
    delta_config,
    hybrid_config,
    spec_text,
)
from tests.run_support import write_model

TOKENS = 48
TREE = "{method: prompt_lookup, tree: dynamic, num_speculative_tokens: 9, num_steps: 4, top_k: 3}"
DELTA = delta_config(3, 2, 4, 8, 1)
HYBRID = hybrid_config("ddadda")
QUICK = (Cell("tree", "factors-windowed"), Cell("serial", "snapshots"), Cell("hybrid", "factors-deferred"))
LATIN = (Cell("tree", "factors-windowed"), Cell("serial", "replay"), Cell("hybrid", "snapshots"))


def text_of(cell: Cell, target: str) -> str:
    """The cell's spec."""
    commit = ", ".join(f"{key.removeprefix('commit.')}: {value}" for key, value in _pairs(cell) if "commit" in key)
    verify = f"verify: {{recurrence: {cell.schedule}}}"
    return spec_text(target, TREE, f"{{{commit}}}", verify, dtype="float32", length=96)


def _pairs(cell: Cell) -> list[Sequence[str]]:
    return [item.split("=") for item in cell.overrides]


def prompts() -> list[list[int]]:
    """Four prompts, one of a single token."""
    rng = Random(7)
    return [[rng.randrange(VOCABULARY) for _ in range(size)] for size in (9, 1, 5, 17)]


def plain_texts(made: Compiled, count: int) -> list[list[int]]:
    """Plain greedy decoding by the module's own decode step."""
    decoder = made.module.Decoder(made.weights)
    texts = [[token] for token in decoder.start(prompts(), count)]
    while not bool(decoder.state.finished.all()):
        for text, new in zip(texts, decoder.plain_step(), strict=True):
            text += new
    return texts


def decoded(made: Compiled, plain: list[list[int]] | None = None) -> CellResult:
    """The four prompts with planted drafts."""
    plain = plain or plain_texts(made, TOKENS + made.spec.depth)
    return decode_planted(made.module, made.weights, made.spec, prompts(), plain, TOKENS)


def check(cell: Cell, target: str) -> None:
    result = decoded(compiled(text_of(cell, target)))
    assert result.differences == []
    assert result.tokens == 4 * TOKENS
    assert result.branch_share >= BRANCH_SHARE, result.summary
    assert result.nothing > 0
    assert result.accepted > result.steps


@pytest.mark.parametrize("cell", QUICK, ids=lambda cell: cell.name)
def test_some_cells_are_lossless(cell: Cell) -> None:
    check(cell, DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell not in QUICK], ids=lambda cell: cell.name)
def test_cell_is_lossless(cell: Cell) -> None:
    check(cell, DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("cell", LATIN, ids=lambda cell: cell.name)
def test_hybrid_is_lossless(cell: Cell) -> None:
    check(cell, HYBRID)


def command(folder: Path, tokens: int = 12) -> list[str]:
    """`specc bench lossless-matrix` on a tiny model, one cell."""
    (folder / "prompts.txt").write_text("one\nand two\nthree times\n", encoding="utf-8")
    words = ["--model", str(folder), "--prompts", str(folder / "prompts.txt"), "--spec", str(folder / "spec.yaml")]
    words += ["--tokens", str(tokens), "--only", "serial x factors-windowed", "-o", str(folder / "out.json")]
    return words


def test_command_keeps_cells_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = DELTA.replace(f"vocab_size: {VOCABULARY}", "vocab_size: 258")
    (tmp_path / "spec.yaml").write_text(spec_text(target, TREE, "{state: factors}", length=96), encoding="utf-8")
    geometry = load(tmp_path / "spec.yaml").spec.target.geometry
    write_model(tmp_path, geometry=geometry)
    assert lossless_matrix.main(command(tmp_path)) == 0
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["done"], report["passed"], report["of"]) == (1, 1, 20)
    cell = report["cells"][0]
    assert (cell["name"], cell["tokens"], cell["differences"]) == ("serial x factors-windowed", 36, [])
    with monkeypatch.context() as patch:
        patch.setattr(lossless_matrix, "open_session", None)  # nothing is compiled or decoded again
        assert lossless_matrix.main(command(tmp_path)) == 0
        with pytest.raises(TypeError):
            lossless_matrix.main(command(tmp_path, 13))
    cell["plain_differences"] = 1
    (tmp_path / "out.json").write_text(json.dumps(report), encoding="utf-8")
    assert lossless_matrix.main(command(tmp_path)) == 1


def test_matrix_is_complete() -> None:
    assert len(CELLS) == 20
    assert len({text_of(cell, DELTA) for cell in CELLS}) == 20


def test_a_wrong_token_is_counted_and_decoding_goes_on() -> None:
    """A fault in the module gives differences, each once; what follows is compared from the plain text on."""
    made = compiled(text_of(QUICK[0], DELTA))
    plain = plain_texts(made, TOKENS + made.spec.depth)
    changed = [list(text) for text in plain]
    changed[2][11] = (changed[2][11] + 1) % VOCABULARY
    result = decoded(made, changed)
    assert result.differences
    assert {item.request for item in result.differences} == {2}
    assert result.differences[0].position == 11
    assert not result.differences[0].allowed
    assert result.tokens == 4 * TOKENS


@pytest.mark.parametrize("text", ["{", "[]", '{"settings": {}}', '{"cells": [{}]}'])
def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "out.json").write_text(text, encoding="utf-8")
    with pytest.raises(DiagnosticError) as caught:
        lossless_matrix.main(command(tmp_path))
    assert [item.code for item in caught.value.diagnostics] == ["SPC460"]
    assert (tmp_path / "out.json").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("words", ["--only nonsense", "--limit 0", "--tokens 0"])
def test_a_run_that_would_show_nothing_is_refused(tmp_path: Path, words: str) -> None:
    with pytest.raises(SystemExit) as left:
        lossless_matrix.main([*command(tmp_path), *words.split()])
    assert left.value.code == 2
