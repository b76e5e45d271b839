"""The step graphs of a generated Ascend module on a state of their own: run eagerly, or as GE graphs by the evaluator.

Beside the module's own graphs there are two for checks: `prompted`, a prefill that gives the logits too, and `planted`,
a step that verifies, accepts and commits a tree that is given to it instead of drafted.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specc.backends.ascend import cpu
from specc.backends.ascend.harness.lower import Lowered, lower
from specc.backends.ascend.ops.random import uniform_table
from specc.backends.ascend.runtime.build import compiler_config
from specc.check.ascend.half import Half
from specc.runtime.device import torch_npu_installed

Tensors = tuple[Tensor, ...]
ACCEPTED = ("path", "accept_length", "bonus", "emitted", "stopped")
PROMPTED, PLANTED = "prompted", "planted"
DRAFTED = ("tokens", "parent", "valid", "log_probs", "q_probs")


def prompted_graph(module: Any) -> Callable[[Any, Any, Tensors], Any]:
    """A chunk of the prompts; results: logits of the last tokens."""

    def prompted(weights: Any, slots: Any, extra: Tensors) -> Any:
        rng, (ids, lengths, *draws) = slots.rng, extra
        slots = slots._replace(rng=draws[0]) if draws else slots
        slots, logits, *_ = module.run_prefill(weights, slots, ids, lengths)
        return slots._replace(rng=rng), (logits,)

    return prompted


def planted_graph(module: Any, fields: tuple[str, ...]) -> Callable[[Any, Any, Tensors], Any]:
    """Verify, accept and commit; `fields` are those of Draft that come in, before the random numbers.

    Results: logits, ACCEPTED, and where the commit is a graph of its own, what it takes.
    """

    def planted(weights: Any, slots: Any, extra: Tensors) -> Any:
        rng, draft, draws = slots.rng, dict(zip(fields, extra, strict=False)), extra[len(fields) :]
        made = module.Draft(**draft)
        slots, verified = module.run_verify(weights, slots, made.tokens, made.parent, made.valid)
        slots = slots._replace(rng=draws[0]) if draws else slots
        slots, accepted = module.run_accept(slots, verified, made)
        slots = slots._replace(rng=rng)
        found = (verified.logits, *(getattr(accepted, name) for name in ACCEPTED))
        if module.COMMIT_FUSED:
            return module.run_commit(slots, verified, accepted), found
        known = {**made._asdict(), **verified._asdict(), **accepted._asdict()}
        return slots, (*found, *(known[name] for name in module.COMMIT_INPUTS))

    return planted


@dataclass(slots=True)
class Executed:
    """A step graph lowered by torchair when it is first called, then executed as a GE graph."""

    graph: Any
    lowered: Lowered | None = None
    runs: int = 0

    def __call__(self, *tensors: Tensor) -> Tensors:
        if self.lowered is None:
            self.lowered = lower(self.graph, tensors)
        self.runs += 1
        found: Tensors = self.lowered.run(*tensors)
        return found


Runner = Callable[[Any], Callable[..., Tensors]]


def eagerly(graph: Any) -> Callable[..., Tensors]:
    """The graph's function itself, over the NPU's operators or, without torch_npu, their CPU kernels."""
    if not torch_npu_installed():
        cpu.register()
    made: Callable[..., Tensors] = graph
    return made


def compiled(graph: Any) -> Callable[..., Tensors]:
    """The graph compiled by the installed torchair, with the settings of a module's own `build`."""
    backend = importlib.import_module("torchair").get_npu_backend(compiler_config=compiler_config("max-autotune"))
    made: Callable[..., Tensors] = torch.compile(graph, backend=backend, fullgraph=True, dynamic=False)
    return made


@dataclass
class Steps:
    """The step graphs of one module and batch size on one state, whose tensors stay where they are."""

    half: Half
    batch: int
    runner: Runner
    functions: dict[str, Callable[..., Tensors]] = field(default_factory=dict)
    fused: bool = True

    def __post_init__(self) -> None:
        module = self.half.module
        module.GRAPHS[PROMPTED] = prompted_graph(module)
        module.GRAPHS[PLANTED] = planted_graph(module, self.draft_fields)
        self.state = module.init_state(self.batch, self.half.device)
        self.tensors: Tensors = module.flattened(self.half.weights, module.views(self.state))

    @property
    def draft_fields(self) -> tuple[str, ...]:
        """The fields of Draft that the module has as tensors."""
        module = self.half.module
        return tuple(name for name in DRAFTED if name in module.Draft._fields and not self._constant(name))

    def _constant(self, name: str) -> bool:
        return name == "parent" and self.half.loaded.spec.is_chain

    def fresh(self, keys: Tensor) -> None:
        """The state as new, with these random streams [B]."""
        for old, new in zip(self.state, self.half.module.init_state(self.batch, self.half.device), strict=True):
            old.copy_(new)
        self.state.rng.copy_(keys)

    def run(self, step: str, *extra: Tensor) -> Tensors:
        """A step's results; the state changes in place."""
        if step not in self.functions:
            self.functions[step] = self.runner(self.half.module.graph_function(step, self.batch))
        with torch.no_grad():
            return self.functions[step](*self.tensors, *(value.to(self.half.device) for value in extra))

    def _table(self, step: str, base: Tensor) -> Tensors:
        if step not in self.half.module.UNIFORMS:
            return ()
        return (uniform_table(self.state.rng, base, *self.half.module.UNIFORMS[step]),)

    def prompt(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Prefill a chunk [B,T]; the logits [B,V]."""
        draws = self._table("prefill", self.state.length + lengths.to(self.half.device))
        return self.run(PROMPTED, ids, lengths, *draws)[0].cpu()

    def plant(self, bag: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """A whole step on given trees; logits [B,N,V] and ACCEPTED."""
        given = []
        for name in self.draft_fields:
            value = bag.get(name)
            tokens = bag["tokens"]
            assert tokens is not None
            given.append(torch.zeros(tokens.shape, dtype=torch.float32) if value is None else narrow(value))
        found = self.run(PLANTED, *given, *self._table("accept", self.state.length + 1))
        if not self.half.module.COMMIT_FUSED:
            self.run("commit", *found[1 + len(ACCEPTED) :])
        return {name: value.cpu() for name, value in zip(("logits", *ACCEPTED), found, strict=False)}

    def own(self) -> Tensor:
        """The module's own step, its drafter included (a plain one where nothing is drafted); the host's record."""
        module = self.half.module
        step = "plain" if self.half.loaded.spec.draft.method == "none" else "step"
        found = self.run(step, *module.step_inputs(step, self.state, ()))
        if step == "step" and not module.COMMIT_FUSED:
            self.run("commit", *found[1:])
        return found[0].cpu()

    def flushed(self) -> dict[str, Tensor]:
        """A copy of the state with nothing pending, on the CPU; of a pool of states, the committed ones."""
        module = self.half.module
        copy = module.State(*(value.clone() for value in self.state))
        with torch.no_grad():
            found = {name: value.cpu() for name, value in module.flush(copy)._asdict().items()}
        for name in module.POOLS:
            pool, row = found.pop(name), found["state_row"]
            found[name.removesuffix("_pool")] = pool[:, torch.arange(len(row)), row]
        return found

    def executed(self) -> dict[str, Executed]:
        """The graphs that ran as GE graphs."""
        return {step: made for step, made in self.functions.items() if isinstance(made, Executed)}


def narrow(value: Tensor) -> Tensor:
    """Laws come in float32; the rest as it is."""
    return value.float() if value.is_floating_point() else value
