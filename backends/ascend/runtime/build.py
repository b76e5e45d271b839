"""Steps over a state of fixed addresses: compiled by torchair for an NPU, or the same functions run eagerly."""

from __future__ import annotations

import hashlib
import importlib
import linecache
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specc.backends.ascend.runtime.abi import COMMIT_FUSED, PREFILL_CHUNK
from specc.backends.ascend.runtime.draws import draws_of
from specc.backends.ascend.runtime.graphs import (
    StepGraph,
    Tensors,
    flattened,
    graph_function,
)
from specc.backends.ascend.runtime.rewrite import simplify
from specc.backends.printing.runtime.abi import (
    MAX_BATCH_SIZE,
    State,
    Weights,
    init_state,
)
from specc.backends.printing.runtime.stored import views

# A prompt's tokens are taken in chunks of these sizes, so that there are two prefill graphs.
SMALL_CHUNK = 32
Runner = Callable[[StepGraph], Callable[..., Tensors]]


def npu_package(name: str) -> Any:
    """A module of torch_npu or torchair. Raises RuntimeError with the remedy where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        raise RuntimeError(
            f"{name} can't be imported ({missing}): compiling for an NPU needs the package torch_npu that fits this "
            "torch, and CANN; eager=True runs the same steps without it, on any device that has the operators"
        ) from missing


def compiler_config(mode: str) -> Any:
    """torchair's settings. "max-autotune" is its GE graph mode. Raises RuntimeError without torch_npu."""
    npu_package("torch_npu")
    config = npu_package("torchair").CompilerConfig()
    # The form of fused attention whose lengths are tensors is declared when this is imported.
    npu_package("torchair.ops._npu_fused_infer_attention_score")
    config.mode = mode
    config.post_grad_custom_pre_pass = simplify
    return config


def bucket(batch: int) -> int:
    """The batch size whose graphs a batch uses: the next power of two, or the largest that the spec allows."""
    return min(1 << (batch - 1).bit_length(), MAX_BATCH_SIZE)


def chunk_size(tokens: int) -> int:
    """The tokens of the prefill graph that takes a chunk of so many."""
    return min(SMALL_CHUNK if tokens <= SMALL_CHUNK else PREFILL_CHUNK, PREFILL_CHUNK)


def step_inputs(step: str, state: State, extra: Tensors) -> Tensors:
    """A step's own tensors: `extra` (of prefill and commit), then its random numbers, computed eagerly."""
    return (*extra, *draws_of(step, state, extra))


class Steps:
    """The steps of one batch size. Every step changes `state` in place and gives the record that the host reads.

    The records of "step" and "plain" are int64 [B,W]: finished, the root token, then the columns
    of RECORD, or the number of emitted tokens; those of the others end after the root token.
    """

    def __init__(
        self, weights: Weights, batch: int, device: torch.device | str, runner: Runner
    ) -> None:
        self.state: State = init_state(batch, device)
        self._tensors = flattened(weights, views(self.state))
        self._runner = runner
        self._functions: dict[str, Callable[..., Tensors]] = {}

    def run(self, step: str, *extra: Tensor) -> Tensor:
        """Run "prefill" (input_ids, lengths), "step", "plain" or "flush"; its record."""
        with torch.no_grad():
            results = self._call(step, extra)
            if step == "step" and not COMMIT_FUSED:
                (ended,) = self._call("commit", results[1:])
                return torch.cat((ended, results[0][:, ended.shape[1] :]), dim=1)
        return results[0]

    def _call(self, step: str, extra: Tensors) -> Tensors:
        tokens = extra[0].shape[1] if step == "prefill" else 0
        name = f"{step}-{tokens}"
        if name not in self._functions:
            batch = self.state.length.shape[0]
            self._functions[name] = self._runner(graph_function(step, batch, tokens))
        own = step_inputs(step, self.state, extra)
        return self._functions[name](*self._tensors, *own)


def eager_runner(graph: StepGraph) -> Callable[..., Tensors]:
    """The function itself."""
    return graph


def compiled_runner(mode: str) -> Runner:
    """Compile each step when it is first run, as one graph of fixed shapes."""
    backend = npu_package("torchair").get_npu_backend(
        compiler_config=compiler_config(mode)
    )

    def compiled(graph: StepGraph) -> Callable[..., Tensors]:
        made: Callable[..., Tensors] = torch.compile(
            graph.forward, backend=backend, fullgraph=True, dynamic=False
        )
        return made

    return compiled


def build(
    weights: Weights,
    batch: int,
    device: torch.device | str = "npu",
    mode: str = "max-autotune",
    *,
    eager: bool = False,
) -> Steps:
    """The steps of a batch size, with a fresh state; compiled by torchair, each when it is first run.

    Raises RuntimeError where torch_npu is missing; not with `eager`.
    """
    return Steps(
        weights, batch, device, eager_runner if eager else compiled_runner(mode)
    )


def cache_compile(
    directory: str | os.PathLike[str],
    weights: Weights,
    batch: int,
    device: torch.device | str = "npu",
    mode: str = "max-autotune",
) -> Steps:
    """As `build`, with torchair's compilation cache: another process loads from `directory` what this one compiled.

    Each module has a folder of its own in it. Raises RuntimeError where torch_npu is missing.
    """
    inference = npu_package("torchair.inference")
    source = "".join(linecache.getlines(StepGraph.forward.__code__.co_filename))
    folder = Path(directory) / hashlib.sha256(source.encode()).hexdigest()[:16]

    def cached(graph: StepGraph) -> Callable[..., Tensors]:
        made: Callable[..., Tensors] = inference.cache_compile(
            graph.forward,
            config=compiler_config(mode),
            dynamic=False,
            cache_dir=str(folder),
            ge_cache=mode == "max-autotune",
        )
        return made

    return Steps(weights, batch, device, cached)
