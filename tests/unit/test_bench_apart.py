"""Parts of a step alone: only their own functions are called, on what the other part gave."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specc.bench.step_apart import Apart, called, of_network
from specc.runtime.module import import_source

SOURCE = """
import torch
import torch.nn.functional as F

CALLS = []


def fused_linear(x, weight):
    CALLS.append("linear")
    return inner(x @ weight)


def inner(x):
    return x + 1


def fused_v_nodes_2(x):
    CALLS.append("v")
    return x, 2 * x


def draw_children(x):
    CALLS.append("draw")
    return x.argmax(-1)


def run_between(weight, seen):
    x = F.embedding(torch.tensor([1, 0]), weight)
    for layer in range(2):
        x = fused_linear(x, weight)
        _, x = fused_v_nodes_2(x)
        token = draw_children(x)
    seen.append((x.clone(), token))
    return token
"""
WHOLE = ["linear", "v", "draw", "linear", "v", "draw"]


@pytest.mark.parametrize("network", [False, True])
def test_a_part_calls_its_own_functions_and_computes_what_the_whole_step_does(network: bool) -> None:
    module: Any = import_source(SOURCE, "specc_bench_apart")
    weight, seen = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), list[Any]()
    names = {name: value for name, value in vars(module).items() if callable(value)}
    part = Apart(module, "run_between", lambda: module.run_between(weight, seen), network)
    part()
    assert module.CALLS[:6] == WHOLE  # once as a whole
    assert module.CALLS[6:] == [name for name in WHOLE if (name != "draw") == network]
    part()
    assert len(module.CALLS) == 6 + 2 * (4 if network else 2)
    assert {name: value for name, value in vars(module).items() if callable(value)} == names
    for x, token in seen:
        assert torch.equal(x, seen[0][0])
        assert torch.equal(token, seen[0][1])


def test_a_module_need_not_embed_by_itself() -> None:
    source = SOURCE.replace("import torch.nn.functional as F\n", "")
    source = source.replace("F.embedding(torch.tensor([1, 0]), weight)", "weight[[1, 0]]")
    module: Any = import_source(source, "specc_bench_apart")
    Apart(module, "run_between", lambda: module.run_between(torch.eye(2), []), True)()
    assert module.CALLS[6:] == ["linear", "v"] * 2
    assert not hasattr(module, "F")


def test_embeddings_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = import_source(SOURCE, "specc_bench_apart")
    made, embedding = list[Any](), torch.nn.functional.embedding

    def counted(*args: Any) -> torch.Tensor:
        made.append(args)
        return embedding(*args)

    monkeypatch.setattr(torch.nn.functional, "embedding", counted)
    for network, calls in ((True, 1), (False, 2)):
        made.clear()
        Apart(module, "run_between", lambda: module.run_between(torch.eye(2), []), network)()
        assert len(made) == calls


def test_functions_of_a_step_are_those_that_it_names() -> None:
    module: Any = import_source(SOURCE, "specc_bench_apart")
    found = [name for name, _ in called(module, "run_between")]
    assert sorted(found) == ["draw_children", "fused_linear", "fused_v_nodes_2"]
    assert [name for name in found if of_network(name)] == ["fused_linear", "fused_v_nodes_2"]


def test_functions_that_the_other_part_calls_by_itself_give_nothing() -> None:
    """Attention with its projection is one call of a step and two of the network's functions."""
    source = SOURCE.replace("return x, 2 * x", "return x, fused_linear(x, 3 * torch.eye(2))")
    module: Any = import_source(source, "specc_bench_apart")
    weight, seen = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), list[Any]()
    Apart(module, "run_between", lambda: module.run_between(weight, seen), False)()
    assert module.CALLS[-2:] == ["draw", "draw"]
    assert torch.equal(seen[1][0], seen[0][0])
    assert torch.equal(seen[1][1], seen[0][1])
