"""Says so where the kernels' tests do not run."""

from __future__ import annotations

import pytest

from specc.backends import triton as package
from tests.backends.triton.conftest import not_here


def test_the_package_imports_without_triton() -> None:
    assert package.__doc__


def test_triton_is_here_for_the_kernel_tests() -> None:
    if reason := not_here():
        pytest.skip(f"{reason}: the kernels' tests are not collected")
    from specc.backends.triton.launch.core import interpreted

    assert interpreted()
