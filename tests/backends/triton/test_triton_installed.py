"""Says so where the kernels' tests do not run."""

from __future__ import annotations

import importlib.util

import pytest

from specc.backends import triton as package


def test_the_package_imports_without_triton() -> None:
    assert package.__doc__


def test_triton_is_here_for_the_kernel_tests() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: the kernels' tests (test_kernels_*.py) are not collected")
    from specc.backends.triton.launch.core import interpreted

    assert interpreted()
