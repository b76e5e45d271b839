"""Where a module runs: the target's own device, and refusals that name a remedy."""

from __future__ import annotations

import pytest
import torch

from specc.diagnostics import DiagnosticError
from specc.runtime.device import device_for


@pytest.fixture(autouse=True)
def _one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def refusal(target: str, wanted: str | None) -> str:
    with pytest.raises(DiagnosticError) as caught:
        device_for(target, wanted)
    found = caught.value.diagnostics[0]
    assert found.code == "SPC417"
    assert found.help
    return found.message


def test_a_target_has_a_device_of_its_own() -> None:
    assert device_for("reference", None) == "cpu"
    assert device_for("triton", None) == "cuda"
    assert device_for("reference", "cuda:0") == "cuda:0"


def test_the_interpreter_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "interpreter" in refusal("triton", "cpu")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert device_for("triton", None) == "cpu"


@pytest.mark.parametrize("wanted", ["cuda:1", "cuda:x", "cuda:-1"])
def test_a_device_that_is_not_there_is_refused(wanted: str) -> None:
    assert wanted in refusal("reference", wanted)


@pytest.mark.parametrize("wanted", ["tpu", "", ":0"])
def test_an_unknown_device_is_refused(wanted: str) -> None:
    if wanted:
        refusal("reference", wanted)
    else:
        assert device_for("reference", wanted) == "cpu"


def test_without_a_gpu_the_remedy_names_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "0 CUDA devices" in refusal("triton", None)
