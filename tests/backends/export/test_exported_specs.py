"""Every shipped spec, reduced: its exported steps give what the naive program and plain decoding give.

Each example prefills prompts, then drafts, verifies, accepts and commits planted and own trees, on exports of a batch
of 1 or 4; exports compute in float32, within the bounds of `specc.check.single`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from specc.check.example import Example
from specc.diagnostics import DiagnosticError
from tests.backends.export.exports import NAMES, exported, run, sessions
from tests.cells import ALL

# Every drafter, family, kind of tree, rule of acceptance and way of commit is in one of these, every batch with each
# kind of layer; `HYPOTHESIS_PROFILE=ci` or `thorough` takes all specs.
BATCHED = ("eagle-pangu", "llama3-scaled", "pangu-chain", "qwen3-dynamic-tree", "smollm2-bigram")
SINGLE_ROW = ("qwen3-next-hybrid", "smollm2-rejection")
COMPILED = ("gdn-15m-tree", "smollm2-prompt-lookup-tree")
"""IREE compiles a spec's steps for most of a minute."""
CELLS = [
    *(("onnx", name, 4) for name in (NAMES if ALL else BATCHED)),
    *(("onnx", name, 1) for name in (NAMES if ALL else SINGLE_ROW)),
    *(("mlir", name, 4) for name in (NAMES if ALL else COMPILED)),
]
NOT_RUN: dict[tuple[str, str], str] = {}
"""(target, spec) -> what the exporter or its runtime says; the test asserts that it still does. All of them run."""
EXAMPLES = 4


def test_every_shipped_spec_is_exported() -> None:
    assert len(NAMES) == 16
    assert {*BATCHED, *SINGLE_ROW, *COMPILED} <= set(NAMES)
    assert set(NOT_RUN) <= {(target, name) for target, name, _ in CELLS}


@pytest.mark.slow
@pytest.mark.parametrize(("target", "name", "batch"), CELLS)
def test_exported_steps_equal_the_reference(target: str, name: str, batch: int) -> None:
    subject = exported(name, target, batch)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(sessions(batch))
    def check(example: Example) -> None:
        assert run(subject, example) is None

    reason = NOT_RUN.get((target, name))
    if reason is None:
        check()
        return
    with pytest.raises((DiagnosticError, RuntimeError), match=reason):
        check()
