"""Where a module runs: the target's own device, and refusals that name a remedy."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from specc.diagnostics import DiagnosticError
from specc.runtime.device import device_for


@pytest.fixture(autouse=True)
def _one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in sys.modules or None)


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


def test_an_ascend_module_runs_on_the_cpu_where_torch_npu_is_missing() -> None:
    assert device_for("ascend", None) == "cpu"
    assert device_for("ascend", "cpu") == "cpu"
    assert "torch_npu is not installed" in refusal("ascend", "npu")
    assert "CUDA" in refusal("ascend", "cuda")
    assert "NPU" in refusal("triton", "npu:0")


def test_an_ascend_module_runs_on_an_npu_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = ModuleType("torch_npu")
    installed.npu = SimpleNamespace(device_count=lambda: 2)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", installed)
    assert device_for("ascend", None) == "npu"
    assert device_for("ascend", "npu:1") == "npu:1"
    for wanted in ("npu:2", "npu:x"):
        assert "sees 2 NPUs" in refusal("ascend", wanted)


def test_a_torch_npu_that_does_not_work_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise RuntimeError("libhccl.so: cannot open shared object file")

    installed = ModuleType("torch_npu")
    installed.npu = SimpleNamespace(device_count=broken)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", installed)
    assert "libhccl.so" in refusal("ascend", "npu")
