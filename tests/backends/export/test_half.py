"""Exports in half precision: fused attention spelled out, near float64 within the rounding of every stored result.

What ONNX Runtime makes of both types, `test_exported_types` sees on whole steps.

The bound is that of `specc check --target ascend` (specc/check/ascend/bounds.py): both compute the same program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.backends.export.export import export_step
from specc.backends.export.run import RUNTIMES, with_steps
from specc.backends.export.signature import Sizes, signature_of
from specc.check.ascend.bounds import difference, half_bound
from specc.check.ascend.half import Half, reduced_half
from specc.driver import generate, run_passes
from specc.runtime.module import import_source
from specc.spec import load
from tests.backends.export.exports import SPECS
from tests.cells import ALL

BATCH, CHUNK = 2, 6
STEPS = ("prefill", "verify")
IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 0, 0, 0]])
LENGTHS = torch.tensor([6, 3])
NO_KERNELS = {("onnx", "bfloat16"): "NOT_IMPLEMENTED"}
"""onnxruntime's CPU provider has no bfloat16 kernels for most operators: such a model can be written, not run there."""


def tree() -> dict[str, Tensor]:
    """A root with two children, the first of which has two."""
    return {
        "tokens": torch.tensor([[9, 2, 7, 1, 8], [4, 4, 2, 6, 3]]),
        "parent": torch.tensor([[-1, 0, 0, 1, 1], [-1, 0, 1, 1, 0]]),
        "valid": torch.tensor([[True] * 5, [True] * 4 + [False]]),
    }


def exported(half: Half, target: str) -> Any:
    """The module of a half-precision spec with prefill and verify exported."""
    program = run_passes(half.loaded, half.naive, target=target, verify=False).program
    module = import_source(generate(half.loaded, program, target), f"specc_half_{target}")
    signatures = {step: signature_of(program, step, Sizes(BATCH, CHUNK)) for step in STEPS}
    files = {step: export_step(target, module, signature).content for step, signature in signatures.items()}
    return with_steps(module, signatures, RUNTIMES[target](files))


def results(module: Any, weights: Any, state: Any) -> Mapping[str, Tensor]:
    """Logits after a prefill, and of a tree behind it."""
    state, prompt = module.prefill(weights, state, IDS, LENGTHS)[:2]
    _, verified = module.verify(weights, state, *tree().values())
    return {"prompt": prompt, "tree": verified.logits[tree()["valid"]]}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("target", ["onnx", "mlir"] if ALL else ["mlir"])
def test_half_precision_is_near_float64(target: str, dtype: str) -> None:
    changes = {"draft.num_speculative_tokens": 4, "draft.num_steps": 2, "draft.top_k": 2}
    half = Half(reduced_half(load(SPECS / "smollm2-prompt-lookup-tree.yaml", []), dtype, changes))
    module = exported(half, target)
    weights = module.Weights(**half.weights._asdict())
    reason = NO_KERNELS.get((target, dtype))
    if reason is not None:
        with pytest.raises(RuntimeError, match=reason):
            results(module, weights, module.init_state(BATCH, "cpu"))
        return
    made = results(module, weights, module.init_state(BATCH, "cpu"))
    oracle = half.oracle
    wanted = results(oracle.module, oracle.weights, oracle.module.init_state(BATCH, "cpu"))
    bound = half_bound(half.loaded.spec.target.geometry, half.dtype)
    for name, value in made.items():
        assert 0.0 < difference(value, wanted[name]) <= bound, name
