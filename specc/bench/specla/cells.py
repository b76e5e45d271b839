"""The cells of this evaluation: kernels, sensitivity, and the inputs of the shared cell that decodes conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Any

import torch

from specc.bench.evaluation import modules, warm
from specc.bench.evaluation.cells import Cell, code_fingerprint, key_of
from specc.bench.gpu_timing import gpu
from specc.bench.specla import kernels, sensitivity
from specc.bench.specla.variants import Drafter, Variant
from specc.bench.step_cases import CASES, Case
from specc.spec import load

BENCH = Path(__file__).resolve().parents[1]
TINY: Mapping[str, Any] = {
    "family": "gated_deltanet",
    "config": {
        "num_hidden_layers": 2, "hidden_size": 32, "num_heads": 2, "head_dim": 8, "expand_v": 2, "conv_size": 4,
        "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 256, "tie_word_embeddings": False,
    },
}  # fmt: skip
GEOMETRIES: Mapping[str, tuple[Case, str]] = {
    "gdn-1.3b": (CASES["gdn-1.3b"], "bfloat16"),
    "gdn-tiny": (Case("gdn-tiny", "gdn-1b3-specla.yaml", 12, 160, sections={"target": dict(TINY)}), "float32"),
}
"""Cases of the sensitivity with their dtypes; the tiny one shows that it runs where there is no GPU."""

Inputs = Mapping[str, Any]
Places = Mapping[str, str]
Result = dict[str, Any]


@lru_cache(maxsize=1)
def bench_fingerprint() -> str:
    """Key of the benchmarks' own sources and of what they measure."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(BENCH.glob("*.py"))}
    own = sorted(Path(__file__).parent.glob("*.py"))
    texts |= {f"specla/{path.name}": path.read_text(encoding="utf-8") for path in own}
    return key_of({"texts": texts, "code": code_fingerprint()})


def kernel_cell(inputs: Inputs, places: Places) -> Result:
    """inputs: `part` of `kernels.PARTS`. Result: `rows`."""
    return {"rows": list(kernels.PARTS[inputs["part"]]())}


def bench_of(inputs: Inputs, places: Places) -> sensitivity.Bench:
    """Where a cell of the sensitivity is measured."""
    case, dtype = GEOMETRIES[inputs["geometry"]]
    return sensitivity.Bench(
        case,
        torch.device(inputs["device"]),
        Path(places["cache"]),
        int(inputs["tokens"]),
        int(inputs["steps"]),
        tuple(inputs["chances"]),
        dtype,
    )


def sensitivity_cell(inputs: Inputs, places: Places) -> Result:
    """inputs: `geometry`, `shape`, `device`, `tokens`, `steps`, `chances`. Result: `rows`."""
    shape = sensitivity.SHAPES[inputs["shape"]]
    return {"rows": list(sensitivity.shape_rows(bench_of(inputs, places), shape))}


def head_cell(inputs: Inputs, places: Places) -> Result:
    """The same inputs. Result: `row`, what drafting the shape with an EAGLE-3 head takes."""
    shape = sensitivity.SHAPES[inputs["shape"]]
    return {"row": sensitivity.head_us(bench_of(inputs, places), shape)}


def warm_cell(inputs: Inputs, places: Places) -> Result:
    """A cell done once in little, so that its kernels lie compiled on disk: `work` and `inputs` of that cell."""
    work, own = str(inputs["work"]), dict(inputs["inputs"])
    if work in (DECODE, BOUND):
        warm.warm_cell(own, places)
    elif work == SENSITIVITY:
        sensitivity_cell(own | {"tokens": 16, "steps": 2, "chances": [1.0]}, places)
    elif work == HEAD:
        head_cell(own, places)
    else:
        kernel_cell(own, places)
    return {}


def compile_cell(inputs: Inputs, places: Places) -> Result:
    """Only the source of a cell's module, into the cache; needs no GPU."""
    work, own = str(inputs["work"]), dict(inputs["inputs"])
    if work in (DECODE, BOUND):
        warm.compile_cell(own, places)
    elif work in (SENSITIVITY, HEAD):
        bench, shape = bench_of(own, places), sensitivity.SHAPES[own["shape"]]
        loaded = bench.head_loaded(shape) if work == HEAD else bench.loaded(shape, sensitivity.LOOKUP)
        modules.kept_source(loaded, bench.target, bench.cache)
    return {}


DECODE = "specc.bench.evaluation.turns:decode_cell"
BOUND = "specc.bench.evaluation.bound:bound_cell"
KERNELS = f"{__name__}:kernel_cell"
SENSITIVITY = f"{__name__}:sensitivity_cell"
HEAD = f"{__name__}:head_cell"


@dataclass(frozen=True, slots=True)
class Setting:
    """What all cells share. `drafters`: folders by kind; `overrides`: the user's own; `preparing`: nothing is decoded,
    so that drafters need not exist."""

    device: str
    cache: Path
    model: Path | None = None
    drafters: Mapping[Drafter, Path] | None = None
    overrides: tuple[str, ...] = ()
    max_new_tokens: int = 256
    bound: float | None = None
    preparing: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a CUDA one."""
        return self.device.startswith("cuda")

    def measured(self) -> dict[str, Any]:
        """The part of every key that says what was measured, and on what."""
        name = gpu() if self.on_gpu and torch.cuda.is_available() else {}
        return {"device": self.device, "gpu": {key: name.get(key) for key in ("gpu", "torch", "triton")},
                "bench": bench_fingerprint()}  # fmt: skip

    def has(self, variant: Variant) -> bool:
        """Whether the folders that the variant needs were given, and the device can do it."""
        if variant.other_type and not self.on_gpu:  # the reference backend's dtypes are those of a CPU
            return False
        there = self.preparing or variant.drafter == "none" or variant.drafter in (self.drafters or {})
        return self.model is not None and there

    def overrides_of(self, variant: Variant, batch: int = 1) -> list[str]:
        """The keys that are set, the user's last."""
        return [f"runtime.max_batch_size={batch}", *variant.overrides, *self.overrides]


def kernel_cells(setting: Setting) -> list[Cell]:
    """One per part; only on a GPU."""
    parts = kernels.PARTS if setting.on_gpu else ()
    return [Cell(f"kernels: {part}", KERNELS, setting.measured() | {"part": part}) for part in parts]


def sensitivity_cells(setting: Setting, tokens: int, steps: int, chances: Sequence[float]) -> list[Cell]:
    """One per shape, then one per shape's head."""
    shared = setting.measured() | {
        "geometry": "gdn-1.3b" if setting.on_gpu else "gdn-tiny",
        "tokens": tokens, "steps": steps, "chances": list(chances),
    }  # fmt: skip
    places = {"cache": str(setting.cache)}
    made = [Cell(f"sensitivity: {name}", SENSITIVITY, shared | {"shape": name}, places) for name in sensitivity.SHAPES]
    if setting.on_gpu:
        made += [Cell(f"head: {name}", HEAD, shared | {"shape": name}, places) for name in sensitivity.SHAPES]
    return made


def module_of(setting: Setting, variant: Variant, batch: int = 1, ignore_eos: bool = False) -> tuple[Result, Places]:
    """A variant's module as cells name it. Raises SpecError where the overrides make no spec."""
    assert setting.model is not None
    overrides = setting.overrides_of(variant, batch)
    load(variant.spec, overrides)
    draft = (setting.drafters or {}).get(variant.drafter)
    inputs = modules.module_inputs(
        variant.spec, overrides, model=setting.model, draft_model=draft, device=setting.device, ignore_eos=ignore_eos
    )
    return inputs, modules.module_places(variant.spec, model=setting.model, draft_model=draft, cache=setting.cache)


def decode_cells(
    setting: Setting, variant: Variant, name: str, conversations: Sequence[Mapping[str, Any]], chunk: int
) -> list[Cell]:
    """Conversations of a prompt set by a variant, `chunk` in each cell; each cell's are spread over the set."""
    inputs, places = module_of(setting, variant)
    inputs = inputs | setting.measured() | {
        "max_new_tokens": setting.max_new_tokens, "plain_turns": None,
        "bound": None if variant.other_type else setting.bound,
    }  # fmt: skip
    ordered = spread_order(conversations)
    count = -(-len(ordered) // chunk)
    return [
        Cell(
            f"{variant.name}: {name} {number + 1}/{count}",
            DECODE,
            inputs | {"conversations": ordered[number * chunk : (number + 1) * chunk], "first_number": number * chunk},
            places,
        )
        for number in range(count)
    ]


def spread_order(items: Sequence[Any]) -> list[Any]:
    """The items in steps of about 0.618 of their number, round and round: any run of them is spread over the whole, and
    where kinds take turns it has as many of each."""
    size = len(items)
    step = next((step for step in range(max(1, round(0.618 * size)), size + 1) if gcd(step, size) == 1), 1)
    return [items[number * step % size] for number in range(size)]


def bound_cell_of(setting: Setting, variant: Variant, prompts: Sequence[Sequence[int]], positions: int) -> Cell:
    """The numerical bound of the variant's plain decoding."""
    inputs, places = module_of(setting, variant, batch=16, ignore_eos=True)
    count = min(setting.max_new_tokens, 128, positions)
    more = {"prompts": [list(ids) for ids in prompts], "count": count, "positions": positions}
    return Cell("numerical bound", BOUND, inputs | setting.measured() | more, places)
