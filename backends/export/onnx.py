"""Steps as ONNX models, by `torch.onnx.export`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from specc.backends.export.failure import cannot_export
from specc.backends.export.quicker import quicker
from specc.backends.export.signature import StepSignature
from specc.backends.export.translations import TRANSLATIONS

NAME = "ONNX"
OPSET = 20
LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")


def onnx_model(program: torch.export.ExportedProgram, signature: StepSignature, optimize: bool = True) -> bytes:
    """The serialized model of one step. Raises DiagnosticError (SPC206) for an op without a translation.

    Inputs and outputs have the signature's names. What the exporter notes of source files is taken out.
    """
    quicker()
    with _quiet():
        try:
            made = torch.onnx.export(
                program,
                dynamo=True,
                input_names=[operand.name for operand in signature.inputs],
                output_names=[operand.name for operand in signature.outputs],
                opset_version=OPSET,
                custom_translation_table=dict(TRANSLATIONS),
                optimize=optimize,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as reason:
            raise cannot_export(signature.step, NAME, str(reason.__cause__ or reason)) from reason
    assert made is not None
    model = made.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for function in model.functions:
        for node in function.node:
            del node.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info, *model.graph.initializer):
        del value.metadata_props[:]
    del model.graph.metadata_props[:]
    model.graph.name = signature.step
    return bytes(model.SerializeToString(deterministic=True))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes on packages that it would also know."""
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    try:
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
