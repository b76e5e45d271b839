"""The schema `specc.trace/1`: one record per request and step, and what must hold inside one record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA = "specc.trace/1"
FAMILY = "specc.trace/"
"""What every version's name begins with."""

ORDER = ("drafted", "parent", "path", "accept_length", "bonus", "emitted")
"""The fields of a step in the order in which a step makes them: the first that differs is the cause of the others."""

STAGES = ("prefill", "draft", "mask", "verify", "accept", "commit")
"""The order in which stages run; the keys of a file are sorted by name. Others come after these, by name."""

Count = Annotated[int, Field(ge=0)]
Value = TypeVar("Value")
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Step(BaseModel):
    """One line of a trace file. Keys that this version does not know are kept: they may be added under its number.

    `drafted` [nodes] token ids of the valid nodes, the root first; `parent` [nodes] their parents, -1 for the root;
    `path` the accepted nodes from the root on; `emitted` the new tokens, the bonus last. The prefill is step 0 and
    has neither nodes nor a path. `timing`: seconds per stage of the whole batch.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    schema_: Literal["specc.trace/1"] = Field(alias="schema")
    request: Count
    name: str
    step: Count
    drafted: list[Count]
    parent: list[Annotated[int, Field(ge=-1)]]
    path: list[Count]
    accept_length: Count
    bonus: Count
    emitted: list[Count]
    seed: int
    spec: str
    pipeline: str
    timing: dict[str, Seconds]

    @model_validator(mode="after")
    def _hangs_together(self) -> Step:
        """What one record says twice, it says alike. Raises ValueError with the first thing that is wrong."""
        problem = self._prefill_problem() if self.step == 0 else self._tree_problem() or self._path_problem()
        if problem:
            raise ValueError(problem)
        return self

    def _prefill_problem(self) -> str:
        if self.drafted or self.parent or self.path or self.accept_length:
            return "step 0 is the prefill, which drafts and accepts nothing"
        return "" if self.emitted == [self.bonus] else "the prefill emits its bonus and nothing else"

    def _tree_problem(self) -> str:
        if len(self.parent) != len(self.drafted):
            return f"`parent` has {len(self.parent)} entries, `drafted` has {len(self.drafted)}"
        if not self.parent or self.parent[0] != -1:
            return "the first node is the root, whose `parent` is -1"
        for node, parent in enumerate(self.parent[1:], 1):
            if not 0 <= parent < node:
                return f"node {node} has the parent {parent}; a parent comes before its children"
        return ""

    def _path_problem(self) -> str:
        if not self.path or self.path[0] != 0:
            return "`path` begins at the root, node 0"
        if len(self.path) != self.accept_length + 1:
            return f"`path` has {len(self.path)} nodes, which is not the root and {self.accept_length} accepted ones"
        for above, node in zip(self.path, self.path[1:], strict=False):
            if node >= len(self.parent) or self.parent[node] != above:
                return f"`path` goes from node {above} to {node}, which is not its child"
        expected = [*(self.drafted[node] for node in self.path[1:]), self.bonus]
        return "" if self.emitted == expected else "`emitted` is not the accepted nodes' tokens and the bonus"

    @property
    def deterministic(self) -> dict[str, Any]:
        """Everything but the timing, in the order of `ORDER` where that says one, then by name."""
        found = self.model_dump(by_alias=True, exclude={"timing"})
        known = [key for key in ORDER if key in found]
        return {key: found[key] for key in [*known, *sorted(found.keys() - set(known))]}


def in_order(timing: Mapping[str, Value]) -> list[tuple[str, Value]]:
    """Entries by stage, as they run."""

    def key(item: tuple[str, Value]) -> tuple[int, str]:
        return (STAGES.index(item[0]) if item[0] in STAGES else len(STAGES), item[0])

    return sorted(timing.items(), key=key)
