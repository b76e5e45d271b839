"""Records what host functions would launch, without a GPU, and compiles it for sm_90.

For a process without TRITON_INTERPRET: `kernel[grid](…)` is a real JIT function there, whose `run` is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from triton.runtime.jit import JITFunction

from tests.backends.triton.compiling import Launch, Resources, resources

OPTIONS = ("num_warps", "num_stages", "launch_pdl", "maxnreg")


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Launches in this context are kept in the list instead of being run."""
    launches: list[Launch] = []

    def run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        names = [parameter.name for parameter in kernel.params]
        defaults = {parameter.name: parameter.default for parameter in kernel.params if parameter.has_default}
        arguments = defaults | dict(zip(names, args, strict=False)) | kwargs
        warps, stages = options.get("num_warps", 4), options.get("num_stages", 3)
        bound = (options.get("launch_pdl", False), options.get("maxnreg"))
        launches.append(Launch(kernel, tuple(grid), arguments, warps, stages, *bound))

    with patch.object(JITFunction, "run", run):
        yield launches


def launched(call: Callable[[], Any]) -> list[tuple[str, Resources]]:
    """(kernel, what one of its programs needs) for every launch of `call`, on tensors of the CPU."""
    with recording() as launches:
        call()
    return [(launch.kernel.__name__, resources(launch)) for launch in launches]
