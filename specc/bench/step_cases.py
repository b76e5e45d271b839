"""What `specc bench step` measures: model geometries with random weights, the bytes a step has to read, drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
import yaml

from specc.bench.gpu_timing import RATE
from specc.check.weights import PREFIX, program_weights
from specc.lower.assemble import lower
from specc.lower.drafts.state import head_geometry, head_weight_table
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table
from specc.runtime.module import GeneratedModule
from specc.spec import LoadedSpec, Spec, from_mapping
from specc.testing.draft_tree import DraftTree, make_tree

SPECS = Path(__file__).resolve().parents[1] / "specs"
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TREE_OF_16: Mapping[str, Any] = {
    "method": "prompt_lookup",
    "tree": "dynamic",
    "num_speculative_tokens": 15,
    "num_steps": 6,
    "top_k": 3,
    "ngram": {"min": 1, "max": 4},
}
SCALE = 0.5
"""Of linear layers' random weights: with 1 rounding in bfloat16 grows to a quarter of the logits within 30 layers."""
GREEDY: Mapping[str, Any] = {"method": "greedy"}
SOFT: Mapping[str, Any] = {"temperature": 0.8, "seed": 7}
SOFT_TOP_50: Mapping[str, Any] = {**SOFT, "top_k": 50}
PATHS_OF_16 = (
    "0", "1", "2", "00", "01", "10", "20", "000", "001", "010", "100", "0000", "0010", "0100", "00000",
)  # fmt: skip
BETWEEN = "accept + build + commit"
"""The form of what stands between two verifications, captured alone: from the logits of a tree to the next tree."""
DRAWN_APART = (f"{BETWEEN}, network", f"{BETWEEN}, drawing", "step, drawing")
"""Forms of a part in a graph of its own, see `specc.bench.step_apart`. Only a whole step has the laws of drawn nodes:
in `BETWEEN` nothing reads those of the next tree."""


def static_draft(paths: Sequence[str]) -> dict[str, Any]:
    """A draft model of two of SmolLM2's layers, with these rank paths."""
    target = yaml.safe_load((SPECS / "smollm2-rejection.yaml").read_text(encoding="utf-8"))["target"]
    config = target["config"] | {"num_hidden_layers": 2}
    choices = [[int(rank) for rank in path] for path in paths]
    return {"method": "draft_model", "family": "llama", "config": config, "tree": "static", "choices": choices}


@dataclass(frozen=True, slots=True)
class Case:
    """A shipped spec with some sections replaced, in bfloat16 (or `dtype`), without stop tokens.

    `context`: committed tokens before the step. `plain_bar`: a plain step over reading weights and state once;
    `plain_us`: a plain step in microseconds; `verify_bar`: verifying all nodes over that plain step (issue bars; None:
    none is set). `forms`: what is measured (default: everything). `page`: rows of a page of the caches (0: contiguous).
    """

    name: str
    spec: str
    context: int
    capacity: int
    plain_bar: float | None = None
    plain_us: float | None = None
    verify_bar: float | None = None
    sections: Mapping[str, Any] = field(default_factory=dict)
    forms: tuple[str, ...] = ()
    dtype: str = "bfloat16"
    page: int = 0

    def loaded(self, batch: int, dtype: str | None = None) -> LoadedSpec:
        """The spec for so many rows at once."""
        mapping: dict[str, Any] = yaml.safe_load((SPECS / self.spec).read_text(encoding="utf-8"))
        mapping |= {"name": f"bench-{self.name}".replace(".", "-"), "accept": dict(GREEDY)} | dict(self.sections)
        dtype = dtype or self.dtype
        runtime: dict[str, Any] = {"max_batch_size": batch, "max_sequence_length": self.capacity, "dtype": dtype}
        if dtype == "float64" and mapping["target"]["family"] in ("gated_deltanet", "qwen3_next"):
            runtime["state_dtype"] = "float64"
        if self.page:
            runtime |= {"kv_layout": "paged", "kv_block_size": self.page}
        return from_mapping(mapping | {"runtime": runtime}, base=SPECS)


CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case("gdn-1.3b", "gdn-1b3-specla.yaml", 512, 2000, plain_bar=1.6, verify_bar=1.2),
        Case("llama-3.2-1b", "llama3-scaled.yaml", 4096, 4608, plain_bar=1.6, verify_bar=1.2,
             sections={"draft": TREE_OF_16, "sampling": {"seed": 1}}),
        Case("smollm2", "smollm2-prompt-lookup-tree.yaml", 512, 2048, plain_us=400.0),
        *(
            Case(f"smollm2-paged-{page}", "smollm2-prompt-lookup-tree.yaml", 512, 2048, page=page,
                 forms=("plain", "verify", "accept", "commit", "step"))
            for page in (16, 64)
        ),
        Case("smollm2-eagle", "smollm2-eagle.yaml", 512, 2048),
        *(
            Case(f"smollm2-target-only{name}", "smollm2-prompt-lookup-tree.yaml", 512, 2048, forms=(BETWEEN,),
                 sections={"accept": {"method": "rejection", "rule": "target_only"}, "sampling": sampling})
            for name, sampling in (("", SOFT), ("-top-50", SOFT_TOP_50))
        ),
        *(
            Case(f"smollm2-true-q{name}", "smollm2-rejection.yaml", 512, 2048, forms=(BETWEEN, *DRAWN_APART),
                 sections={"accept": {"method": "rejection", "rule": "true_q"}, "sampling": sampling,
                           "draft": static_draft(PATHS_OF_16)})
            for name, sampling in (("", SOFT), ("-top-50", SOFT_TOP_50))
        ),
        Case("gdn-15m-eagle", "gdn-15m-eagle.yaml", 256, 1024, dtype="float32"),
    )
}  # fmt: skip


def weights_on(module: GeneratedModule, loaded: LoadedSpec, device: torch.device | str, seed: int = 0,
               change: Callable[[dict[str, Any]], None] | None = None) -> Any:  # fmt: skip
    """Random `Weights` of a module, drawn on the device, in the module's own layout and types.

    The values are rounded to bfloat16 first, whatever the module's dtype: a float64 module of the same seed then has
    the weights of a bfloat16 one. For all drafters but bigram tables, unless `change` adds others: it may replace and
    add weights by their logical names (see `specc.check.weights`).
    """
    geometry = loaded.spec.target.geometry
    drawn = random_weights(weight_table(geometry), geometry, seed, torch.bfloat16, scale=SCALE, device=device)
    logical = {name: value if isinstance(value, torch.Tensor) else tuple(value) for name, value in drawn.items()}
    logical |= _head_weights(loaded.spec, device, seed + 2)
    if change is not None:
        change(logical)
    layouts = {layout.name: layout for layout in module.WEIGHTS}
    made = program_weights(layouts, lower(loaded.spec), logical)
    cast = {
        name: value.to(layouts[name].dtype)
        if isinstance(value, torch.Tensor)
        else tuple(part.to(layouts[name].dtype) for part in value)
        for name, value in made.items()
    }
    return module.Weights(**cast)


def _head_weights(spec: Spec, device: torch.device | str, seed: int) -> dict[str, Any]:
    """A random EAGLE-3 head (its vocabulary tables included) or draft model by logical names; nothing for others."""
    head, drafter = spec.eagle_geometry, spec.draft_geometry
    if head is not None:
        table, geometry = head_weight_table(head), head_geometry(head)
        drawn = random_weights(table, geometry, seed, torch.bfloat16, scale=SCALE, device=device, include_optional=True)
        return {f"{PREFIX}{name}": value.to(device) for name, value in drawn.items() if isinstance(value, torch.Tensor)}
    if drafter is None:
        return {}
    drawn = random_weights(weight_table(drafter), drafter, seed, torch.bfloat16, scale=SCALE, device=device)
    return {
        f"{PREFIX}{name}": value if isinstance(value, torch.Tensor) else tuple(value) for name, value in drawn.items()
    }


@dataclass(frozen=True, slots=True)
class Floor:
    """Bytes of a plain step: weights read once, recurrent states read and written once, K and V rows read once."""

    weights: int
    state: int
    kv: int

    @property
    def us(self) -> float:
        """Microseconds at the rate that a plain sum reaches."""
        return (self.weights + self.state + self.kv) / RATE * 1e6


def floor_of(spec: Spec, batch: int, context: int) -> Floor:
    """The fewest bytes of one plain step of `batch` rows with `context` committed tokens each.

    An embedding table that is not the head too is read by rows only, which is not counted.
    """
    geometry = spec.target.geometry
    size = DTYPES[spec.runtime.dtype].itemsize
    counts = {
        entry.name: torch.Size(entry.shape).numel() * len(entry.layers(geometry.num_hidden_layers))
        for entry in weight_table(geometry)
        if not entry.optional
    }
    if "lm_head" in counts:
        counts.pop("embed_tokens")
    state, attending = 0, 0
    for layer in geometry.layers:
        if layer.mixer == "delta":
            delta = geometry.delta
            assert delta is not None
            per_row = delta.num_value_heads * delta.value_dim * delta.key_dim
            state += 2 * batch * per_row * DTYPES[spec.runtime.state_dtype].itemsize
        else:
            attending += 1
    kv = 2 * attending * batch * context * geometry.num_key_value_heads * geometry.head_dim * size
    return Floor(sum(counts.values()) * size, state, kv)


def prompt_of(spec: Spec, length: int, seed: int) -> list[int]:
    """Random tokens in which a phrase comes back with other continuations, and which end with it.

    The last token is to be the root: prompt lookup then finds as many continuations as it may follow.
    """
    rng, vocabulary = Random(seed), spec.target.geometry.vocab_size
    phrase = [rng.randrange(vocabulary) for _ in range(3)]
    ids: list[int] = []
    while len(ids) < length:
        ids += [*phrase, *(rng.randrange(vocabulary) for _ in range(9))]
    return [*ids[: length - len(phrase)], *phrase]


def full_tree(spec: Spec, root: int, rng: Random) -> DraftTree:
    """A tree without padding, as deep as the spec's paths go: a chain for chain specs, else random below that."""
    nodes, depth = spec.num_nodes, spec.depth
    parent, level = [-1], [0]
    for node in range(1, nodes):
        if spec.is_chain or node <= depth:
            above = node - 1
        else:
            above = rng.choice([other for other in range(node) if level[other] < depth])
        parent.append(above)
        level.append(level[above] + 1)
    tokens = [root, *(rng.randrange(spec.target.geometry.vocab_size) for _ in range(nodes - 1))]
    return make_tree(tokens, parent)
