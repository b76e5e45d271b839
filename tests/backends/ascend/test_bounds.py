"""The error model of specc/check/ascend/bounds.py: its roundings are counted, its magnification is measured in float64.

Nothing here looks at how far half-precision results are off.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from specc.check.ascend.bounds import (
    MAGNIFIED,
    MAGNIFIED_RECURRENT,
    PEAK,
    ROUNDINGS,
    difference,
    half_bound,
    roundings,
    unit_roundoff,
)
from specc.check.ascend.half import Half, reduced_half
from specc.check.ascend.steps import Steps, eagerly
from specc.check.ascend.walk import CHUNK
from specc.check.ascend.witness import Witness, witness_half
from specc.check.drafts import as_bag, planted
from specc.check.machines import Generated
from specc.check.subject import Subject
from specc.check.weights import Value, logical_weights, program_weights
from specc.models.geometry import Geometry
from specc.spec import load
from tests.cells import spread

SPECS = Path(__file__).resolve().parents[3] / "specs"
NAMES = sorted(path.stem for path in SPECS.glob("*.yaml"))
MOVED = """_unsafe_view alias argmax as_strided cat clamp clone constant_pad_nd copy_ detach embedding expand fill_ full
    full_like gather index index_select masked_fill max min narrow new_empty neg npu_scatter_nd_update
    npu_scatter_nd_update_ npu_scatter_pa_kv_cache npu_scatter_update scatter_update scatter_update_ ones ones_like
    permute relu reshape roll select select_scatter slice slice_scatter sort split split_with_sizes squeeze stack t take
    topk transpose unbind unsqueeze view where zeros zeros_like zero_"""
"""Operators that move, choose or repeat values: what they give was there before."""
EXACT = frozenset(MOVED.split())
DISTURBED = 1e-6
SEEDS = 3


class Depths(TorchDispatchMode):
    """How many roundings to a type lie behind one another, for every tensor that came about inside."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.known = WeakIdKeyDictionary()  # type: ignore[no-untyped-call]

    def of(self, value: Tensor) -> int:
        """Of one tensor."""
        return int(self.known.get(value, 0))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
        behind = max((self.of(value) for value in given), default=0)
        same = any(value.dtype == self.dtype for value in given)
        name = func.overloadpacket.__name__
        made = func(*args, **(kwargs or {}))
        exact = name in EXACT or (name == "_to_copy" and same)
        for value in pytree.tree_leaves(made):
            if isinstance(value, Tensor):
                self.known[value] = behind + (value.dtype == self.dtype and not exact)
        return made


def counted(half: Half, machine: Steps | Witness) -> tuple[int, float]:
    """The roundings behind the logits of a verified tree, and what the bound takes them for."""
    ids = torch.tensor([[3, 1, 4, 1, 5, 9][:CHUNK]])
    bag = as_bag(half.exact, planted(half.exact, [[*ids[0].tolist(), 7]], 3, 99), 3)
    depths = Depths(half.dtype)
    machine.fresh(torch.tensor([5]))
    with depths:
        machine.prompt(ids, torch.tensor([CHUNK]))
        machine.state.remaining.fill_(99)
        machine.state.finished.fill_(False)
        logits = machine.plant(bag)["logits"]
    spelled = isinstance(machine, Witness)
    return depths.of(logits), roundings(half.loaded.spec.target.geometry, half.dtype, spelled)


@pytest.mark.slow
@pytest.mark.parametrize("name", spread(NAMES, 5))
def test_no_more_roundings_than_the_bound_counts(name: str) -> None:
    loaded = load(SPECS / f"{name}.yaml")
    fused = Half(reduced_half(loaded, "float16"))
    spelled = witness_half(loaded, "float16", "onnx")
    for half, machine in ((fused, Steps(fused, 1, eagerly)), (spelled, Witness(spelled, 1, steps=()))):
        seen, allowed = counted(half, machine)
        assert 0.5 * allowed <= seen <= allowed, (half.target, seen, allowed)


def disturbances(geometry: Geometry) -> int:
    """Disturbed weights behind one another: norm, projection, output, norm, gate and up, down; of a recurrent layer its
    convolution and its heads' norm, too; embedding, last norm and head."""
    return sum(8 if layer.mixer == "delta" else 6 for layer in geometry.layers) + 3


def disturbed(value: Value, generator: torch.Generator) -> Value:
    """Every number off by a relative DISTURBED at most, at random, as a rounding of what it is multiplied with."""
    if not isinstance(value, Tensor):
        return tuple(disturbed(one, generator) for one in value)  # type: ignore[misc]
    if not value.is_floating_point():
        return value
    noise = 2.0 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 1.0
    return value * (1.0 + DISTURBED * noise)


def results(subject: Subject, weights: dict[str, Value], seed: int) -> list[Tensor]:
    """Logits of a prompt and of a tree behind it, and the caches and states that the prompt leaves."""
    module, generator = subject.generated.module, torch.Generator().manual_seed(seed)
    drawn = module.Weights(**program_weights(subject.program.weights, subject.naive, weights))
    machine = Generated("float64", module, subject.generated.slots, drawn)
    ids, lengths = torch.randint(0, subject.vocabulary, (2, 12), generator=generator), torch.tensor([12, 7])
    state, found = machine.step("prefill", machine.start(2), {"input_ids": ids, "lengths": lengths})
    state["remaining"].fill_(99)
    state["finished"].fill_(False)
    kept = [value.clone() for name, value in state.items() if name.endswith(("_cache", "state"))]
    bag = as_bag(subject, planted(subject, [ids[0].tolist(), ids[1, :7].tolist()], seed, 99), seed)
    _, tree = machine.step("verify", state, bag)
    return [found["logits"], tree["logits"][bag["valid"]], *(one for one in kept if one.is_floating_point())]


@pytest.mark.slow
@pytest.mark.parametrize("name", spread(NAMES, 6))
def test_stacks_magnify_no_more_than_the_bound_allows_for(name: str) -> None:
    half = Half(reduced_half(load(SPECS / f"{name}.yaml"), "bfloat16"))
    subject, geometry = half.exact, half.loaded.spec.target.geometry
    # The scale without MAGNIFIED, for this many disturbances.
    expected = PEAK / math.sqrt(3.0) * DISTURBED * math.sqrt(disturbances(geometry))
    for seed in range(SEEDS):
        generator, drawn = torch.Generator().manual_seed(seed), logical_weights(subject.spec, seed)
        exact = {key: drawn[key] for key in subject.naive.weights}
        near = {key: disturbed(value, generator) for key, value in exact.items()}
        pairs = zip(results(subject, near, seed), results(subject, exact, seed), strict=True)
        magnified = max(difference(one, other) for one, other in pairs) / expected
        allowed = MAGNIFIED_RECURRENT if geometry.recurrent else MAGNIFIED
        assert 0.0 < magnified <= allowed / 1.5, "what the bound adds to the measured magnification is a factor of 2"


def test_bounds_grow_with_the_type_and_the_root_of_the_roundings() -> None:
    geometry = load(SPECS / "smollm2-plain.yaml").spec.target.geometry
    halves = [half_bound(geometry, dtype) for dtype in (torch.float16, torch.bfloat16)]
    assert halves[1] == 8.0 * halves[0], "three bits fewer"
    count = ROUNDINGS * geometry.num_hidden_layers + 4
    assert halves[0] == pytest.approx(PEAK / math.sqrt(3) * MAGNIFIED * 2.0**-11 * math.sqrt(count))
    assert unit_roundoff(torch.float32) < half_bound(geometry, torch.float32) < halves[0] / 50.0
