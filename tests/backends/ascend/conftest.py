"""What the tests of the Ascend backend share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specc.backends.ascend.harness.environment import torchair_loaded
from specc.backends.ascend.harness.extension import DeviceGraph
from specc.backends.ascend.harness.lower import Lowered
from specc.backends.ascend.harness.wheel import importable_wheel
from specc.diagnostics import DiagnosticError


@pytest.fixture(scope="session")
def torch_npu_wheel() -> Path:
    """The unpacked wheel that tests with real torchair need; `make test` fetches it, other runs may skip them."""
    try:
        return importable_wheel()
    except DiagnosticError as missing:
        pytest.skip(f"{missing.diagnostics[0].message}: specc fetch torch-npu")


@pytest.fixture
def device(torch_npu_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lowered]:
    """torchair for as long as a test runs; its graphs arrive in the Lowered, which runs them."""
    assert torch_npu_wheel.exists()
    received = Lowered()
    monkeypatch.setattr(DeviceGraph, "receiver", received)
    with torchair_loaded():
        yield received
    torch._dynamo.reset()
