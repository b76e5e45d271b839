"""What a value of a token loop's body becomes when all tokens are computed at once."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node

from specc.ir.rowwise import RowView


@dataclass(frozen=True, slots=True)
class Uniform:
    """The same for every token: `node` as it is."""

    node: Node


@dataclass(frozen=True, slots=True)
class Rows:
    """One row per token: `node` has all of them along `axis`, where one token's value has size 1.

    `ancestors`: the token's row of an `ancestor_mask`, so that entries behind the token's own are False (I1, I3).
    """

    node: Node
    axis: int
    ancestors: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """As `Rows`, where one token's value lacks the token dim altogether."""

    node: Node
    axis: int


@dataclass(frozen=True, slots=True)
class Index:
    """The token's number + offset, a Python int in the loop."""

    offset: int


@dataclass(frozen=True, slots=True)
class Carried:
    """What carried value `place` is when the token's iteration starts; `sliced`: one layer's part of it.

    `committed`: for places of recurrent states, the state before the first token (None: not such a place).
    """

    place: int
    sliced: bool
    committed: Node | None = None


@dataclass(frozen=True, slots=True)
class ParentRow:
    """The row of carried table `place` that belongs to the token's parent, by row numbers `number`.

    `dropped`: without the token dim.
    """

    table: Carried
    number: Rows
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Recurred:
    """The results of a recurrent op over all tokens: `node` has them, `state` stands for result number `result`."""

    node: Node
    result: int
    state: StateAfter


@dataclass(frozen=True, slots=True)
class StateAfter:
    """The state after the token, of carried value `place`.

    `last`: the state after the last token of a chain (None in a tree). `states`: those of all tokens [B,N,…], where
    something reads them.
    """

    place: int
    sliced: bool
    last: Node | None
    states: Node | None


@dataclass(frozen=True, slots=True)
class Written:
    """A carried table after the token's row is in it: row index + shift. `rows` holds the rows of all tokens (None:
    states that nothing but the recurrence itself reads)."""

    place: int
    sliced: bool
    rows: Rows | None
    shift: int
    size: int


@dataclass(frozen=True, slots=True)
class NodeRows:
    """Rows [shift, shift + N) of a written table: exactly the rows of the tokens."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class Several:
    """The results of an op with more than one: `node` is the tuple, each part has its rows along `axis`."""

    node: Node
    axis: int


Batched = Uniform | Rows | Several | Dropped | Index | Carried | Written | NodeRows | ParentRow | Recurred | StateAfter


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over layers by its results."""

    results: tuple[Batched, ...]


Result = Batched | Loop


class Refused(Exception):
    """The loop can't be interchanged; the message is the reason. `final`: a token's final output feeds a later one."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


def view(value: Uniform | Rows) -> RowView | int | float | bool:
    """The operand as `specc.ir.rowwise` wants it: sizes seen by one token."""
    found = value.node.meta["val"]
    if isinstance(found, (int, float, bool)):
        return found
    shape = [int(size) for size in found.shape]
    if isinstance(value, Uniform):
        return RowView(tuple(shape), None)
    shape[value.axis] = 1
    return RowView(tuple(shape), value.axis)


def describe(value: object) -> str:
    """The kind of value in words, for reasons."""
    names = {
        Uniform: "the same for every token",
        Rows: "one row per token",
        Dropped: "a row without its token dim",
        Index: "the token's number",
        Carried: "a table as earlier tokens left it",
        Written: "a table with rows of all tokens so far",
        NodeRows: "the rows of all tokens",
        ParentRow: "the state after the token's parent",
        StateAfter: "the state after the token",
        Several: "several results",
    }
    return names.get(type(value), "a constant")
