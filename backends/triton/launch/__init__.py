"""Launchers: the signatures of `specc.ir.ops`, torch tensors in and out, and the configurations of the kernels."""

from __future__ import annotations
