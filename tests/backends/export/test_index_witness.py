"""An independent witness for rewrite-negative-indices: IREE reads the memory before a tensor for the index -1.

torch-mlir wraps what `aten.index` and `take_along_dim` get, as eager PyTorch does; `gather`, `index_select` and
`embedding` it does not, nor does an accelerator. onnxruntime wraps all of them, so that it can't witness anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Node

from specc.backends.ascend.ops.rows import take_rows
from specc.backends.base import ModuleInfo
from specc.backends.export.dialect import dialect
from specc.backends.export.export import export_step
from specc.backends.export.iree import IreeSteps
from specc.backends.export.mlir import mlir_text
from specc.backends.export.onnx import onnx_model
from specc.backends.export.run import RUNTIMES
from specc.backends.export.signature import Operand, Sizes, StepSignature, flattened, grouped, signature_of
from specc.backends.printing.dialect import Call
from specc.backends.printing.module import generate
from specc.check.reduce import reduced_mapping
from specc.check.single import narrowed
from specc.check.weights import logical_weights, program_weights
from specc.driver import lower_spec
from specc.ir.interpreter import init_state, run_step
from specc.ir.port import Port
from specc.manager import PassContext, Pipeline
from specc.passes.rewrite_negative_indices import RewriteNegativeIndices, rewrite_negative_indices
from specc.program import DecodeProgram
from specc.runtime.module import import_source
from specc.spec import LoadedSpec, from_mapping, load
from tests.backends.export.exports import SPECS
from tests.passes.tree_decoding_functions import INDEX_NAMES, PAD, RAISES

BATCH, ROWS = 2, 7
TREE = {
    "tokens": torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]]),
    "parent": torch.tensor([[-1, 0, 0, 1], [-1, 0, 1, 2]]),
    "valid": torch.ones(2, 4, dtype=torch.bool),
}
PLACES = {name: {INDEX_NAMES[name]: PAD} for name in INDEX_NAMES}


class Named(torch.nn.Module):
    """A function as a module with one result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> tuple[Tensor]:
        """(function(*given),)"""
        made = self.function(*given)
        return made if isinstance(made, tuple) else (made,)


def run(kind: str, function: Callable[..., Any], given: tuple[Tensor, ...]) -> Tensor:
    """A graph with one result in onnxruntime or IREE."""
    program = torch.export.export(Named(function), given, strict=False)
    inputs = tuple(
        Operand(f"x{place}", Port("input", f"x{place}"), tuple(value.shape), value.dtype)
        for place, value in enumerate(given)
    )
    signature = StepSignature("main", inputs, (Operand("y", Port("result", "y"), (), torch.float32),))
    content = onnx_model(program, signature) if kind == "onnx" else mlir_text(program, signature).encode()
    return RUNTIMES[kind]({"main": content})("main", given)[0]


def wrapped(name: str) -> tuple[Tensor, ...]:
    """The inputs of a case with -1 written as the last row."""
    case = RAISES[name]
    return tuple(
        torch.where(value < 0, value + ROWS, value) if key in PLACES[name] else value
        for key, value in case.inputs.items()
    )


@pytest.mark.parametrize("name", PLACES)
def test_iree_reads_other_memory_for_minus_one_where_onnxruntime_wraps(name: str) -> None:
    case = RAISES[name]
    given = tuple(case.inputs.values())
    last = case.function(*wrapped(name))
    assert torch.equal(run("onnx", case.function, given), last)
    read = run("mlir", case.function, given)
    assert read.shape == last.shape
    assert not torch.equal(read, last)
    assert torch.equal(run("mlir", case.function, wrapped(name)), last)


@pytest.mark.parametrize("name", PLACES)
def test_rewritten_functions_are_the_same_everywhere(name: str) -> None:
    case = RAISES[name]
    given = tuple(case.inputs.values())
    traced = torch.export.export(Named(case.function), given, strict=False).module()
    places = [node.name for node in traced.graph.nodes if node.op == "placeholder"]
    declared = {place: PAD for place, key in zip(places, case.inputs, strict=True) if key in PLACES[name]}
    made, notes = rewrite_negative_indices(traced, declared)
    assert any(note.fired for note in notes)
    wanted = made(*given)[0]
    assert torch.equal(run("mlir", made, given), wanted)
    assert torch.equal(run("onnx", made, given), wanted)


def one_layer() -> LoadedSpec:
    """A Gated DeltaNet of one layer with a tree of three drafted nodes: node 0 continues row -1 of the state table."""
    mapping = reduced_mapping(load(SPECS / "gdn-15m-tree.yaml", []))
    mapping["target"]["config"]["num_hidden_layers"] = 1
    mapping["draft"] |= {"num_speculative_tokens": 3, "num_steps": 2, "top_k": 2}
    mapping["runtime"] |= {"dtype": "float32", "state_dtype": "float32"}
    return from_mapping(mapping)


def filled(program: DecodeProgram) -> dict[str, Tensor]:
    """A state of two rows with something committed."""
    generator = torch.Generator().manual_seed(3)
    state = init_state(program, BATCH)
    for name in ("state", "conv_window"):
        state[name] = torch.randn(state[name].shape, generator=generator)
    return state | {"length": torch.tensor([4, 7]), "finished": torch.zeros(BATCH, dtype=torch.bool)}


def by_address(node: Node) -> Call | None:
    """Every x[batch, index] as rows by their address, which is how a device reads them."""
    if node.target is not torch.ops.aten.index.Tensor:
        return None
    _, index = node.args[1]  # type: ignore[misc]
    return take_rows, (node.args[0], index)


def verified(program: DecodeProgram, naive: DecodeProgram, loaded: LoadedSpec) -> tuple[Tensor, Tensor]:
    """Logits [B,N,V] of one verify step, from IREE and from the interpreter (of the naive program)."""
    drawn = logical_weights(loaded.spec, 1)
    weights = {name: narrowed(value, "cpu") for name, value in program_weights(program.weights, naive, drawn).items()}
    state, tree = filled(program), TREE
    source = generate(replace(dialect("mlir"), special=by_address), program, ModuleInfo(spec={"name": program.name}))
    signature = signature_of(program, "verify", Sizes(BATCH, 1))
    file = export_step("mlir", import_source(source, "specc_witness"), signature)
    given = flattened(signature.inputs, {"weight": weights, "slot": state, "input": tree})
    made = grouped(signature.outputs, IreeSteps({"verify": file.content})("verify", given))
    _, wanted = run_step(naive, "verify", state, weights, tree)
    return made["result"]["logits"], wanted["logits"]


def test_the_naive_program_reads_other_memory_and_the_rewritten_one_does_not() -> None:
    loaded = one_layer()
    naive = lower_spec(loaded, "mlir")
    made, wanted = verified(naive, naive, loaded)
    # The second row's -1 is the last row of the first one's table: another sequence's state.
    assert not torch.allclose(made[1], wanted[1], rtol=0.05, atol=0.05)
    rewritten = Pipeline((RewriteNegativeIndices(),)).run(naive, PassContext(verify=False)).program
    made, wanted = verified(rewritten, naive, loaded)
    torch.testing.assert_close(made, wanted, rtol=1e-3, atol=1e-4)
