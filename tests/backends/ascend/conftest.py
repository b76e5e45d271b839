"""What the tests of the Ascend backend share."""

from __future__ import annotations

from pathlib import Path

import pytest

from specc.backends.ascend.harness.wheel import unzipped_wheel
from specc.diagnostics import DiagnosticError


@pytest.fixture(scope="session")
def torch_npu_wheel() -> Path:
    """The unpacked wheel that tests with real torchair need; `make test` fetches it, other runs may skip them."""
    try:
        return unzipped_wheel()
    except DiagnosticError as missing:
        pytest.skip(f"{missing.diagnostics[0].message}: specc fetch torch-npu")
