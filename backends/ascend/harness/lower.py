"""`lower`: a function through the real torchair to its GE graph, which `Lowered.run` executes on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch.utils import _pytree as pytree

from specc.backends.ascend.harness.declared_types import undeclared
from specc.backends.ascend.harness.environment import torchair_loaded
from specc.backends.ascend.harness.evaluator import Node, Undefined, Unmodelled, evaluate
from specc.backends.ascend.harness.extension import DeviceGraph
from specc.backends.ascend.runtime.rewrite import simplify

MODE = "max-autotune"
RECOMPILE_LIMIT = 4096
"""torch._dynamo counts the entries of a code object; tests lower one function many times, and count themselves."""


class LoweringFailed(RuntimeError):
    """torchair could not lower the function; the text is its reason."""


class _Recorded(Exception):
    """Ends the dry run of `lower` when the graph has arrived."""


@dataclass(slots=True)
class LoadedGraph:
    """One GE graph as the device would have received it. `proto` is torchair's GraphDef.

    `assigned`: output index -> index of the input whose memory receives it (a dense `state.copy_(new)`).
    `undeclared`: after a run, inputs of ops whose element type GE's op definition does not list.
    """

    proto: Any
    options: dict[str, str]
    recording: Callable[[], bool]
    failure: BaseException | None = None
    runs: int = 0
    assigned: dict[int, int] = field(default_factory=dict)
    undeclared: set[str] = field(default_factory=set)

    def _observe(self, node: Node) -> None:
        if self.runs == 1:
            self.undeclared.update(undeclared(node))

    def run(self, inputs: list[torch.Tensor], assigned: list[torch.Tensor | None]) -> list[torch.Tensor]:
        """One step: RefData inputs change in place, assigned outputs are written where torchair wants them."""
        if self.recording():
            self.assigned = {
                place: next(index for index, value in enumerate(inputs) if value is target)
                for place, target in enumerate(assigned)
                if target is not None
            }
            raise _Recorded
        self.runs += 1
        try:
            return evaluate(self.proto, inputs, assigned, self._observe)
        except (Undefined, Unmodelled) as failure:  # torchair adds its traceback to the text: keep the original
            self.failure = failure
            raise


@dataclass(slots=True)
class Lowered:
    """A lowered function. `graphs`: every GE graph that was made for it, in order; `compilations` counts them."""

    graphs: list[LoadedGraph] = field(default_factory=list)
    compilations: int = 0
    _compiled: Callable[..., Any] | None = None
    _recording: bool = False

    @property
    def graph(self) -> Any:
        """The GraphDef, if the function is one graph. Raises LoweringFailed otherwise."""
        if len(self.graphs) != 1:
            raise LoweringFailed(f"the function became {len(self.graphs)} graphs")
        return self.graphs[0].proto

    @property
    def recompiles(self) -> int:
        """Compilations beyond the first."""
        return max(0, self.compilations - 1)

    def run(self, *inputs: Any) -> Any:
        """The function's results, computed by the GE graph; its in-place effects happen to `inputs`.

        Raises evaluator.Undefined where GE leaves something undefined and Unmodelled for what we don't model.
        """
        if self._compiled is None:
            raise LoweringFailed("nothing has been lowered")
        for graph in self.graphs:
            graph.failure = None
        try:
            with self._receiving():
                return self._compiled(*inputs)
        except (Undefined, Unmodelled):
            failures = [graph.failure for graph in self.graphs if graph.failure is not None]
            if failures:
                raise failures[0] from None
            raise

    def loaded(self, model: bytes, options: dict[str, str]) -> LoadedGraph:
        """Called by the extension with a serialised ModelDef."""
        from torchair._ge_concrete_graph.ge_ir_pb2 import ModelDef  # importable only while torchair is loaded

        definition = ModelDef()
        definition.ParseFromString(model)
        graph = LoadedGraph(definition.graph[0], options, lambda: self._recording)
        self.graphs.append(graph)
        return graph

    @contextmanager
    def _receiving(self) -> Iterator[ModuleType]:
        """torchair loaded, its graphs sent here, no autograd, dynamo's limit out of the way."""
        limits = torch._dynamo.config.patch(
            recompile_limit=RECOMPILE_LIMIT, accumulated_recompile_limit=RECOMPILE_LIMIT, suppress_errors=False
        )
        with _torchair_silenced(), torchair_loaded() as torchair, torch.no_grad(), limits:
            previous, DeviceGraph.receiver = DeviceGraph.receiver, self
            try:
                yield torchair
            finally:
                DeviceGraph.receiver = previous


@contextmanager
def _torchair_silenced() -> Iterator[None]:
    """The wheel's files are compiled on first use and hold invalid escapes: only their warnings are off."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r".*torchair")
        yield


def lower(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    mode: str = MODE,
    pre_pass: Callable[..., None] | None = simplify,
) -> Lowered:
    """Lower `function(*inputs)` as one static graph. The inputs are not changed, nothing is executed.

    `pre_pass` is torchair's `post_grad_custom_pre_pass`; the default is what generated modules set, too.
    Raises LoweringFailed with torchair's reason (an op without a converter, a graph break).
    """
    lowered = Lowered()
    with lowered._receiving() as torchair:
        config = torchair.CompilerConfig()
        config.mode = mode
        config.post_grad_custom_pre_pass = pre_pass
        backend = torchair.get_npu_backend(compiler_config=config)

        def counted(module: Any, examples: Any) -> Any:
            lowered.compilations += 1
            return backend(module, examples)

        lowered._compiled = torch.compile(function, backend=counted, fullgraph=True, dynamic=False)
        lowered._recording = True
        try:
            lowered._compiled(*_copies(inputs))
        except _Recorded:
            pass
        except TorchDynamoException as problem:
            raise LoweringFailed(_reason(problem)) from problem
        finally:
            lowered._recording = False
    if not lowered.graphs:
        raise LoweringFailed("the function has no tensor operation that needs the device")
    return lowered


def _copies(inputs: Sequence[Any]) -> Any:
    """The inputs with tensors of their own, strides kept."""
    return pytree.tree_map_only(torch.Tensor, _copy, tuple(inputs))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    fresh = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    fresh.copy_(tensor)
    return fresh


def _reason(problem: BaseException) -> str:
    """The innermost cause in a few lines."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    lines = [line for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: " + " ".join(line.strip() for line in lines[:4])
