"""Steps as MLIR, linalg on tensors, by torch-mlir.

The lowering runs in a process of its own: where it meets an op that it has no form of it may end that process.
"""

from __future__ import annotations

import subprocess
import sys
import warnings

import torch

from specc.backends.export.failure import cannot_export
from specc.backends.export.signature import StepSignature

NAME = "MLIR"
TOOL = "torch_mlir.tools.opt"
PIPELINE = (
    "builtin.module(func.func(torch-match-quantized-custom-ops),"
    "torchdynamo-export-to-torch-backend-pipeline{extra-library=},"
    "torch-backend-to-linalg-on-tensors-backend-pipeline{allow-non-finites=true})"
)


def mlir_text(program: torch.export.ExportedProgram, signature: StepSignature) -> str:
    """The module of one step, whose function is called as the step. Raises DiagnosticError (SPC206)."""
    from torch_mlir import fx  # heavy, and only there where the extra is installed

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            raw = fx.export_and_import(program, output_type="raw", func_name=signature.step)
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as reason:
            raise cannot_export(signature.step, NAME, str(reason)) from reason
    command = [sys.executable, "-m", TOOL, f"--pass-pipeline={PIPELINE}", "-"]
    done = subprocess.run(command, input=str(raw), capture_output=True, text=True)
    if done.returncode != 0:
        raise cannot_export(signature.step, NAME, done.stderr or f"{TOOL} ended with {done.returncode}")
    return done.stdout
