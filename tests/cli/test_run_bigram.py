"""`specc run` with a bigram drafter's folder: the text of plain decoding, and coded refusals of unusable folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specc.cli import main
from specc.driver import compile_spec
from specc.models.bigram import NEXT_TOKEN
from specc.runtime.module import import_source
from specc.spec import loads
from specc.train.draft.bigram import build_bigram, write_bigram
from specc.train.draft.store import pack
from tests import run_support as support

TOKENS = 24
SIZE = support.CONFIG["vocab_size"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.write_model(tmp_path_factory.mktemp("tiny"), eos=None)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("specs") / "tiny.yaml"
    path.write_text(support.spec_text("bigram"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory, folder: Path, spec: Path) -> Path:
    """Built from the model's own text: what plain decoding says to some prompts."""
    source = compile_spec(loads(support.spec_text("none"), "plain.yaml"), verify=False).source
    module = import_source(source, "specc_plain_tiny")
    prompts = [list(b"abc"), list(b"a text"), list(b"xyxy")]
    texts = module.Decoder.from_pretrained(folder).generate(prompts[:2], 60).tokens
    texts += module.Decoder.from_pretrained(folder).generate(prompts[2:], 60).tokens
    assert isinstance(SIZE, int)
    whole = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
    made = build_bigram(pack(whole, [len(prompt) for prompt in prompts]), SIZE, 5)
    path = tmp_path_factory.mktemp("drafters") / "bigram"
    write_bigram(path, made)
    return path


def words(spec: Path, folder: Path, *more: str) -> list[str]:
    return [
        "run",
        str(spec),
        "--model",
        str(folder),
        "--prompt",
        "abc",
        "--raw",
        "--max-new-tokens",
        str(TOKENS),
        *more,
    ]


def codes(capsys: pytest.CaptureFixture[str], command: list[str]) -> list[str]:
    assert main([*command, "--json"]) == 2
    return [item["code"] for item in json.loads(capsys.readouterr().out)["diagnostics"]]


def test_the_text_is_that_of_plain_decoding_in_fewer_steps(
    spec: Path, folder: Path, drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = words(spec, folder, "--draft-model", str(drafter), "--ignore-eos", "--verify-lossless", "--json")
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["lossless"]["differences"] == []
    assert report["metrics"]["tokens"] == TOKENS
    assert report["metrics"]["acceptance_length"] > 1.3
    assert report["simulated_drafter"] is False


def test_a_folder_is_needed_and_must_fit(
    spec: Path, folder: Path, drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert codes(capsys, words(spec, folder)) == ["SPC412"]
    assert codes(capsys, words(spec, folder, "--draft-model", "self-perturbed:0.1")) == ["SPC413"]
    assert codes(capsys, words(spec, folder, "--draft-model", str(folder))) == ["SPC410"] * 2
    changed = ["--draft-model", str(drafter), "--set", "draft.config.candidates_per_token=4"]
    assert codes(capsys, words(spec, folder, *changed)) == ["SPC410"]
    broken = tmp_path / "broken"
    shutil.copytree(drafter, broken)
    tables = load_file(broken / "model.safetensors")
    tables[NEXT_TOKEN][9, 1] = tables[NEXT_TOKEN][9, 0]
    save_file(tables, broken / "model.safetensors")
    assert codes(capsys, words(spec, folder, "--draft-model", str(broken))) == ["SPC418"]


@pytest.mark.parametrize("fault", ["twice", "beyond", "negative"])
def test_a_module_alone_refuses_tables_that_break_it(fault: str, folder: Path, drafter: Path, tmp_path: Path) -> None:
    """Ids beyond the vocabulary would be read as addresses, twins below one node change what is sampled."""
    module = import_source(compile_spec(loads(support.spec_text("bigram"), "tiny.yaml")).source, "specc_bigram_tiny")
    weights = module.load_weights(folder, drafter)
    tables = load_file(drafter / "model.safetensors")
    assert torch.equal(weights.draft_next_token, tables[NEXT_TOKEN].long())
    assert weights.draft_next_log_prob.dtype == torch.float32
    value = {"twice": int(tables[NEXT_TOKEN][3, 0]), "beyond": SIZE, "negative": -1}[fault]
    tables[NEXT_TOKEN][3, 2] = value
    save_file(tables, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="next_token"):
        module.load_weights(folder, tmp_path)


def test_sizes_come_from_the_folder_that_the_spec_names(folder: Path, drafter: Path) -> None:
    text = support.spec_text("bigram").replace("config: {candidates_per_token: 5}", f"checkpoint: {drafter}")
    geometry = loads(text, "tiny.yaml").spec.bigram_geometry
    assert geometry is not None
    assert geometry.shape == (SIZE, 5)
