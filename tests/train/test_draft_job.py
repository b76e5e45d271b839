"""`specc train draft`: from a spec, a model and its texts to a head that the compiled module loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from specc.cli import main
from specc.models.bigram import read_bigram
from specc.models.checkpoint import checkpoint_headers
from specc.spec import load
from tests.train.draft_stand import write_model, write_spec, write_texts

QUICK = ["--batch", "8", "--sequence", "64", "--log-every", "5", "--trial-prompts", "2", "--trial-tokens", "12"]


def arguments(folder: Path, family: str, of: str, *more: str) -> list[str]:
    """A command on a stand in `folder`, made if it is not there."""
    spec = folder / "spec.yaml"
    if not spec.exists():
        loaded = write_spec(spec, family, of)
        write_texts(folder / "texts", write_model(folder / "model", loaded))
    return [
        "train", "draft", str(spec), "--model", str(folder / "model"), "--texts", str(folder / "texts"),
        "--out", str(folder / "out"), *QUICK, *more,
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "of"), [("llama", "output"), ("gated_deltanet", "readout"), ("gated_deltanet", "output")]
)
def test_a_trained_head_decodes_in_the_compiled_module(
    family: str, of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path, family, of, "--steps", "40", "--json", "--learning-rate", "3e-3")) == 0
    result = json.loads(capsys.readouterr().out)
    log = [json.loads(line) for line in (tmp_path / "out" / "training_log.jsonl").read_text("utf-8").splitlines()]
    first = next(line for line in log if "loss" in line)
    last = [line for line in log if "loss" in line][-1]
    assert last["step"] == result["steps"] == 40
    assert all(after < before for before, after in zip(first["loss"], last["loss"], strict=True))
    assert result["compiled"]["lossless"] == {
        "tokens": 24,
        "differences_within_rounding": 0,
        "differences": 0,
    }
    head = tmp_path / "out" / "head"
    assert json.loads((head / "recipe.json").read_text("utf-8")) == result
    headers = checkpoint_headers(head)
    assert {header.dtype for name, header in headers.items() if name not in ("d2t", "t2d")} == {"BF16"}
    assert (headers["d2t"].dtype, headers["t2d"].dtype) == ("I64", "BOOL")
    card = (head / "README.md").read_text("utf-8")
    assert "EAGLE-3 draft head for `model`" in card
    assert str(tmp_path) not in card + (head / "recipe.json").read_text("utf-8")


def test_bigram_tables_are_counted_from_the_same_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft = {"method": "bigram", "tree": "dynamic", "num_speculative_tokens": 6, "num_steps": 3, "top_k": 2}
    loaded = write_spec(tmp_path / "eagle.yaml", "llama", "output")
    given = arguments(tmp_path, "llama", "output", "--json")
    mapping = yaml.safe_load((tmp_path / "eagle.yaml").read_text("utf-8"))
    (tmp_path / "bigram.yaml").write_text(yaml.safe_dump(mapping | {"draft": draft}), "utf-8")
    given[2] = str(tmp_path / "bigram.yaml")
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out)["texts"] == 100
    geometry = load(tmp_path / "bigram.yaml", []).spec.bigram_geometry
    assert geometry is not None
    assert read_bigram(tmp_path / "out" / "head", geometry)[0].shape == (48, 8)
    assert loaded.spec.bigram_geometry is None
    given[2] = str(tmp_path / "eagle.yaml")
    assert main([*given, "--kind", "bigram"]) == 2
