"""The steps of Ascend modules through the real torchair: one graph each, whose execution gives the eager text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specc.backends.ascend.harness import counts
from specc.backends.ascend.harness.lower import Lowered, lower
from specc.runtime.module import import_source
from tests.backends.ascend.modules import Pair, pair, prompts

TOKENS = 8
CASES = (
    ("smollm2-prompt-lookup-tree", "float16"),
    ("gdn-15m-tree", "float32"),
    ("smollm2-rejection", "float32"),
)


class Lowering:
    """Lowers every step when it is first run, and keeps what it became."""

    def __init__(self) -> None:
        self.made: dict[str, Lowered] = {}

    def __call__(self, graph: Any) -> Callable[..., tuple[torch.Tensor, ...]]:
        def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            name = f"{graph.step} {tuple(tensors[-2].shape) if graph.step == 'prefill' else ''}"
            if name not in self.made:
                self.made[name] = lower(graph, tensors)
            found: tuple[torch.Tensor, ...] = self.made[name].run(*tensors)
            return found

        return run


def by_graphs(both: Pair, lowering: Lowering) -> Any:
    """The module's Decoder, which runs GE graphs; its eager form pads nothing, so that small batches stay small."""
    module: Any = import_source(both.compilation.source, f"specc_graphs_{both.name.replace('-', '_')}")
    decoder = module.Decoder(both.ascend.weights, "cpu", eager=True)
    module.eager_runner = lowering
    return decoder


def check(name: str, dtype: str, batch: int) -> None:
    both, texts = pair(name, dtype), prompts(batch)
    wanted = both.decoder().generate(texts, TOKENS)
    lowering = Lowering()
    found = by_graphs(both, lowering).generate(texts, TOKENS)
    assert found.tokens == wanted.tokens
    for got, eager in zip(found.steps, wanted.steps, strict=True):
        assert torch.equal(got.tokens, eager.tokens)
        assert torch.equal(got.path, eager.path)
    assert any(step.startswith("step") for step in lowering.made)
    for step, lowered in lowering.made.items():
        assert lowered.recompiles == 0, step
        assert counts.copies(lowered.graph) == [], step
        assert all(update.clean for update in counts.updates(lowered.graph)), step


@pytest.mark.slow
@pytest.mark.usefixtures("torch_npu_wheel")
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_graphs_decode_the_eager_text(name: str, dtype: str) -> None:
    """Deferred and immediate commits, a drafter, drawn tokens; `specc check --target ascend` takes every spec."""
    check(name, dtype, 2)
