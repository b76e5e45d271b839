"""SpecLA's evaluation (arXiv:2607.16673) with this compiler's kernels and modules: see `specc.bench.specla.main`."""

from __future__ import annotations
