"""`build`, `cache_compile` and `export` of a module, with the real torchair and our stand-in for the device."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from specc.backends.ascend.harness.lower import Lowered
from specc.backends.ascend.runtime.merge import merge_duplicates
from tests.backends.ascend.modules import QUICK, Pair, pair
from tests.cells import ALL

# The wheel's files are compiled on first use and hold invalid escapes.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")
BATCH = 2
STEPS = 3
NAME = QUICK[1]


def records(steps: Any) -> list[Tensor]:
    """What the host reads of a prefill, some steps and a plain one; the state behind them."""
    ids, lengths = torch.tensor([[3, 4, 6, 3, 4, 6], [5, 9, 5, 9, 0, 0]]), torch.tensor([6, 4])
    found = [steps.run("prefill", ids, lengths)]
    found += [steps.run("step").clone() for _ in range(STEPS)]
    found += [steps.run("flush").clone(), steps.run("plain").clone()]
    return found


def eager(both: Pair) -> list[Tensor]:
    return records(both.ascend.module.build(both.ascend.weights, BATCH, "cpu", eager=True))


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
def test_compiled_steps_are_one_graph_each_and_give_the_eager_records(device: Lowered) -> None:
    both = pair(NAME)
    module, weights = both.ascend.module, both.ascend.weights
    steps = module.build(weights, BATCH, "cpu")
    assert same(records(steps), eager(both))
    made = len(device.graphs)
    assert made == 5, "prefill, step, commit, flush, plain"
    records(steps)
    assert len(device.graphs) == made, "other lengths, the same graphs"
    module.build(weights, 1, "cpu").run("flush")
    assert len(device.graphs) == made + 1, "another batch size is another graph"


@pytest.mark.slow
def test_another_process_finds_what_was_compiled(device: Lowered, tmp_path: Path) -> None:
    """The second time nothing is traced: the graphs come from the folder."""
    both = pair(NAME)
    make, weights = both.ascend.module.cache_compile, both.ascend.weights
    wanted = eager(both)
    for fresh in (True, False):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        assert same(records(make(tmp_path, weights, BATCH, "cpu")), wanted)
        assert bool(torch._dynamo.utils.counters["stats"]["unique_graphs"]) == fresh
    assert len(list(tmp_path.rglob("compiled_module"))) == 5
    assert device.graphs


@pytest.mark.slow
@pytest.mark.parametrize("name", [NAME, QUICK[0]] if ALL else [QUICK[0]])
def test_exported_graphs_state_their_inputs(device: Lowered, tmp_path: Path, name: str) -> None:
    """inputs.json names every input of the graph, in its order: the shapes are those of the named tensors."""
    both = pair(name)
    module, weights = both.ascend.module, both.ascend.weights

    def write(model: bytes, options: dict[str, str]) -> None:
        (Path(options["export_path_dir"]) / f"{options['export_name']}.pb").write_bytes(model)

    sys.modules["torchair.core._torchair"].export = write  # type: ignore[attr-defined]
    folders = [Path(folder) for folder in module.export(tmp_path, weights, BATCH, "cpu")]
    steps = {folder.name.split("-")[0] for folder in folders}
    assert steps == {"prefill", "step", "plain", "flush"} | (set() if module.COMMIT_FUSED else {"commit"})
    state = module.init_state(BATCH, "cpu")
    tensors = dict(zip(module.input_names("", 0), module.flattened(weights, module.views(state)), strict=True))
    for folder in folders:
        names = json.loads((folder / "inputs.json").read_text())
        shapes = input_shapes(next(folder.glob("*.pb")).read_bytes())
        assert len(names) == len(shapes)
        for input_name, shape in zip(names, shapes, strict=True):
            known = tensors.get(input_name)
            assert known is None or tuple(known.shape) == shape, (folder.name, input_name)
            assert known is not None or input_name.startswith(folder.name.split("-")[0])
    assert device.recompiles == 0


def input_shapes(model: bytes) -> list[tuple[int, ...]]:
    """The shapes of a serialised graph's inputs, by their index."""
    from torchair._ge_concrete_graph.ge_ir_pb2 import GraphDef, ModelDef  # importable only while torchair is loaded

    whole, graph = ModelDef(), GraphDef()
    whole.ParseFromString(model)
    graph = whole.graph[0] if whole.graph else graph
    if not graph.op:
        graph.ParseFromString(model)
    inputs = [op for op in graph.op if op.type in ("Data", "RefData")]
    inputs.sort(key=lambda op: op.attr["index"].i)
    return [tuple(op.output_desc[0].shape.dim) for op in inputs]


def test_equal_computations_become_one_up_to_the_first_write() -> None:
    """Numbers of different types differ; what follows a write may read something else."""

    def step(x: Tensor) -> tuple[Tensor, ...]:
        first, second, other = x + 1, x + 1, x + 1.0
        x.add_(first)
        return first, second, other, x + 1

    graph = make_fx(step)(torch.arange(3))
    before, wanted = len(graph.graph.nodes), step(torch.arange(3))
    merge_duplicates(graph)
    assert len(graph.graph.nodes) == before - 1
    assert same(list(graph(torch.arange(3))), list(wanted))
