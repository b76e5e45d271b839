"""A part of a step in a graph of its own: the drafter's network, or all that stands around it.

A part is the step itself, with the calls of the other part left out: they give what they gave when the whole step ran
once. So a part reads tensors of the right values, and its launches are those of the whole step, in their order; what
each costs between launches of the other part (a wait that overlaps, a cold cache) is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, SimpleNamespace
from typing import Any

NETWORK_CALLS = ("linear", "fused_linear", "rope_attention", "tree_attention", "attention", "fused_v_nodes", "fused_q")
"""What a drafter's network calls, by the names' beginnings: linear layers (norms, gates, head), attention, and what
turns and joins its keys and values. All else draws: the walk, commits, embeddings, draws, laws, the tree."""
Call = Callable[..., Any]


def of_network(name: str) -> bool:
    """Whether a host function is part of the network."""
    return name.startswith(NETWORK_CALLS)


def called(module: Any, step: str) -> Iterator[tuple[str, Call]]:
    """The module's functions that a step calls itself, by name."""
    for name in getattr(module, step).__code__.co_names:
        value = vars(module).get(name)
        if isinstance(value, FunctionType):
            yield name, value


@contextmanager
def replaced(module: Any, functions: Mapping[str, Any]) -> Iterator[None]:
    """The module with other functions under these names."""
    kept = {name: vars(module)[name] for name in functions}
    vars(module).update(functions)
    try:
        yield
    finally:
        vars(module).update(kept)


@dataclass(slots=True)
class Apart:
    """One part of a step: `network`, or the rest. `run` calls the module's function `step`."""

    module: Any
    step: str
    run: Callable[[], None]
    network: bool
    results: list[Any] = field(default_factory=list)
    depth: int = 0

    def __call__(self) -> None:
        """The part alone, from what the other part gave when the whole step ran first."""
        if not self.results:
            with replaced(self.module, self._others(self._recorded)):
                self.run()
        given = iter(self.results)
        with replaced(self.module, self._others(lambda function: lambda *_, **__: next(given))):
            self.run()

    def _others(self, change: Callable[[Call], Call]) -> dict[str, Any]:
        """The other part's functions, changed; torch's embedding draws."""
        made: dict[str, Any] = {
            name: change(function)
            for name, function in called(self.module, self.step)
            if of_network(name) != self.network
        }
        if self.network and "F" in vars(self.module):
            made["F"] = SimpleNamespace(embedding=change(vars(self.module)["F"].embedding))
        return made

    def _recorded(self, function: Call) -> Call:
        def call(*args: Any, **keywords: Any) -> Any:
            self.depth += 1
            try:
                result = function(*args, **keywords)
            finally:
                self.depth -= 1
            if self.depth == 0:  # what such a function itself calls isn't called when it gives what it gave
                self.results.append(result)
            return result

        return call
