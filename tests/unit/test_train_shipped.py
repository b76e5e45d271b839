"""The model in weights/gdn-15m: sizes, index, checksums, names, and the quality that its card states."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors import safe_open

from specc.runtime.tokenizer import Tokenizer
from specc.train.dataset import HeldOut, held_out_arrays
from specc.train.evaluate import neural_bits, scores
from specc.train.export import load_model
from specc.train.readers import Document
from specc.train.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "weights" / "gdn-15m"
SAMPLE = ROOT / "tests" / "data" / "gdn_held_out.jsonl"
SHARD_BYTES, TOTAL_BYTES, SAMPLE_BYTES = 15_000_000, 32_000_000, 100_000
MIN_GAIN = 0.25
PER_LAYER = {
    "attn_norm.weight": [256],
    "attn.q_proj.weight": [256, 256],
    "attn.k_proj.weight": [256, 256],
    "attn.v_proj.weight": [256, 256],
    "attn.g_proj.weight": [256, 256],
    "attn.o_proj.weight": [256, 256],
    "attn.a_proj.weight": [2, 256],
    "attn.b_proj.weight": [2, 256],
    "attn.A_log": [2],
    "attn.dt_bias": [2],
    "attn.q_conv1d.weight": [256, 1, 4],
    "attn.k_conv1d.weight": [256, 1, 4],
    "attn.v_conv1d.weight": [256, 1, 4],
    "attn.o_norm.weight": [128],
    "mlp_norm.weight": [256],
    "mlp.gate_proj.weight": [640, 256],
    "mlp.up_proj.weight": [640, 256],
    "mlp.down_proj.weight": [256, 640],
}


def read(name: str) -> dict[str, Any]:
    """A JSON file of the model folder."""
    value: dict[str, Any] = json.loads((FOLDER / name).read_text("utf-8"))
    return value


def test_shards_and_index() -> None:
    index = read("model.safetensors.index.json")
    shards = sorted(FOLDER.glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == [path.name for path in shards]
    sizes = [path.stat().st_size for path in shards]
    assert max(sizes) <= SHARD_BYTES
    assert sum(sizes) <= TOTAL_BYTES
    stored: dict[str, list[int]] = {}
    for path in shards:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a dict
                assert index["weight_map"][name] == path.name
                assert file.get_slice(name).get_dtype() == "BF16"
                stored[name] = file.get_slice(name).get_shape()
    expected = {"model.embeddings.weight": [4096, 256], "model.norm.weight": [256]}
    expected |= {f"model.layers.{n}.{name}": shape for n in range(16) for name, shape in PER_LAYER.items()}
    assert stored == expected
    assert index["metadata"]["total_size"] == 2 * read("result.json")["parameters"]


def test_checksums() -> None:
    for name, digest in read("result.json")["sha256"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name


def test_card_states_the_results() -> None:
    result, card = read("result.json"), (FOLDER / "README.md").read_text("utf-8")
    for name, score in result["held_out"].items():
        other = result["ngram"]["held_out"][name]["bits_per_byte"]
        assert f"| {score['bits_per_byte']:.4f} | {other:.4f} |" in card
        assert f"| {name} | {score['bytes']:,} | {score['tokens']:,} |" in card
    assert f"{result['tokens']:,} tokens" in card
    recipe = load_recipe(FOLDER / "recipe.json")
    assert all(f"| {source.name} | {source.domain} | {source.licence} |" in card for source in recipe.sources)
    licence = (FOLDER / "LICENSE").read_text("utf-8")
    assert "Apache License" in licence
    assert all(source.name in licence for source in recipe.sources if source.domain != "prose")
    assert result["config"] == read("config.json")


def test_the_log_ends_with_the_stated_scores() -> None:
    lines = (FOLDER / "training_log.jsonl").read_text("utf-8").splitlines()
    last, result = json.loads(lines[-1]), read("result.json")
    assert last == {"step": result["steps"], "held_out": result["held_out"]}


def test_better_than_the_ngrams_by_the_bar() -> None:
    result = read("result.json")
    ours = result["held_out"]["all"]["bits_per_byte"]
    for kind in ("held_out", "by_domain"):
        assert ours <= (1 - MIN_GAIN) * result["ngram"][kind]["all"]["bits_per_byte"], kind


@pytest.fixture(scope="module")
def sample() -> HeldOut:
    assert SAMPLE.stat().st_size <= SAMPLE_BYTES
    documents = [Document(**json.loads(line)) for line in SAMPLE.read_text("utf-8").splitlines()]
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    domains = tuple(sorted({document.domain for document in documents}))
    return HeldOut(**held_out_arrays(tokenizer, documents), domains=domains)


@pytest.mark.slow
def test_bits_per_byte_of_the_sample_are_those_recorded(sample: HeldOut) -> None:
    result = read("result.json")
    found = scores(sample, neural_bits(load_model(FOLDER), sample, torch.device("cpu")))
    for name, score in found.items():
        recorded = result["sample"]["held_out"][name]
        assert score.bytes == recorded["bytes"]
        assert score.bits_per_byte == pytest.approx(recorded["bits_per_byte"], rel=1e-3)
        # The sample has beginnings of 13 texts; the card speaks of all held-out text.
        assert score.bits_per_byte == pytest.approx(result["held_out"][name]["bits_per_byte"], rel=0.3)


def test_tokenizer_writes_every_text_and_opens_with_the_end_token(sample: HeldOut) -> None:
    tokenizer = Tokenizer.from_folder(FOLDER)
    assert tokenizer.vocab_size == 4096
    assert tokenizer.stop_tokens == (0,)
    text = "def f(x):\n    return 3.14159 * x  # ünïcödé 漢字 \U0001f600\n"
    ids = tokenizer.encode(text)
    assert ids[0] == 0
    assert tokenizer.decode(ids) == text
    chat = tokenizer.render_chat([{"role": "user", "content": "2 + 2?"}])
    assert chat == "<|endoftext|>Question: 2 + 2?\nAnswer:"
