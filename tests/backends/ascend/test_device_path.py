"""What `specc check --target ascend --device npu` does on hardware, with the real torchair and a stand-in behind it.

The code is the same up to the graph that torchair hands to the device: the evaluator runs it here. So the settings, the
operators that must be declared, and the number of graphs are those that the first NPU will see.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.backends.ascend.harness.lower import Lowered
from specc.check.ascend import ladder
from specc.check.ascend.half import Half, reduced_half
from specc.check.ascend.ladder import walked
from specc.check.ascend.steps import Steps, compiled, eagerly
from specc.check.ascend.walk import Trio
from specc.cli import main
from specc.diagnostics import DiagnosticError
from specc.runtime.device import device_for
from specc.spec import load
from tests.backends.ascend.modules import pair
from tests.cells import ALL

# The wheel's files are compiled on first use and hold invalid escapes.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")
SPECS = Path(__file__).resolve().parents[3] / "specs"
FAMILIES = {
    "gated_deltanet": "gdn-15m-tree",
    "llama": "smollm2-prompt-lookup-tree",
    "qwen3_next": "qwen3-next-hybrid",
    "qwen3": "qwen3-dynamic-tree",
    "pangu": "eagle-pangu",
    "llama, drawn": "smollm2-rejection",
    "llama, bigram": "smollm2-bigram",
}
SAME = ("qwen3-next-hybrid", "eagle-pangu")
"""Both kinds of layers, a drafter with a model of its own; `test_parity` counts recompilations of all specs."""
BATCH = 2
REPEATED = (torch.tensor([[3, 4, 6, 3, 4, 6, 3], [5, 9, 5, 9, 5, 0, 0]]), torch.tensor([7, 5]))
OTHER = (torch.tensor([[8, 2, 31, 17, 40, 1, 12], [7, 0, 0, 0, 0, 0, 0]]), torch.tensor([6, 1]))


@pytest.mark.slow
def test_the_ladders_graphs_are_compiled_as_on_a_device(device: Lowered) -> None:
    half = Half(reduced_half(load(SPECS / "smollm2-prompt-lookup-tree.yaml"), "float16"))
    on_device = Steps(half, 1, compiled)
    trio = Trio(half, Steps(half, 1, eagerly), on_device)
    assert walked(trio, 2, 0, lambda what, done, total: None) is None
    assert {"prompted", "planted"} < set(on_device.functions)
    assert len(device.graphs) == len(on_device.functions), "one graph each, whatever lengths and trees"
    fused = [op for graph in device.graphs for op in graph.proto.op if op.type == "FusedInferAttentionScore"]
    assert fused, "the operator whose lengths are tensors is declared"


def records(steps: Any, prompt: tuple[Tensor, Tensor]) -> list[Tensor]:
    """What the host reads of a prefill and two steps."""
    started = steps.run("prefill", *prompt).clone()
    steps.state.remaining.fill_(99)
    return [started, steps.run("step").clone(), steps.run("step").clone()]


@pytest.mark.slow
@pytest.mark.parametrize("name", tuple(FAMILIES.values()) if ALL else SAME)
def test_two_lengths_and_two_trees_use_the_same_graphs(device: Lowered, name: str) -> None:
    """0 recompiles: what torchair is handed, and what torch.compile has traced, is counted."""
    module, weights = pair(name).ascend.module, pair(name).ascend.weights
    steps = module.build(weights, BATCH, "cpu")
    torch._dynamo.utils.counters.clear()
    first = records(steps, REPEATED)
    graphs, traced = len(device.graphs), torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == traced == (2 if module.COMMIT_FUSED else 3)
    for old, new in zip(steps.state, module.init_state(BATCH, "cpu"), strict=True):
        old.copy_(new)
    second = records(steps, OTHER)
    assert any(not torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert len(device.graphs) == graphs
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == traced
    assert all(graph.runs >= 2 for graph in device.graphs)


def test_what_a_device_refuses_is_a_failed_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    half = Half(reduced_half(load(SPECS / "smollm2-plain.yaml"), "float16"))
    trio = Trio(half, Steps(half, 1, eagerly), None)

    def refused(self: Steps, step: str, *extra: Tensor) -> None:
        raise RuntimeError("E89999: inner error\n\n  the operator is not supported\nsecond")

    monkeypatch.setattr(Steps, "run", refused)
    with pytest.raises(RuntimeError, match="E89999"):
        walked(trio, 1, 0, lambda what, done, total: None)
    on_device = replace(trio, half=replace(half, device="npu"))
    said = walked(on_device, 1, 0, lambda what, done, total: None)
    assert said == "the device raised RuntimeError: E89999: inner error the operator is not supported second"
    assert ladder.SAID == 4


def test_without_torch_npu_the_command_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(SPECS / "smollm2-plain.yaml"), "--target", "ascend", "--device", "npu"]) == 2
    said = capsys.readouterr().err
    assert "SPC417" in said
    assert "torch_npu" in said
    assert "specc doctor --ascend" in said
    with pytest.raises(DiagnosticError, match="SPC417"):
        device_for("ascend", "npu:0")
