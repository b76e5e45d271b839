"""What an exporter can't write is a diagnostic that names the step and the op, whatever way the exporter fails."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.backends.export import mlir
from specc.backends.export.export import export_step
from specc.backends.export.failure import op_in
from specc.backends.export.mlir import mlir_text
from specc.backends.export.onnx import onnx_model
from specc.backends.export.signature import Operand, StepSignature
from specc.diagnostics import Diagnostic, DiagnosticError
from specc.ir.port import Port

X = Operand("x", Port("input", "x"), (3, 4), torch.float32)
SIGNATURE = StepSignature("verify", (X,), (Operand("y", Port("result", "y"), (3, 4), torch.float32),))
WRITERS: dict[str, Callable[..., Any]] = {"ONNX": onnx_model, "MLIR": mlir_text}


class Function(torch.nn.Module):
    """A function of one tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """(function(x),)"""
        return (self.function(x),)


def zeta(x: Tensor) -> Tensor:
    """No exporter knows it."""
    return torch.special.zeta(x, x)


def refusal(target: str) -> Diagnostic:
    """What a writer says of `zeta`."""
    program = torch.export.export(Function(zeta), (X.example(),), strict=False)
    with pytest.raises(DiagnosticError) as caught:
        WRITERS[target](program, SIGNATURE)
    (found,) = caught.value.diagnostics
    assert found.code == "SPC206"
    assert "`verify`" in found.message
    assert target in found.message
    return found


@pytest.mark.parametrize(("target", "op"), [("ONNX", "prims.zeta"), ("MLIR", "aten.special_zeta")])
def test_an_op_without_a_form_is_named(target: str, op: str) -> None:
    assert f"`{op}`" in refusal(target).message


def test_a_lowering_that_ends_its_process_is_a_diagnostic(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "PLEASE submit a bug report\n#11 ConvertAtenScatterOp<mlir::torch::Torch::AtenScatterSrcOp>::matchAndRewrite\n"
    )
    ended = subprocess.CompletedProcess([], -11, "", said)
    monkeypatch.setattr(mlir.subprocess, "run", lambda *_, **__: ended)
    assert "`aten.scatter`" in refusal("MLIR").message


class Printed:
    """A module whose step reads a tensor on the host."""

    Weights = Views = staticmethod(lambda **_: None)

    @staticmethod
    def run_verify(_weights: None, _slots: None, x: Tensor, *_: None) -> Tensor:
        """A shape that depends on values."""
        return x[: int(x.sum())]


def test_a_step_that_depends_on_values_is_named() -> None:
    module = Printed()
    module.Weights = module.Views = type("Record", (tuple,), {"_fields": (), "__new__": lambda cls: tuple.__new__(cls)})  # type: ignore[misc,assignment]
    signature = StepSignature("verify", (Operand("tokens", Port("input", "tokens"), (3,), torch.float32),), ())
    with pytest.raises(DiagnosticError) as caught:
        export_step("onnx", module, signature)
    assert [item.code for item in caught.value.diagnostics] == ["SPC206"]
    assert "`verify`" in caught.value.diagnostics[0].message


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("No ONNX function found for <OpOverload(op='aten.special_zeta', overload='default')>", "aten.special_zeta"),
        ("error: failed to legalize operation 'torch.aten.sort' that was explicitly marked illegal", "aten.sort"),
        ("#9 ConvertAtenScatterOp<mlir::torch::Torch::AtenScatterSrcOp>::matchAndRewrite", "aten.scatter"),
        ("could not guard on aten::nonzero", "aten.nonzero"),
        ("out of memory", None),
    ],
)
def test_the_op_is_found_in_every_form_of_message(text: str, op: str | None) -> None:
    assert op_in(text) == op
