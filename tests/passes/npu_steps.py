"""Value-form and NPU-form programs of the shipped specs in small geometries, and both run side by side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch

from specc.check.machines import Interpreted
from specc.check.reduce import reduced_mapping
from specc.check.weights import logical_weights, program_weights
from specc.lower.assemble import lower
from specc.manager import PassContext, PassResult, Pipeline
from specc.passes import default_pipeline
from specc.passes.legalize_ascend import LegalizeAscend
from specc.passes.plan_buffers import PlanBuffers
from specc.program import DecodeProgram
from specc.spec import LoadedSpec, from_mapping, load

torch.set_num_threads(1)
SPECS = sorted((Path(__file__).resolve().parents[2] / "specs").glob("*.yaml"))
LONGEST, CHUNK = 40, 6
Bag = dict[str, torch.Tensor]


def small_spec(name: str, head_dim: int, **changes: Any) -> LoadedSpec:
    """A shipped spec with few layers and short sequences; `changes` are sections of it, e.g. commit={…}."""
    mapping = reduced_mapping(load(next(path for path in SPECS if path.stem == name)), head_dim)
    mapping["runtime"] = {**mapping["runtime"], "max_sequence_length": LONGEST, "max_batch_size": 4}
    for section, keys in changes.items():
        mapping[section] = {**mapping[section], **keys}
    return from_mapping(mapping)


def value_form(loaded: LoadedSpec) -> DecodeProgram:
    """The program at value level: the default passes but the planning of buffers."""
    passes = tuple(item for item in default_pipeline(loaded.spec).passes if not isinstance(item, PlanBuffers))
    return Pipeline(passes).run(lower(loaded.spec), PassContext(verify=False)).program


@dataclass(frozen=True, slots=True)
class Pair:
    """A spec's program before and after the pass."""

    loaded: LoadedSpec
    before: DecodeProgram
    result: PassResult

    @property
    def after(self) -> DecodeProgram:
        """The NPU form."""
        return self.result.program


@cache
def pair(name: str, changes: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (), head_dim: int = 8) -> Pair:
    """Both forms of a shipped spec; `changes` as (section, ((key, value), …))."""
    loaded = small_spec(name, head_dim, **{section: dict(keys) for section, keys in changes})
    before = value_form(loaded)
    return Pair(loaded, before, LegalizeAscend(prefill_chunk=CHUNK, row_multiple=1).run(before, PassContext()))


def cast(weights: dict[str, Any], program: DecodeProgram) -> dict[str, Any]:
    """The weights in the program's dtypes."""
    made = {}
    for name, value in weights.items():
        dtype = program.weights[name].dtype
        made[name] = value.to(dtype) if isinstance(value, torch.Tensor) else tuple(one.to(dtype) for one in value)
    return made


class Twins:
    """Two programs of one spec on the same inputs; every step's results and what counts of the state must agree.

    Of a target's cache, rows below length less what is pending count; of a drafter's, those below the first row that
    `draft` writes. What lies behind is for nobody to see.
    """

    def __init__(self, both: Pair, batch: int, after: DecodeProgram | None = None, bound: float = 0.0) -> None:
        naive, logical = lower(both.loaded.spec), logical_weights(both.loaded.spec, 1)
        self.before = both.before
        self.machines = [
            Interpreted(name, program, cast(program_weights(program.weights, naive, logical), program), strict=True)
            for name, program in (("before", both.before), ("after", after or both.after))
        ]
        self.states = [machine.start(batch) for machine in self.machines]
        self.batch, self.bound = batch, bound

    def set(self, **slots: torch.Tensor) -> None:
        """Overwrite slots of both states."""
        for state in self.states:
            state |= {name: value.clone() for name, value in slots.items()}

    @property
    def state(self) -> Bag:
        """The first one's state."""
        return self.states[0]

    def run(self, step: str, bag: Bag) -> Bag:
        """One step of both."""
        found = []
        for place, machine in enumerate(self.machines):
            self.states[place], results = machine.step(step, self.states[place], bag)
            found.append(results)
        # A finished row drafts from rows that its cache has not got; what comes of it is not used.
        rows = {"prefill": bag.get("lengths"), "decode": found[0].get("emitted"), "draft": ~self.state["finished"]}
        counted = rows.get(step)
        kept = slice(None) if counted is None else counted > 0
        for name, value in found[0].items():
            same(value[kept], found[1][name][kept], f"{step}: {name}", self.bound)
        self.compare(step)
        return found[0]

    def compare(self, step: str) -> None:
        """What counts of the state."""
        left, right = self.states
        for name, value in left.items():
            other = right[name]
            if name.startswith("draft_") and step == "decode":
                continue  # a plain step leaves the drafter behind, in both forms
            if name.endswith("_cache"):
                seen = torch.arange(value.shape[2]) < self.valid_rows(name).unsqueeze(1)
                shown = seen.view(1, *seen.shape, 1, 1)
                other = other[:, :, : value.shape[2]]
                value, other = value * shown, other * shown
            same(value, other, f"after {step}: {name}", self.bound)

    def valid_rows(self, cache: str) -> torch.Tensor:
        """int64 [B]."""
        state = self.state
        if cache.startswith("draft_"):
            more = 1 if self.before.attributes["draft_method"] == "draft_model" else 0
            return (state["length"] + more - state["recent_count"]).clamp(min=0)
        return state["length"] - state.get("pending_emitted", torch.zeros_like(state["length"]))


def same(left: torch.Tensor, right: torch.Tensor, where: str, bound: float = 0.0) -> None:
    """Integers equal; floats as close as another order of float64 sums, or within `bound` of the largest of them.

    With a bound, tokens chosen from such floats may differ, and integers are left alone.
    """
    if left.dtype.is_floating_point:
        rtol, atol = (0.0, bound * float(left.abs().max())) if bound else (1e-9, 1e-11)
        torch.testing.assert_close(right, left, rtol=rtol, atol=atol, msg=lambda text: f"{where}: {text}")
    elif not bound:
        assert torch.equal(left, right), (where, left, right)


def prefill(twins: Twins, random: Random, least: int = 0) -> None:
    """Ragged prompt pieces; a row may get none."""
    room = (LONGEST - twins.state["length"]).tolist()
    lengths = [min(random.randint(least, CHUNK), left) for left in room]
    if not any(lengths):
        return
    ids = torch.randint(0, 13, (twins.batch, CHUNK), generator=torch.Generator().manual_seed(sum(lengths)))
    twins.run("prefill", {"input_ids": ids, "lengths": torch.tensor(lengths)})


def speculate(twins: Twins, random: Random) -> None:
    """One step: the spec's own draft, or a random tree, through verify, accept and commit."""
    bag = twins.run("draft", {}) if "draft" in twins.before.graphs else {}
    nodes = twins.before.attributes["nodes"]
    if "parent" in bag and "log_probs" not in bag and random.random() < 0.5:
        bag |= random_tree(random, twins, nodes)
    if "tokens" not in bag:
        bag["tokens"] = twins.state["root_token"].unsqueeze(1)
    bag |= twins.run("verify", bag)
    bag |= twins.run("accept", bag)
    twins.run("commit", bag)


def random_tree(random: Random, twins: Twins, nodes: int) -> Bag:
    """Any tree of `nodes` nodes below the root token, padded."""
    deepest = twins.before.attributes["max_path"] - 1
    parents, valid = [], []
    for _ in range(twins.batch):
        depth, row = [0], [-1]
        for _ in range(1, nodes):
            above = random.choice([node for node, level in enumerate(depth) if level < deepest])
            row.append(above)
            depth.append(depth[above] + 1)
        count = random.randint(1, nodes)
        valid.append([node < count for node in range(nodes)])
        parents.append([above if node < count else 0 for node, above in enumerate(row)])
    tokens = torch.randint(0, 13, (twins.batch, nodes), generator=torch.Generator().manual_seed(nodes))
    tokens[:, 0] = twins.state["root_token"]
    return {"tokens": tokens, "parent": torch.tensor(parents), "valid": torch.tensor(valid)}
