"""Exporters: every step of a program as an ONNX model or as MLIR (linalg on tensors), one file per step in a folder."""

from __future__ import annotations
