"""What a drafter has to be worth: speed-up over plain decoding by the probability that a drafted token is right.

The geometry is GDN-1.3B's with random weights in bfloat16, one row. For every probability p, drafts of that quality are
decoded through the module's own steps (`simulated`); the time of a step is measured, the acceptance is simulated. Each
speed-up is given twice: without the cost of a draft, and with the measured time of an EAGLE-3 head of that geometry,
which drafts the same shape (a step of a drafter is part of the step's one graph, so the times add).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specc.bench.delta_inputs import ranked
from specc.bench.evaluation.cells import key_of
from specc.bench.evaluation.modules import kept_source
from specc.bench.gpu_timing import Row
from specc.bench.specla.planted import depth_of, expected_acceptance_length
from specc.bench.specla.simulated import Run, Simulated, predictable, simulated
from specc.bench.step_cases import Case, prompt_of, weights_on
from specc.bench.step_stand import brought_up, captured, replayed
from specc.runtime.module import GeneratedModule, import_source
from specc.spec import LoadedSpec

CHANCES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
LOOKUP: Mapping[str, Any] = {"method": "prompt_lookup", "ngram": {"min": 1, "max": 4}}
CHAIN: Mapping[str, Any] = {"tree": "chain", "num_speculative_tokens": 8}
TREE: Mapping[str, Any] = {"tree": "dynamic", "num_speculative_tokens": 15, "top_k": 4}
DEFERRED: Mapping[str, Any] = {"state": "factors", "update": "deferred"}


def eagle_of(hidden: int, layers: int, vocabulary: int) -> dict[str, Any]:
    """The `draft` keys of an EAGLE-3 head beside a recurrent target of this size, fed by three layers' readouts."""
    head_dim = min(128, hidden // 4)
    config = {
        "hidden_size": hidden, "num_attention_heads": hidden // head_dim, "head_dim": head_dim,
        "draft_vocab_size": min(8192, vocabulary),
    }  # fmt: skip
    aux = [min(2, layers - 3), layers // 2, layers - 2] if layers > 4 else [0, layers - 1]
    return {
        "method": "eagle3", "checkpoint": None, "config": config, "aux_hidden_state_of": "readout",
        "aux_hidden_state_layer_ids": aux,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of draft; `sections` of the spec that decodes it, `steps` of the head that drafts it."""

    name: str
    parent: tuple[int, ...]
    draft: Mapping[str, Any]
    recurrence: str = "auto"

    @property
    def depth(self) -> int:
        """Drafted nodes on the longest path."""
        return depth_of(self.parent)

    def sections(self, drafter: Mapping[str, Any]) -> dict[str, Any]:
        """The spec's sections with a drafter of this shape."""
        draft = {**drafter, **self.draft}
        if self.draft["tree"] != "chain":
            draft["num_steps"] = self.depth
        return {"draft": draft, "verify": {"recurrence": self.recurrence}, "commit": dict(DEFERRED)}


def _tree(top: int, depth: int, nodes: int, first: float = 0.7) -> tuple[int, ...]:
    return tuple(row - 1 for row in ranked(top, depth, nodes, first))


SHAPES: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("chain of 8", tuple(range(-1, 8)), CHAIN),
        Shape("tree of 16, top 4, depth 6", _tree(4, 6, 16), TREE),
        Shape("tree of 16, top 2, depth 12", _tree(2, 12, 16, 0.9), {**TREE, "top_k": 2}),
    )
}


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the sensitivity is measured: a case of a recurrent model, a device, and how much of each thing."""

    case: Case
    device: torch.device
    cache: Path
    tokens: int = 1024
    steps: int = 400
    chances: Sequence[float] = CHANCES
    dtype: str = "bfloat16"

    @property
    def target(self) -> str:
        """The backend."""
        return "triton" if self.device.type == "cuda" else "reference"

    def loaded(self, shape: Shape, drafter: Mapping[str, Any]) -> LoadedSpec:
        """The spec of a shape."""
        sections = {**self.case.sections, **shape.sections(drafter)}
        return replace(self.case, sections=sections).loaded(1, self.dtype)

    def module(self, loaded: LoadedSpec) -> GeneratedModule:
        """The spec's module; its source is kept."""
        source = kept_source(loaded, self.target, self.cache)
        return import_source(source, f"specc_bench_specla_{key_of(source)[:16]}")

    def head_loaded(self, shape: Shape) -> LoadedSpec:
        """The spec of an EAGLE-3 head that drafts the shape."""
        geometry = self.loaded(shape, LOOKUP).spec.target.geometry
        drafter = eagle_of(geometry.hidden_size, geometry.num_hidden_layers, geometry.vocab_size)
        return self.loaded(shape, drafter)


def stand_of(bench: Bench, shape: Shape) -> Simulated:
    """A row of the geometry after its prompt, ready for drafts of the shape."""
    loaded = bench.loaded(shape, LOOKUP)
    module = bench.module(loaded)
    weights = weights_on(module, loaded, bench.device, change=predictable)
    prompt = prompt_of(loaded.spec, bench.case.context, 0)
    return simulated(loaded, module, weights, prompt, bench.device)


def head_us(bench: Bench, shape: Shape) -> Row:
    """Microseconds of a draft of the shape by an EAGLE-3 head of the geometry with random weights; CUDA only."""
    loaded = bench.head_loaded(shape)
    module = bench.module(loaded)
    stand = brought_up(bench.case, loaded, module, 1, bench.device)
    with torch.no_grad():
        stand.step()  # the root's features are those of a step
        if bench.device.type != "cuda":
            stand.make_draft()
            return {"nodes": int(stand.drafted.valid.sum())}
        found = replayed(captured(stand.make_draft), stand.moving())
    return found.row("draft_us") | {"nodes": int(stand.drafted.valid.sum())}


def shape_rows(bench: Bench, shape: Shape) -> Iterator[Row]:
    """One row per probability, all against the same plain decoding."""
    with torch.no_grad():
        stand = stand_of(bench, shape)
        plain = stand.plain(bench.tokens)
        label = {"geometry": bench.case.name, "shape": shape.name, "nodes": len(shape.parent), "depth": shape.depth}
        again = stand.plain(bench.tokens)
        if again.mean_us < plain.mean_us:  # the faster of two, against ourselves
            plain = again
        for p in bench.chances:
            run = stand.speculative(shape.parent, p, bench.steps, seed=round(1000 * p))
            yield label | {"p": p, "kind": "simulated"} | sensitivity_row(plain, run, shape, p)


def sensitivity_row(plain: Run, run: Run, shape: Shape, p: float) -> Row:
    """What a run at one probability gives beside plain decoding."""
    return {
        "steps": len(run.step_us),
        "tokens": run.tokens,
        "differences": run.differences,
        "acceptance_length": round(run.acceptance_length, 3),
        "expected_acceptance_length": round(expected_acceptance_length(shape.parent, p), 3),
        "step_us": round(run.mean_us, 1),
        "plain_us": round(plain.mean_us, 1),
        "speed_up": round(plain.us_per_token / run.us_per_token, 3),
    }


def with_head(rows: Sequence[Row], heads: Mapping[str, Row]) -> list[Row]:
    """The rows with the speed-up that is left when a draft of the shape takes what the head takes."""
    found = []
    for row in rows:
        cost = heads.get(row["shape"], {}).get("draft_us")
        if cost is None:
            found.append(dict(row))
            continue
        step = row["step_us"] + cost
        gain = row["plain_us"] * row["acceptance_length"] / step
        found.append({**row, "draft_us": cost, "speed_up_with_draft": round(gain, 3)})
    return found
