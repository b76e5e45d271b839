"""Recurrent and hybrid programs in layer-major form, and random steps to compare programs by."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st

from specc.check.machines import Interpreted
from specc.check.weights import logical_weights, program_weights
from specc.lower.assemble import lower
from specc.manager import PassContext, Pipeline
from specc.passes.insert_tree_masks import InsertTreeMasks
from specc.passes.layer_major import LayerMajor
from specc.passes.rewrite_negative_indices import RewriteNegativeIndices
from specc.program import DecodeProgram
from specc.spec import loads
from specc.spec.model import Spec
from tests.properties.recurrent_bench import CHAIN, TREE, delta_config, hybrid_config, spec_text

torch.set_num_threads(1)
TARGETS = {"delta": delta_config(layers=2), "hybrid": hybrid_config("dada", experts=3)}
DRAFTS = {"tree": TREE, "chain": CHAIN}


def spec_of(target: str, draft: str, state: str = "factors", update: str = "immediate", window: int = 0) -> Spec:
    """A float64 spec: `target` delta or hybrid, `draft` tree or chain."""
    kv = ", kv: path_index" if target == "hybrid" else ""
    more = f", window: {window}" if window else ""
    commit = f"{{state: {state}, update: {update}{kv}{more}}}"
    return loads(spec_text(TARGETS[target], DRAFTS[draft], commit)).spec


@cache
def layer_major_program(target: str, draft: str, state: str = "factors") -> DecodeProgram:
    """The program after the first three passes; updates are immediate."""
    passes = (RewriteNegativeIndices(), InsertTreeMasks(), LayerMajor())
    return Pipeline(passes).run(lower(spec_of(target, draft, state)), PassContext(verify=False)).program


@cache
def weights_of(target: str, seed: int = 0) -> dict[str, Any]:
    """Random weights by logical name."""
    return dict(logical_weights(spec_of(target, "chain"), seed))


class Lockstep:
    """Programs run side by side on the same inputs; what they agree in is checked after every step.

    Results and the slots of the first program that nothing defers must agree after every step; the others after a
    flush of copies. `exact`: bit by bit.
    """

    def __init__(self, programs: list[DecodeProgram], target: str, batch: int, exact: bool = True) -> None:
        naive, logical = layer_major_program(target, "chain"), weights_of(target)
        self.machines = [
            Interpreted(f"program {place}", program, program_weights(program.weights, naive, logical))
            for place, program in enumerate(programs)
        ]
        self.states = [machine.start(batch) for machine in self.machines]
        self.exact = exact
        first = programs[0]
        self.committed = [n for n, slot in first.slots.items() if slot.role in ("committed", "control")]
        self.nodes, self.max_path = first.attributes["nodes"], first.attributes["max_path"]
        self.capacity = first.attributes["max_sequence_length"]

    def same(self, left: torch.Tensor, right: torch.Tensor, where: str) -> None:
        """Equal, or close in float64."""
        if self.exact or not left.dtype.is_floating_point:
            assert torch.equal(left, right), where
        else:
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11, msg=lambda text: f"{where}: {text}")

    def run(self, step: str, **inputs: torch.Tensor) -> None:
        """One step of every program."""
        found = []
        for place, machine in enumerate(self.machines):
            self.states[place], results = machine.step(step, self.states[place], inputs)
            found.append(results)
        # A row without a prompt has no last token, and a finished one no next token, whatever their logits are.
        live = {"prefill": inputs.get("lengths"), "decode": found[0].get("emitted")}.get(step)
        rows = slice(None) if live is None else live > 0
        for results in found[1:]:
            for name, value in found[0].items():
                self.same(value[rows], results[name][rows], f"{step}: {name}")

    def compare(self) -> None:
        """The committed state of all programs, each after a flush of a copy."""
        seen = []
        for machine, state in zip(self.machines, self.states, strict=True):
            flushed, _ = machine.step("flush", {name: value.clone() for name, value in state.items()}, {})
            seen.append(flushed)
        live = torch.arange(self.capacity + self.nodes) < seen[0]["length"].unsqueeze(1)
        for other in seen[1:]:
            for name in self.committed:
                left, right = seen[0][name], other[name]
                if name.endswith("_cache"):
                    shown = live.view(1, *live.shape, 1, 1)
                    left, right = left * shown, right * shown
                self.same(left, right, f"after flush: {name}")


def prefill(lockstep: Lockstep, data: st.DataObject, batch: int) -> None:
    """Ragged prompts; a row may get none (it keeps what it had)."""
    lengths = torch.tensor([data.draw(st.integers(0 if row else 1, 4)) for row in range(batch)])
    ids = torch.randint(0, 23, (batch, 4), generator=torch.Generator().manual_seed(int(lengths.sum())))
    lockstep.run("prefill", input_ids=ids, lengths=lengths)


def speculate(lockstep: Lockstep, data: st.DataObject, batch: int, tree: bool) -> None:
    """verify and commit of a random tree (or chain) along a random path of it."""
    nodes = lockstep.nodes
    drawn = random_tree(data, batch, nodes)
    if not tree:
        drawn = {"tokens": torch.where(drawn["valid"], drawn["tokens"], 1)}
        parents, valid = [list(range(-1, nodes - 1))] * batch, [[True] * nodes] * batch
    else:
        parents, valid = drawn["parent"].tolist(), drawn["valid"].tolist()
    lockstep.run("verify", **drawn)
    if data.draw(st.integers(0, 4)) == 0:
        lockstep.run("verify", **drawn)  # I24: unobservable
    lockstep.run("commit", **random_path(data, parents, valid, lockstep.max_path))


def reset_row(lockstep: Lockstep, row: int) -> None:
    """A new request takes the row: every slot is as at the start."""
    for machine, state in zip(lockstep.machines, lockstep.states, strict=True):
        fresh = machine.start(len(state["length"]))
        for name, value in fresh.items():
            dim = machine.program.slots[name].batch_dim
            state[name] = state[name].clone()
            state[name].select(dim, row).copy_(value.select(dim, row))


def any_steps(lockstep: Lockstep, data: st.DataObject, batch: int, tree: bool, steps: int = 4) -> None:
    """A drawn sequence of steps with everything that may come between: plain steps, flushes, new requests, prompts."""
    prefill(lockstep, data, batch)
    for _ in range(steps):
        kind = data.draw(st.sampled_from(["step", "step", "step", "step", "decode", "flush", "reset", "prefill"]))
        if kind == "step":
            speculate(lockstep, data, batch, tree)
        elif kind == "reset":
            reset_row(lockstep, data.draw(st.integers(0, batch - 1)))
            prefill(lockstep, data, batch)
        elif kind == "prefill":
            prefill(lockstep, data, batch)
        else:
            lockstep.run(kind)
        lockstep.compare()


def random_tree(data: st.DataObject, batch: int, nodes: int, vocabulary: int = 23) -> dict[str, torch.Tensor]:
    """Trees with padding nodes, also trees of nothing but the root (a step without drafts)."""
    rng = Random(data.draw(st.integers(0, 1 << 32)))
    rows = [[-1] + [rng.randrange(max(node - 3, 0), node) for node in range(1, nodes)] for _ in range(batch)]
    kept = [rng.choice([1, nodes, nodes, rng.randint(1, nodes)]) for _ in range(batch)]
    valid = torch.tensor([[i < count for i in range(nodes)] for count in kept])
    parent = torch.where(valid, torch.tensor(rows), torch.zeros((batch, nodes), dtype=torch.int64))
    tokens = torch.tensor([[rng.randrange(vocabulary) for _ in range(nodes)] for _ in range(batch)])
    return {"tokens": tokens * valid, "parent": parent, "valid": valid}


def random_path(
    data: st.DataObject, parents: list[list[int]], valid: list[list[bool]], longest: int
) -> dict[str, torch.Tensor]:
    """A path of every tree, of any length; some rows emit nothing (finished), some only the root's token."""
    rng = Random(data.draw(st.integers(0, 1 << 32)))
    paths, counts = [], []
    for parent, live in zip(parents, valid, strict=True):
        path = [0]
        while len(path) < longest:
            below = [i for i, above in enumerate(parent) if i and live[i] and above == path[-1]]
            if not below or rng.random() < 0.2:
                break
            path.append(rng.choice(below))
        counts.append(0 if rng.random() < 0.2 else len(path))
        paths.append(path + [0] * (longest - len(path)))
    batch = len(counts)
    return {
        "path": torch.tensor(paths),
        "emitted": torch.tensor(counts),
        "emitted_tokens": torch.ones((batch, longest), dtype=torch.int64),
        "bonus": torch.full((batch,), 3),
        "stopped": torch.zeros(batch, dtype=torch.bool),
    }
