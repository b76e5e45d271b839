"""Training text of drafters: what is kept out of it, what is in it, and a store that a killed run goes on from."""

from __future__ import annotations

import ast
import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from specc.diagnostics import DiagnosticError
from specc.models.geometry import gated_deltanet_geometry
from specc.runtime.tokenizer import Tokenizer
from specc.train.draft import continuations
from specc.train.draft.continuations import TextOptions, make_continuations, uniform_numbers
from specc.train.draft.generate import Generator, Limits, draw
from specc.train.draft.overlap import NGRAM_WORDS, Overlap, words_of
from specc.train.draft.prompts import TrainingPrompt, beginning_prompts, chat_frame, encode_prompts
from specc.train.draft.store import Texts, pack, read_index, read_shard, read_store, write_shard
from specc.train.draft.stubs import library_stubs, stubs_of
from specc.train.draft.targets import FrozenTarget, load_target
from tests.run_support import STOP_TOKEN, write_model

CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}<eos>\n{% endfor %}<assistant>"
TEST_QUESTION = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
TINY: dict[str, Any] = {"gsm8k": 5, "stubs": 3, "beginnings": 4, "max_new_tokens": 12, "batch": 4, "shard_texts": 4}


def write_data(folder: Path) -> Path:
    """A data folder with few questions; the third one shares 13 words with a test prompt."""
    questions = [f"how many apples are {n} apples and {n} more" for n in range(5)]
    questions[2] = "zero " + TEST_QUESTION
    for name in ("gsm8k", "humaneval", "mt_bench"):
        (folder / name).mkdir(parents=True)
    train = "".join(json.dumps({"question": text, "answer": "1"}) + "\n" for text in questions)
    (folder / "gsm8k/train.jsonl.gz").write_bytes(gzip.compress(train.encode()))
    (folder / "gsm8k/test.jsonl").write_text(json.dumps({"question": TEST_QUESTION, "answer": "2"}) + "\n")
    (folder / "humaneval/HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps({"prompt": "def f():"}).encode()))
    (folder / "mt_bench/question.jsonl").write_text(json.dumps({"turns": ["Who?", "Why?"]}) + "\n")
    return folder


class Made:
    """A tiny model, its tokenizer and options."""

    def __init__(self, folder: Path, *, chat: bool) -> None:
        self.folder = write_model(folder / "model", dtype="float32")
        if chat:
            settings = {"chat_template": CHAT, "eos_token": "<eos>"}
            (self.folder / "tokenizer_config.json").write_text(json.dumps(settings))
        self.target: FrozenTarget = load_target(self.folder, "cpu", torch.float32)
        self.tokenizer = Tokenizer.from_folder(self.folder)
        self.options = TextOptions(write_data(folder / "data"), "f1", max_prompt_tokens=1200, **TINY)

    def make(self, out: Path, **changes: Any) -> list[str]:
        lines: list[str] = []
        make_continuations(self.target, self.tokenizer, replace(self.options, **changes), out, lines.append)
        return lines


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("text"), chat=False)


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("chat"), chat=True)


WORDS = st.lists(st.sampled_from(["a", "b", "c", "Aa", "B1"]), max_size=40).map(" ".join)


@given(tests=st.lists(WORDS, max_size=3), text=WORDS)
def test_overlap_is_a_shared_run_of_13_words(tests: list[str], text: str) -> None:
    def runs(one: str) -> set[tuple[str, ...]]:
        words = words_of(one)
        return {tuple(words[i : i + NGRAM_WORDS]) for i in range(len(words) - NGRAM_WORDS + 1)}

    known = set[tuple[str, ...]]().union(*map(runs, tests))
    overlap = Overlap(tests)
    assert len(overlap) == len(known)
    assert overlap.shared_by(text) == bool(runs(text) & known)
    assert all(overlap.shared_by(f"new, {one}!") for one in tests if runs(one))


def test_a_run_with_another_word_in_it_is_not_shared() -> None:
    words = TEST_QUESTION.split()[:NGRAM_WORDS]
    overlap = Overlap([" ".join(words)])
    assert overlap.shared_by(" ".join(words))
    for place in range(NGRAM_WORDS):
        for other in ("other", words[place - 1]):
            assert not overlap.shared_by(" ".join([*words[:place], other, *words[place + 1 :]]))


def test_words_are_letters_and_digits_without_case() -> None:
    assert words_of("It's snake_case, 3.5 Über") == ["it", "s", "snake", "case", "3", "5", "über"]


@given(
    logits=st.lists(st.floats(-8, 8), min_size=1, max_size=9),
    number=st.floats(0, 1, exclude_max=True, width=32),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_drawn_token_is_the_inverse_of_the_distribution(logits: list[float], number: float, temperature: float) -> None:
    token = int(draw(torch.tensor([logits]), torch.tensor([number]), temperature)[0])
    weights = [math.exp(value / temperature) for value in logits]
    below, upto = sum(weights[:token]) / sum(weights), sum(weights[: token + 1]) / sum(weights)
    assert below - 1e-5 <= number <= upto + 1e-5


def test_draws_never_take_what_is_impossible() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]]).expand(3, -1)
    assert draw(logits, torch.tensor([0.0, 0.6, 1.0])).tolist() == [1, 3, 3]


def test_stubs_are_functions_with_a_docstring_and_nothing_else() -> None:
    stubs = library_stubs(60)
    assert stubs == library_stubs(60)
    assert len(set(stubs)) == 60
    for stub in stubs:
        (function,) = ast.parse(stub).body
        assert isinstance(function, ast.FunctionDef)
        assert len(function.body) == 1
        assert ast.get_docstring(function)
    source = 'class A:\n    def f(self, x, y=1):\n        """Do something with the x and the y."""\n        return x\n'
    (stub,) = stubs_of(source)
    assert stub == 'def f(x, y=1):\n    """ Do something with the x and the y.\n    """\n'
    assert list(stubs_of("def f(:")) == []


def test_frames_write_what_the_template_writes(made: Made, chatting: Made) -> None:
    for one, assistant in ((made, False), (chatting, True)):
        frame = chat_frame(one.tokenizer)
        assert frame is not None
        assert frame.assistant == assistant
        for texts in (("Hi there",), ("Hi", "yes\n", "Why?")):
            roles = ("user", "assistant", "user")
            messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
            prompts = [TrainingPrompt("x", texts), TrainingPrompt("x", texts, raw=True)]
            expected = [one.tokenizer.encode_chat(messages), one.tokenizer.encode(texts[0])]
            assert encode_prompts(one.tokenizer, frame, prompts) == expected


def test_beginnings_are_short_and_differ(made: Made) -> None:
    prompts = beginning_prompts(made.tokenizer, None, 50)
    assert len({prompt.messages for prompt in prompts}) > 40
    assert all(20 <= len(made.tokenizer.encode(prompt.messages[0])) <= 60 for prompt in prompts)


def rows_of(folder: Path) -> list[tuple[list[int], int]]:
    return [(ids.tolist(), length) for ids, length in read_store(folder)]


def test_texts_are_greedy_and_end_as_texts_end(made: Made, tmp_path: Path) -> None:
    made.make(tmp_path)
    index, rows = read_index(tmp_path), rows_of(tmp_path)
    assert index.counts == {"gsm8k": 4, "stubs": 3, "beginnings": 4}
    assert index.dropped == {"gsm8k": {"overlap_of_prompt": 1}}
    assert [shard["texts"] for shard in index.shards] == [4, 4, 3]
    assert sum(shard["tokens"] for shard in index.shards) == sum(len(ids) for ids, _ in rows)
    for ids, length in rows:
        logits = made.target.logits(made.target.states(torch.tensor([ids]), [])[1])[0]
        assert ids[length:] == logits[length - 1 : -1].argmax(-1).tolist()
        assert STOP_TOKEN not in ids[length:-1]
        assert len(ids) - length == 12 or ids[-1] == STOP_TOKEN


def test_prompts_are_continued_once_more_with_drawn_tokens(made: Made, tmp_path: Path) -> None:
    made.make(tmp_path / "greedy")
    made.make(tmp_path / "both", temperature=0.5)
    greedy, both, index = rows_of(tmp_path / "greedy"), rows_of(tmp_path / "both"), read_index(tmp_path / "both")
    assert both[: len(greedy)] == greedy
    assert [shard.get("temperature", 0.0) for shard in index.shards] == [0.0] * 3 + [0.5] * 3
    drawn = both[len(greedy) :]
    assert [ids[:length] for ids, length in drawn] == [ids[:length] for ids, length in greedy]
    place = other = 0
    for shard in index.shards[3:]:
        uniform = uniform_numbers(made.options.seed, f"{shard['prompts']}:{shard['from']}", shard["texts"], 12)
        for numbers in uniform:
            ids, length = drawn[place]
            logits = made.target.logits(made.target.states(torch.tensor([ids]), [])[1])[0, length - 1 : -1]
            assert ids[length:] == draw(logits, numbers[: len(ids) - length], 0.5).tolist()
            other += ids != greedy[place][0]
            place += 1
    assert other > len(greedy) // 2
    made.make(tmp_path / "both", temperature=0.5)
    assert read_index(tmp_path / "both") == index


@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_a_killed_run_goes_on(killed_at: int, made: Made, tmp_path: Path) -> None:
    made.make(tmp_path / "whole")
    said = 0

    def say(line: str) -> None:
        nonlocal said
        said += 1
        if said == killed_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_continuations(made.target, made.tokenizer, made.options, tmp_path / "killed", say)
    assert len(read_index(tmp_path / "killed").shards) == killed_at - 1
    before = rows_of(tmp_path / "killed")
    made.make(tmp_path / "killed")
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")
    assert rows_of(tmp_path / "killed")[: len(before)] == before
    assert read_index(tmp_path / "killed") == read_index(tmp_path / "whole")


def test_assistants_write_user_turns_and_second_turns(
    chatting: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuations, "USER_TURN_TOKENS", 120)
    monkeypatch.setattr(continuations, "MIN_USER_CHARACTERS", 1)
    # A random model almost never ends its turn: here all bytes do that are no printable ASCII.
    tokenizer = replace(chatting.tokenizer, stop_tokens=(*range(94, 256), STOP_TOKEN))
    options = replace(chatting.options, user_turns=40, gsm8k=1, stubs=4, second_turns=1.0)
    index = make_continuations(chatting.target, tokenizer, options, tmp_path)
    assert index.counts["user_turns"] >= 3
    assert index.counts["second_turns"] >= 1
    kinds = {shard["prompts"] for shard in index.shards}
    assert kinds == {"prompts.jsonl", "second_turns.jsonl"}
    texts = [tokenizer.decode(ids[:length], skip_special_tokens=False) for ids, length in rows_of(tmp_path)]
    assert sum(text.startswith("def ") for text in texts) == 3  # every fourth stub is a message
    assert all(text.endswith("<eos>\n<assistant>") for text in texts if not text.startswith("def "))
    assert sum(text.count("<user>") == 2 for text in texts) == index.counts["second_turns"]
    before = rows_of(tmp_path)
    make_continuations(chatting.target, tokenizer, options, tmp_path)
    assert rows_of(tmp_path) == before


def test_bounds_leave_a_whole_store(made: Made, tmp_path: Path) -> None:
    made.make(tmp_path / "no-time", max_seconds=0.0)
    assert len(read_store(tmp_path / "no-time")) == 0
    made.make(tmp_path / "few", max_tokens=1000)
    assert 0 < len(read_store(tmp_path / "few")) < 11


@pytest.mark.parametrize("changes", [{"seed": 1}, {"max_new_tokens": 9}, {"fingerprint": "f2"}])
def test_a_store_of_something_else_is_refused(changes: dict[str, Any], made: Made, tmp_path: Path) -> None:
    made.make(tmp_path, max_seconds=0.0)
    with pytest.raises(DiagnosticError) as caught:
        made.make(tmp_path, **changes)
    assert caught.value.diagnostics[0].code == "SPC478"


@pytest.mark.parametrize("absent", ["gsm8k/test.jsonl", "gsm8k/train.jsonl.gz", "mt_bench/question.jsonl"])
def test_absent_data_are_named(absent: str, made: Made, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    (data / absent).unlink()
    with pytest.raises(DiagnosticError) as caught:
        made.make(tmp_path / "out", data=data)
    assert caught.value.diagnostics[0].code == "SPC471"
    assert absent in caught.value.diagnostics[0].message


TEXTS = st.lists(st.lists(st.integers(0, 70000), max_size=6), max_size=5)


@given(texts=TEXTS)
def test_packed_texts_come_back(texts: list[list[int]]) -> None:
    lengths = [len(ids) // 2 for ids in texts]
    packed = pack(texts, lengths)
    assert [(ids.tolist(), length) for ids, length in packed] == list(zip(texts, lengths, strict=True))
    assert packed.continuation_tokens == sum(map(len, texts)) - sum(lengths)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"schema": "other"}'])
def test_a_broken_index_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_bytes(content)
    with pytest.raises(DiagnosticError) as caught:
        read_store(tmp_path)
    assert caught.value.diagnostics[0].code == "SPC478"


def test_a_shard_whose_tensors_do_not_fit_is_refused(tmp_path: Path) -> None:
    good = pack([[1, 2], [3]], [1, 1])
    for broken in (replace(good, starts=good.starts[:2]), replace(good, tokens=good.tokens[:2])):
        write_shard(tmp_path / "shard.safetensors", Texts(broken.tokens, broken.starts, broken.prompt_lengths))
        with pytest.raises(DiagnosticError) as caught:
            read_shard(tmp_path / "shard.safetensors")
        assert caught.value.diagnostics[0].code == "SPC478"


class HostReads(TorchDispatchMode):
    """Names of the operators that read a value back, or whose result has a size that depends on values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if any(part in name for part in ("_local_scalar_dense", "nonzero", "masked_select")):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def generators(made: Made) -> Iterator[Generator]:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_heads": 2, "head_dim": 8, "vocab_size": 258}
    geometry = gated_deltanet_geometry(sizes | {"expand_v": 1, "intermediate_size": 16, "tie_word_embeddings": True})
    folder = write_model(made.folder.parent / "delta", dtype="float32", geometry=geometry)
    for target in (made.target, load_target(folder, "cpu", torch.float32)):
        for sampled in (False, True):
            yield Generator(target, [STOP_TOKEN], Limits(3, 8, 8), sampled=sampled)


def test_a_step_can_be_captured(made: Made) -> None:
    """No operator of a step reads a value back, and what it changes stays where it is: what CUDA graphs ask for."""
    for generator in generators(made):
        uniform = uniform_numbers(0, "x", 2, 8)
        generator.run([[1, 2, 3], [4]], uniform)
        holders = (generator, generator.decoding)
        places = [{k: v.data_ptr() for k, v in vars(h).items() if isinstance(v, torch.Tensor)} for h in holders]
        with HostReads() as reads:
            generator._step()
        assert reads.found == []
        assert places == [{k: v.data_ptr() for k, v in vars(h).items() if isinstance(v, torch.Tensor)} for h in holders]


def test_drawn_texts_do_not_depend_on_the_rows_beside_them(made: Made) -> None:
    prompts = [[5, 6, 7], [8], [9, 10], [11, 12, 13, 14]]
    uniform = uniform_numbers(3, "x", 4, 10)
    alone = Generator(made.target, [STOP_TOKEN], Limits(1, 10, 8), sampled=True).run(prompts, uniform)
    together = Generator(made.target, [STOP_TOKEN], Limits(4, 10, 8), sampled=True).run(prompts, uniform)
    assert alone == together
    assert len({tuple(text) for text in alone.values()}) == 4
