"""The bigram drafter: tables counted from text and the trees drafted from them, against brute force."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from specc.check.plain_bigram import PlainBigram, random_tables
from specc.diagnostics import DiagnosticError
from specc.ir.interpreter import init_state, run_step
from specc.lower.assemble import lower
from specc.models.bigram import NEXT_LOG_PROB, NEXT_TOKEN, BigramGeometry, bigram_config, read_bigram, table_faults
from specc.testing import DraftTree, dynamic_tree, static_tree
from specc.testing.invariants import check_distinct_siblings
from specc.train.draft.bigram import STRENGTH, Bigram, build_bigram, write_bigram
from specc.train.draft.store import pack
from tests.unit.decoding_fixtures import VOCABULARY, Decoding, plain_greedy, small_spec, target_weights
from tests.unit.test_drafts_model import PROMPTS, SHAPES, drafted, reference_tree

CANDIDATES = 6
GEOMETRY = BigramGeometry(VOCABULARY, CANDIDATES)
METHOD = {"method": "bigram", "config": {"candidates_per_token": CANDIDATES}}


@st.composite
def counted(draw: st.DrawFn) -> tuple[list[list[int]], list[int], int, int]:
    """Texts, their prompts' lengths, V and K; some token is written by the target."""
    size = draw(st.integers(2, 9))
    token = st.integers(0, size - 1)
    texts = draw(st.lists(st.lists(token, min_size=2, max_size=12), min_size=1, max_size=5))
    prompts = [draw(st.integers(0, len(text) - 1)) for text in texts]
    return texts, prompts, size, draw(st.integers(1, size))


def law_by_hand(texts: Sequence[Sequence[int]], prompts: Sequence[int], size: int) -> list[list[float]]:
    """p(b | a) as the module's docstring has it, from counts of pairs."""
    pairs = Counter(
        (text[place], text[place + 1])
        for text, prompt in zip(texts, prompts, strict=True)
        for place in range(len(text) - 1)
        if place + 1 >= prompt
    )
    total = sum(pairs.values())
    overall = [(sum(n for (_, b), n in pairs.items() if b == token) + 1) / (total + size) for token in range(size)]
    followed = [sum(n for (a, _), n in pairs.items() if a == token) for token in range(size)]
    return [
        [(pairs[a, b] + STRENGTH * overall[b]) / (followed[a] + STRENGTH) for b in range(size)] for a in range(size)
    ]


def single(value: float) -> float:
    """The nearest float32."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


@given(counted())
@settings(max_examples=60, deadline=None)
def test_rows_are_the_most_probable_followers(given: tuple[list[list[int]], list[int], int, int]) -> None:
    texts, prompts, size, kept = given
    made = build_bigram(pack(texts, prompts), size, kept)
    assert (made.next_token.dtype, made.next_log_prob.dtype) == (torch.int32, torch.float32)
    assert list(table_faults(made.next_token.long(), made.next_log_prob)) == []
    for row, law in enumerate(law_by_hand(texts, prompts, size)):
        scores = [single(math.log(value)) for value in law]
        best = sorted(range(size), key=lambda token: (-scores[token], token))[:kept]
        got = made.next_log_prob[row].tolist()
        assert got == pytest.approx([scores[token] for token in best], abs=1e-6)
        # Rounding may order what is equal to 1e-6 otherwise; the scores of the tokens kept are the best all the same.
        assert [scores[token] for token in made.next_token[row].tolist()] == pytest.approx(got, abs=1e-6)
        assert sum(map(math.exp, got)) <= 1 + 1e-5


def test_a_token_that_was_never_seen_is_followed_by_the_most_frequent_ones() -> None:
    made = build_bigram(pack([[1, 2, 1, 2, 1, 3]], [1]), 6, 3)
    assert made.next_token[5].tolist() == [1, 2, 3]
    assert made.next_token[1].tolist() == [2, 3, 1]
    assert (made.texts, made.pairs, made.tokens_seen) == (1, 5, 2)


def test_what_a_prompt_says_is_not_counted() -> None:
    """The first token of the target follows the prompt's last one; that pair counts."""
    made = build_bigram(pack([[4, 4, 4, 4, 1, 0]], [4]), 5, 1)
    assert made.pairs == 2
    assert made.next_token[4].tolist() == [1]


@pytest.mark.parametrize(("texts", "prompts", "code"), [([[1, 2]], [2], "SPC476"), ([[1, 9]], [0], "SPC478")])
def test_unusable_text_is_refused(texts: list[list[int]], prompts: list[int], code: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        build_bigram(pack(texts, prompts), 5, 2)
    assert [item.code for item in caught.value.diagnostics] == [code]


def written(folder: Path, tables: tuple[Tensor, Tensor] | None = None) -> Path:
    next_token, next_log_prob = tables or random_tables(GEOMETRY, 3)
    write_bigram(folder, Bigram(next_token.to(torch.int32), next_log_prob, 1, 1, 1), {"note": "by hand"})
    return folder


def test_a_written_folder_reads_back(tmp_path: Path) -> None:
    tables = random_tables(GEOMETRY, 3)
    folder = written(tmp_path / "drafter", tables)
    assert all(torch.equal(*pair) for pair in zip(read_bigram(folder, GEOMETRY), tables, strict=True))
    assert json.loads((folder / "config.json").read_text()) == bigram_config(GEOMETRY)
    assert json.loads((folder / "recipe.json").read_text())["note"] == "by hand"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "recipe.json"]


def spoilt(name: str, tables: dict[str, Tensor]) -> dict[str, Tensor]:
    """The stored tables with one fault."""
    token, score = tables[NEXT_TOKEN], tables[NEXT_LOG_PROB]
    if name == "twice":
        token[4, 2] = token[4, 0]
    elif name in ("beyond", "negative"):
        token[1, 1] = VOCABULARY if name == "beyond" else -1
    elif name in ("above 0", "no number"):
        score[0, 0] = 0.5 if name == "above 0" else math.nan
    elif name == "unsorted":
        score[2] = score[2].flip(0) - torch.arange(CANDIDATES).flip(0)
    elif name == "half":
        score = score.half()
    else:
        token = token[:, :-1].contiguous()
    return {NEXT_TOKEN: token, NEXT_LOG_PROB: score}


FAULTS = {"twice": "SPC418", "beyond": "SPC418", "negative": "SPC418", "above 0": "SPC418", "no number": "SPC418"}
FAULTS |= {"unsorted": "SPC418", "half": "SPC409", "narrow": "SPC408"}


@pytest.mark.parametrize("fault", FAULTS)
def test_malformed_tables_are_refused(fault: str, tmp_path: Path) -> None:
    folder = written(tmp_path)
    save_file(spoilt(fault, load_file(folder / "model.safetensors")), folder / "model.safetensors")
    with pytest.raises(DiagnosticError) as caught:
        read_bigram(folder, GEOMETRY)
    assert {item.code for item in caught.value.diagnostics} == {FAULTS[fault]}


def test_a_folder_of_other_sizes_or_kind_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path)
    with pytest.raises(DiagnosticError) as caught:
        read_bigram(folder, BigramGeometry(VOCABULARY + 1, CANDIDATES - 1))
    assert [item.code for item in caught.value.diagnostics] == ["SPC410"] * 2
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 31, "candidates_per_token": 6}')
    with pytest.raises(DiagnosticError, match="model_type"):
        read_bigram(folder, GEOMETRY)


def weights_of(tables: tuple[Tensor, Tensor]) -> dict[str, Any]:
    return {f"draft_{name}": table for name, table in zip((NEXT_TOKEN, NEXT_LOG_PROB), tables, strict=True)}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_step_drafts_the_described_tree_and_keeps_the_text(shape: str) -> None:
    spec = small_spec(METHOD | SHAPES[shape])
    target, tables = target_weights(spec), random_tables(GEOMETRY, 5)
    plain = PlainBigram.of(*tables)
    decoding = Decoding.start(spec, {**target, **weights_of(tables)}, PROMPTS)
    for _ in range(3):
        roots = [text[-1] for text in decoding.texts]
        draft, _ = decoding.step()
        for row, root in enumerate(roots):
            expected = reference_tree(spec, lambda path, root=root: plain.log_probs((root, *path)[-1]), root)
            assert drafted(draft, row) == expected
    for row, prompt in enumerate(PROMPTS):
        text = decoding.texts[row]
        assert text == plain_greedy(target, spec.target.geometry, prompt, len(text) - len(prompt))


def test_the_state_holds_nothing_of_the_drafter() -> None:
    """Only the root decides what is drafted: no cache, no recent tokens, no history."""
    own, none = (lower(small_spec(draft)) for draft in (METHOD | SHAPES["chain"], {"method": "none"}))
    assert set(own.slots) == set(none.slots)


TREES = st.one_of(
    st.tuples(st.just("chain"), st.integers(1, 5), st.just(1), st.integers(1, 5)),
    st.tuples(st.just("dynamic"), st.integers(1, 4), st.integers(2, 4), st.integers(1, 9)),
)


@given(
    TREES, st.integers(0, 50), st.sampled_from([None, 0.5, 3.0]), st.lists(st.integers(0, 30), min_size=1, max_size=3)
)
@settings(max_examples=15, deadline=None)
def test_trees_equal_brute_force(
    shape: tuple[str, int, int, int], seed: int, margin: float | None, roots: list[int]
) -> None:
    """Distinct siblings, ids in range, ancestors first: all of it follows from equality with the plain tree."""
    tree, steps, top_k, tokens = shape
    capacity = top_k + (steps - 1) * top_k * top_k
    nodes = steps if tree == "chain" else min(tokens, capacity)
    prune = {"prune": {"path_log_prob_margin": margin}} if margin else {}
    draft = {"tree": tree, "num_steps": steps, "top_k": top_k, "num_speculative_tokens": nodes}
    spec = small_spec(METHOD | draft | prune)
    tables = random_tables(GEOMETRY, seed)
    plain, program = PlainBigram.of(*tables), lower(spec)
    state = init_state(program, len(roots)) | {
        "root_token": torch.tensor(roots),
        "finished": torch.tensor([False] * len(roots)),
    }
    _, results = run_step(program, "draft", state, weights_of(tables), {}, strict=True)
    for row, root in enumerate(roots):
        width = 1 if spec.is_chain else top_k
        law = lambda path, root=root: plain.log_probs((root, *path)[-1])  # noqa: E731
        wanted = dynamic_tree(law, root, spec.depth, width, nodes, margin)
        got: DraftTree = drafted(results, row)
        assert got == wanted.tree
        check_distinct_siblings(got)
        scores = [0.0 if not ok else score for ok, score in zip(got.valid, wanted.scores, strict=True)]
        own = results["log_probs"][row].tolist()
        for node in range(1, got.num_nodes):
            above = scores[got.parent[node]]
            assert scores[node] == pytest.approx(above + own[node] if got.valid[node] else 0.0, abs=1e-5)


def test_static_trees_take_the_columns_of_their_ranks() -> None:
    choices = [[1], [4], [1, 0], [4, 2], [1, 0, 5]]
    spec = small_spec(METHOD | {"tree": "static", "choices": choices})
    tables = random_tables(GEOMETRY, 11)
    program = lower(spec)
    state = init_state(program, 1) | {"root_token": torch.tensor([7]), "finished": torch.tensor([False])}
    _, results = run_step(program, "draft", state, weights_of(tables), {}, strict=True)
    plain = PlainBigram.of(*tables)
    assert drafted(results, 0) == static_tree(choices, lambda path: plain.log_probs((7, *path)[-1]), 7)
