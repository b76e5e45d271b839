"""The folder of an export: whole or not at all, replaced only where it holds an export and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest
import torch

from specc.backends.export import packages
from specc.backends.export.folder import write_folder
from specc.backends.export.manifest import NAME, files_of, read_manifest, signature_from
from specc.backends.export.run import open_folder
from specc.backends.export.signature import Sizes, signature_of
from specc.check.view import blanked
from specc.cli import main
from specc.diagnostics import DiagnosticError
from specc.driver import lower_spec, run_passes
from specc.runtime.module import import_source
from specc.spec import load

SPEC = """specc: 1
name: tiny
target: {family: llama, config: {num_hidden_layers: 2, hidden_size: 32, num_attention_heads: 2,
  num_key_value_heads: 1, head_dim: 16, intermediate_size: 32, vocab_size: 23, max_position_embeddings: 64}}
accept: {stop_tokens: [5]}
runtime: {max_batch_size: 2, max_sequence_length: 16, dtype: float32}
"""
HOST_PATH = re.compile(rb"/(?:usr|home|root|tmp|opt|work|site-packages)/[\w./-]+|site-packages")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "tiny.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def folder(spec: Path) -> Path:
    made = spec.parent / "tiny_onnx"
    assert main(["compile", str(spec), "--target", "onnx", "-o", str(made), "--chunk", "4"]) == 0
    return made


def test_the_folder_holds_the_module_every_step_and_the_manifest(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest is not None
    names = {path.name for path in folder.iterdir()}
    assert names == files_of(manifest)
    assert {f"{step}.onnx" for step in ("prefill", "decode", "draft", "verify", "accept", "commit")} < names
    assert (manifest["batch"], manifest["chunk"], manifest["target"]) == (2, 4, "onnx")
    assert "versions" in manifest


def test_models_have_the_manifests_names_shapes_and_types(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest is not None
    for step, entry in manifest["steps"].items():
        model = onnx.load(folder / entry["file"])
        onnx.checker.check_model(model)
        assert model.graph.name == step
        for values, items in ((model.graph.input, entry["inputs"]), (model.graph.output, entry["outputs"])):
            assert [value.name for value in values] == [item["name"] for item in items]
            shapes = [[size.dim_value for size in value.type.tensor_type.shape.dim] for value in values]
            assert shapes == [item["shape"] for item in items]


def test_a_manifest_gives_the_signature_back(folder: Path, spec: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest is not None
    loaded = load(spec)
    program = run_passes(loaded, lower_spec(loaded, "onnx"), target="onnx").program
    for step in manifest["steps"]:
        assert signature_from(manifest, step) == signature_of(program, step, Sizes(2, 4))


def test_files_name_no_folder_of_this_machine(folder: Path) -> None:
    for path in folder.iterdir():
        assert HOST_PATH.search(path.read_bytes()) is None, path.name


def test_an_opened_folder_decodes_like_its_own_module(folder: Path) -> None:
    module = open_folder(folder)
    generator = torch.Generator().manual_seed(0)

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=generator) / shape[-1] ** 0.5

    weights = module.Weights(
        **{
            item.name: drawn(item.shape)
            if item.layers is None
            else tuple(drawn(item.shape) for _ in range(item.layers))
            for item in module.WEIGHTS
        }
    )
    plain = import_source((folder / "module.py").read_text(), "specc_plain_tiny")
    ids, lengths = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 0, 0, 0, 0]]), torch.tensor([6, 2])
    ours, logits = module.prefill(weights, module.init_state(2, "cpu"), ids, lengths)
    theirs, wanted = plain.prefill(weights, plain.init_state(2, "cpu"), ids, lengths)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-5)
    for _ in range(3):
        ours, one = module.decode(weights, ours)
        theirs, other = plain.decode(weights, theirs)
        torch.testing.assert_close(tuple(one), tuple(other), rtol=1e-4, atol=1e-5)
        assert torch.equal(ours.root_token, theirs.root_token)
        # Rows behind `length` are nobody's: a padded chunk leaves other ones there.
        kept = [blanked(state.k_cache, state.length, 2) for state in (ours, theirs)]
        torch.testing.assert_close(*kept, rtol=1e-4, atol=1e-5)


def test_a_changed_file_is_refused(folder: Path, tmp_path: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest is not None
    files = {name: (folder / name).read_bytes() for name in files_of(manifest)}
    write_folder(tmp_path / "copy", files | {"commit.onnx": files["commit.onnx"] + b"\n"})
    with pytest.raises(ValueError, match=r"commit\.onnx"):
        open_folder(tmp_path / "copy")
    with pytest.raises(ValueError, match="no export"):
        open_folder(tmp_path)


def minimal(mark: str) -> dict[str, bytes]:
    """An export of no steps."""
    manifest = {"format": "specc export 1", "module": {"file": "module.py"}, "steps": {}, "mark": mark}
    return {NAME: json.dumps(manifest).encode(), "module.py": b""}


def test_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    for mark in ("first", "second"):
        write_folder(place, minimal(mark))
        manifest = read_manifest(place)
        assert manifest is not None
        assert manifest["mark"] == mark
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_no_export_has_written_is_not_replaced(tmp_path: Path) -> None:
    place = tmp_path / "out"
    write_folder(place, minimal("first"))
    (place / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    for target in (place, tmp_path / "file", tmp_path / "other", tmp_path / "none" / "out"):
        with pytest.raises(DiagnosticError) as caught:
            write_folder(target, minimal("second"))
        assert [item.code for item in caught.value.diagnostics] == ["SPC460"]
    assert (place / "notes.txt").read_text() == "mine"
    assert (tmp_path / "other" / "thesis.tex").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other", "out"]


def test_a_write_that_fails_leaves_the_earlier_export(tmp_path: Path) -> None:
    place = tmp_path / "out"
    write_folder(place, minimal("first"))
    with pytest.raises(DiagnosticError):
        write_folder(place, minimal("second") | {"no/such/folder.onnx": b""})
    manifest = read_manifest(place)
    assert manifest is not None
    assert manifest["mark"] == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_batch_that_the_spec_does_not_allow_is_refused(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--batch", "3"], ["--chunk", "17"]):
        assert main(["compile", str(spec), "--target", "onnx", "-o", str(spec.parent / "no"), *option]) != 0
        assert "SPC207" in capsys.readouterr().err
    assert not (spec.parent / "no").exists()


@pytest.mark.parametrize("target", ["onnx", "mlir"])
def test_a_missing_package_is_named_before_anything_is_compiled(
    target: str, spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda _name: None)
    assert main(["compile", str(spec), "--target", target, "-o", str(spec.parent / "no")]) != 0
    shown = capsys.readouterr().err
    assert "SPC205" in shown
    assert f"specc[{target}]" in shown
