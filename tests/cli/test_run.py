"""`specc run` on a tiny model: text, traces, the lossless check, wrong input, Ctrl-C."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from specc.cli import main
from specc.models.checkpoint import checkpoint_headers
from specc.models.geometry import transformer_geometry
from specc.runtime import lossless
from specc.runtime.generate import Request, decode_batch
from specc.runtime.lossless import LosslessReport, check_batch, first_difference
from specc.runtime.perturb import SelfPerturbed, add_noise, perturbed_weights
from specc.runtime.prompts import Prompt
from specc.runtime.run_report import RunView, run_json, summary, terminal_text
from specc.runtime.session import Session, Watcher, open_session, run_prompts
from specc.runtime.trace import without_timing
from specc.spec import loads
from tests import run_support as support

PROMPTS = (Prompt("first", ("abcabcabc",)), Prompt("second", ("xyxyxy, and so on",)), Prompt("third", ("q",)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def session(folder: Path) -> Session:
    """A static tree with a simulated drafter, batches of two."""
    loaded = loads(support.spec_text("static"), "tiny.yaml")
    return open_session(loaded, str(folder), "self-perturbed:0.2")


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(support.spec_text("chain"), encoding="utf-8")
    return path


def codes(capsys: pytest.CaptureFixture[str], words: list[str]) -> list[str]:
    """The diagnostics of a command that refuses its input."""
    assert main([*words, "--json"]) == 2
    return [item["code"] for item in json.loads(capsys.readouterr().out)["diagnostics"]]


def test_run_writes_text_report_and_trace(spec: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", str(spec), "--model", str(folder), "--prompt", "abcabcabc", "--max-new-tokens", "24"]
    assert main([*words, "--verify-lossless", "--trace", "a.jsonl", "--report", "a.json"]) == 0
    out = capsys.readouterr().out
    assert "[prompt]" in out
    assert "lossless check: 0 differences from plain decoding in 24 tokens" in out
    report = json.loads(Path("a.json").read_text())
    (request,) = report["requests"]
    assert request["text"] in out
    assert len(request["tokens"]) == report["metrics"]["tokens"] == 24
    records = without_timing(Path("a.jsonl").read_text())
    assert [token for record in records for token in record["emitted"]] == request["tokens"]
    assert {record["spec"] for record in records} == {report["fingerprint"]}
    assert main([*words, "--trace", "b.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"][0]["tokens"] == request["tokens"]
    assert without_timing(Path("b.jsonl").read_text()) == records
    assert sorted(path.name for path in Path().iterdir()) == ["a.json", "a.jsonl", "b.jsonl", "tiny.yaml"]


def test_a_tree_run_is_lossless_and_accepts_branches(session: Session) -> None:
    result = run_prompts(session, PROMPTS, 40, verify_lossless=True)
    report = run_json(session, result)
    assert report["simulated_drafter"] is True
    assert report["lossless"] == report["lossless"] | {"tokens": 120, "differences": [], "failed": False}
    assert report["metrics"]["branch_steps"] > 5
    assert report["metrics"]["acceptance_length"] > 1.15
    assert "simulated drafter: self-perturbed:0.2" in summary(session, result)
    # Batches of two, and the third alone: its text is what it gives alone.
    assert [len(batch.results) for batch in result.batches] == [2, 1]
    alone = run_prompts(session, PROMPTS[:1], 40)
    assert alone.batches[0].results[0].tokens == result.batches[0].results[0].tokens


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--set", "target.config.num_hidden_layers=3", "--set", "target.config.rope_theta=1e6"], ["SPC410"] * 2),
        (["--set", "runtime.max_sequence_length=512", "--set", "target.config.max_position_embeddings=1024"], []),
        (["--draft-model", "self-perturbed:0.1"], ["SPC412"]),
        (["--prompts", "absent.jsonl"], ["SPC450"]),
        (["--model", "smollm2-135m-instruct"], ["SPC411"]),
        (["--model", "smollm2-135m-instrukt"], ["SPC420"]),
        (["--model", "no/such/folder"], ["SPC401"]),
    ],
)
def test_wrong_input_is_refused_before_anything_is_compiled(
    spec: Path,
    folder: Path,
    words: list[str],
    expected: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPECC_CACHE", str(spec.parent / "cache"))
    monkeypatch.setattr("specc.runtime.session.compile_spec", _never)
    prompt = [] if "--prompts" in words else ["--prompt", "x"]
    model = [] if "--model" in words else ["--model", str(folder)]
    if expected:
        assert codes(capsys, ["run", str(spec), *model, *prompt, *words]) == expected
    else:
        with pytest.raises(AssertionError, match="compiled"):
            raise_internal(["run", str(spec), *model, *prompt, *words])


def _never(*_: object, **__: object) -> None:
    raise AssertionError("compiled")


def raise_internal(words: list[str]) -> None:
    """Run a command whose internal error should be seen as it is."""
    assert main(words) == 3
    (bundle,) = Path().glob("specc-internal-error-*.txt")
    text = bundle.read_text()
    bundle.unlink()
    raise AssertionError(text)


def test_a_mismatch_names_both_values_and_the_place(
    spec: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = spec.read_text().replace('"hidden_size": 32', '"hidden_size": 64').replace('"head_dim"', '"head_dim"')
    spec.write_text(wrong)
    assert main(["run", str(spec), "--model", str(folder), "--prompt", "x"]) == 2
    text = capsys.readouterr().err
    assert "target.config.hidden_size is 64 in the spec, but 32 in" in text
    assert "target.config.head_dim is 16 in the spec, but 8 in" in text
    assert "tiny.yaml:5:" in text


@pytest.mark.parametrize(
    ("draft", "words", "expected"),
    [
        ("static", [], "SPC412"),
        ("static", ["--draft-model", "self-perturbed:many"], "SPC413"),
        ("static", ["--draft-model", "self-perturbed:-1"], "SPC413"),
        ("static", ["--draft-model", "self-perturbed:0.1", "--set", "draft.config.num_hidden_layers=1"], "SPC413"),
        ("static", ["--draft-model", "no/such/folder"], "SPC401"),
    ],
)
def test_drafters_are_checked(
    spec: Path, folder: Path, draft: str, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = support.spec_text(draft)
    spec.write_text(text.replace("config: *model", f"config: {json.dumps(support.CONFIG)}"))
    assert codes(capsys, ["run", str(spec), "--model", str(folder), "--prompt", "x", *words]) == [expected]


def test_prompts_that_do_not_fit_are_all_named(session: Session) -> None:
    from specc.diagnostics import DiagnosticError

    with pytest.raises(DiagnosticError) as refusal:
        run_prompts(session, [Prompt("long", ("x" * 300,)), PROMPTS[0], Prompt("longer", ("x" * 400,))], 4)
    assert [item.code for item in refusal.value.diagnostics] == ["SPC414", "SPC414"]
    assert "prompt `long` has" in refusal.value.diagnostics[0].message


def test_stop_tokens_come_from_the_folder_only_if_the_spec_has_none(folder: Path, session: Session) -> None:
    assert session.loaded.spec.accept.stop_tokens == (support.STOP_TOKEN,)
    assert session.module.SPEC["accept"]["stop_tokens"] == [support.STOP_TOKEN]


class InterruptAfter(Watcher):
    """Ctrl-C once `count` tokens have been seen."""

    def __init__(self, count: int) -> None:
        self.left = count

    def tokens(self, row: int, new: list[int]) -> None:
        self.left -= len(new)
        if self.left <= 0:
            raise KeyboardInterrupt


def test_ctrl_c_keeps_what_was_produced(session: Session) -> None:
    whole = run_prompts(session, PROMPTS, 40)
    result = run_prompts(session, PROMPTS, 40, verify_lossless=True, watcher=InterruptAfter(20))
    assert result.interrupted
    assert len(result.batches) == 1
    for cut, full in zip(result.batches[0].results, whole.batches[0].results, strict=True):
        assert cut.finish == "interrupted"
        assert 0 < len(cut.tokens) < 40
        assert cut.tokens == full.tokens[: len(cut.tokens)]
    assert "interrupted" in summary(session, result)


def test_turns_are_answered_one_after_the_other(session: Session) -> None:
    result = run_prompts(session, [Prompt("talk", ("one", "two")), PROMPTS[2]], 4)
    first, second = (batch.results[0].request for batch in result.batches)
    assert [first.name, second.name] == ["talk", "talk/2"]
    answer = session.tokenizer.decode(result.batches[0].results[0].tokens)
    asked = session.tokenizer.decode(second.ids)
    assert asked == f"<user>one\n<assistant>{answer}\n<user>two\n<assistant>"


class Faulty:
    """A decoder whose speculative steps replace the token at one position of row 0, in the first `times` texts."""

    def __init__(self, decoder: Any, position: int, token: int, times: int = 1) -> None:
        self.decoder, self.position, self.token, self.times = decoder, position, token, times
        self.seen = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.decoder, name)

    def start(self, *args: Any, **options: Any) -> list[int]:
        first: list[int] = self.decoder.start(*args, **options)
        self.seen = 1
        return first

    def step(self) -> Any:
        step = self.decoder.step()
        row = list(step.emitted[0])
        inside = self.position - self.seen
        self.seen += len(row)
        if 0 <= inside < len(row) and self.times:
            row[inside] = self.token
            self.times -= 1
        return step._replace(emitted=[row, *step.emitted[1:]])


@pytest.mark.parametrize("position", [1, 7, 19])
def test_a_wrong_token_is_found_and_the_comparison_goes_on(session: Session, position: int) -> None:
    requests = [Request(0, "a", tuple(b"abcabc")), Request(1, "b", tuple(b"hello"))]
    plain = decode_batch(session.decoder, requests, 20, speculative=False).results[0].tokens
    wrong = (plain[position] + 1) % 256
    faulty = Faulty(session.decoder, position, wrong)
    batch = decode_batch(faulty, requests, 20)
    report = LosslessReport()
    check_batch(report, session.module, faulty, batch, 20)
    (found,) = report.differences
    assert (found.position, found.plain, found.speculative) == (position, plain[position], wrong)
    assert report.tokens == 40
    # The numbers are plain decoding's own: recomputed here from one prefill of prompt and text so far.
    ids = torch.tensor([list(requests[0].ids) + plain[:position]])
    state, lengths = session.module.init_state(1), torch.tensor([ids.shape[1]])
    logits = session.module.prefill(session.decoder.weights, state, ids, lengths)[1][0]
    best = logits.topk(2).values
    assert found.margin == pytest.approx(float(best[0] - best[1]), rel=1e-6)
    assert found.gap == pytest.approx(float(logits[plain[position]] - logits[wrong]), rel=1e-6)
    assert report.failed


def test_every_step_after_a_difference_is_tested_too(session: Session) -> None:
    requests = [Request(0, "a", tuple(b"abcabc"))]
    faulty = Faulty(session.decoder, 5, 257, times=3)
    report = LosslessReport()
    check_batch(report, session.module, faulty, decode_batch(faulty, requests, 24), 24)
    # Each text goes on behind the difference before it, and is wrong at its own token 5.
    assert [item.position for item in report.differences] == [5, 11, 17]
    plain = report.plain[0].results[0].tokens
    assert [item.plain for item in report.differences] == [plain[5], plain[11], plain[17]]


def test_a_difference_within_the_bound_is_reported_and_allowed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lossless.RELATIVE_BOUND, "float64", 10.0)
    requests = [Request(0, "a", tuple(b"abcabc"))]
    faulty = Faulty(session.decoder, 5, 3)
    report = LosslessReport()
    check_batch(report, session.module, faulty, decode_batch(faulty, requests, 12), 12)
    assert len(report.differences) == 1
    assert not report.failed


def test_an_early_end_is_a_difference_that_nothing_allows(session: Session) -> None:
    requests = [Request(0, "a", tuple(b"abcabc"))]
    batch = decode_batch(session.decoder, requests, 12)
    del batch.results[0].tokens[-1]
    report = LosslessReport()
    check_batch(report, session.module, session.decoder, batch, 12)
    assert report.failed
    assert report.differences[0].speculative is None
    json.dumps([item.as_json() for item in report.differences], allow_nan=False)


def test_first_difference() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2


def test_perturbed_weights_depend_on_the_checkpoint_tensor_alone(session: Session, folder: Path) -> None:
    from safetensors.torch import load_file

    stored = load_file(folder / "model.safetensors")
    drafter = SelfPerturbed(0.2)
    weights = perturbed_weights(session.module, folder, drafter)
    assert any(len(layout.sources) > 1 for layout in session.module.WEIGHTS), "passes have joined projections"
    headers = checkpoint_headers(folder)
    for layout, value in zip(session.module.WEIGHTS, weights, strict=True):
        for layer, tensor in enumerate(value if layout.layers is not None else (value,)):
            names = [source.replace("{layer}", str(layer)) for source in layout.sources]
            parts = [stored[name].clone() for name in names]
            if layout.model == "draft":
                for name, part in zip(names, parts, strict=True):
                    add_noise(part, name, drafter)
            assert torch.equal(tensor, torch.cat(parts)), names
    assert headers
    big = torch.ones(100_000, dtype=torch.float64)
    add_noise(big, "big", drafter)
    assert float(big.mean()) == pytest.approx(1, abs=0.005)
    assert float(big.std()) == pytest.approx(0.2, rel=0.02)
    other = torch.ones(100_000, dtype=torch.float64)
    add_noise(other, "big", SelfPerturbed(0.2, seed=1))
    assert not torch.equal(big, other)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def watched(session: Session) -> Iterator[Terminal]:
    out = Terminal()
    yield out
    assert "\x1b" not in out.getvalue()


def test_a_terminal_shows_the_text_as_it_is_made(session: Session, watched: Terminal) -> None:
    pieces: list[int] = []

    class Counting(RunView):
        def tokens(self, row: int, new: list[int]) -> None:
            super().tokens(row, new)
            pieces.append(len(watched.getvalue()))

    result = run_prompts(session, PROMPTS[:1], 30, watcher=Counting(session.tokenizer, watched, None, 30))
    text = session.tokenizer.decode(result.batches[0].results[0].tokens)
    assert terminal_text(text) in watched.getvalue()
    assert len(set(pieces)) > 3


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert terminal_text("a\x1b[31mb\r\n\tc\x7f\u00e9\u4e2d") == "a\\x1b[31mb\\r\n\tc\\x7f\u00e9\u4e2d"


def test_verify_knows_altered_and_foreign_files(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from specc.driver import compile_spec

    source = compile_spec(session.loaded, verify=False).source
    good, altered, foreign = (tmp_path / name for name in ("good.py", "altered.py", "foreign.py"))
    good.write_text(source)
    altered.write_text(source.replace("ABI: int = 1", "ABI: int = 2"))
    foreign.write_text("print('hello')\n")
    assert main(["verify", str(good)]) == 0
    assert session.identity.spec in capsys.readouterr().out
    assert main(["verify", str(altered)]) == 1
    assert "SPC456" in capsys.readouterr().err
    assert main(["verify", str(altered), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["finding"]["code"] == "SPC456"
    assert codes(capsys, ["verify", str(foreign)]) == ["SPC455"]
    assert codes(capsys, ["verify", str(tmp_path)]) == ["SPC455"]
    assert codes(capsys, ["verify", str(tmp_path / "absent.py")]) == ["SPC455"]
    assert sys.modules["specc_generated_tiny"] is session.module


def test_an_ascend_module_runs_eagerly_on_the_cpu_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operators of torch_npu have kernels of ours there; its text is that of plain decoding."""
    sizes = support.CONFIG | {"head_dim": 16, "num_hidden_layers": 1}
    model = support.write_model(tmp_path / "model", dtype="float32", geometry=transformer_geometry("llama", sizes))
    spec = tmp_path / "tiny.yaml"
    text = support.spec_text("chain").replace("float64", "float32")
    spec.write_text(text.replace(json.dumps(support.CONFIG), json.dumps(sizes)), encoding="utf-8")
    words = ["run", str(spec), "--target", "ascend", "--device", "cpu", "--model", str(model)]
    assert main([*words, "--prompt", "abcabcabc", "--max-new-tokens", "8", "--verify-lossless"]) == 0
    out = capsys.readouterr().out
    assert "eager npu ops on the CPU" in out
    assert "0 differences from plain decoding in 8 tokens" in out
