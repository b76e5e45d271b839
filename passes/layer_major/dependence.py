"""Dependence distances of a loop over tokens that contains a loop over layers.

Each value that one iteration leaves to a later one gives a vector (tokens, layers): from which token's iteration to
which, and from which layer to which. Interchanging the loops is legal where no vector is positive along tokens and
negative along layers (Allen and Kennedy, Optimizing Compilers for Modern Architectures, loop interchange). What a token
computes after its last layer and hands to the next token has the vector (1, -L): the loop must stay as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node

from specc.ir.scope import Scope
from specc.passes.layer_major.values import Refused
from specc.passes.recurrences import reads_a_table, recurrences, state_table
from specc.passes.tables import carried_write


@dataclass(frozen=True, slots=True)
class Dependence:
    """A carried value as distances between the iteration that makes it and those that read it."""

    carried: str
    tokens: str
    layers: str

    def __str__(self) -> str:
        return f"{self.carried} ({self.tokens}, {self.layers})"


def contains_layers(scope: Scope) -> bool:
    """True where a loop over layers stands in this body, at any depth."""
    return any(inner.loop is not None and inner.loop.axis == "layer" for inner in scope.walk() if inner is not scope)


def _holds_layers(scope: Scope) -> set[Node]:
    """Loop nodes directly in this body that are, or contain, loops over layers."""
    return {
        inner.loop.node
        for inner in scope.inner()
        if inner.loop is not None and (inner.loop.axis == "layer" or contains_layers(inner))
    }


def _reach(start: set[Node], forward: bool) -> set[Node]:
    todo, seen = list(start), set(start)
    while todo:
        node = todo.pop()
        for other in node.users if forward else node.all_input_nodes:
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


def _layer_count(layers: set[Node]) -> str:
    trips = {node.args[2] for node in layers if node.args[0] == "layer"}
    return str(trips.pop()) if len(trips) == 1 else "L"


def dependences(scope: Scope) -> list[Dependence]:
    """All carried values of the loop. Raises Refused where one forbids the interchange.

    Of several reasons, the one that no rewriting of the loop's insides could remove is raised.
    """
    assert scope.loop is not None
    layers = _holds_layers(scope)
    after = _reach(layers, forward=True) - layers
    found, refusals = [], []
    for place, inside in enumerate(scope.loop.carried_inside):
        if scope.loop.carried_out[place] is inside or not inside.users:
            continue
        try:
            found.append(_dependence(scope, place, layers, after))
        except Refused as refused:
            refusals.append(refused)
    if refusals:
        raise next((refused for refused in refusals if refused.final), refusals[0])
    return found


def _dependence(scope: Scope, place: int, layers: set[Node], after: set[Node]) -> Dependence:
    assert scope.loop is not None
    inside, result = scope.loop.carried_inside[place], scope.loop.carried_out[place]
    write = carried_write(scope, place) if scope.loop.axis == "token" else None
    if write is not None and write.table.sliced:
        parents = _recurrent(scope, place, by_row=True)
        return Dependence(inside.name, "1..N-1" if parents else "0..N-1", "0")
    if (
        scope.loop.axis == "token"
        and _recurrent(scope, place, by_row=False)
        and _only_layer_state(scope, inside, result, layers)
    ):
        return Dependence(inside.name, "1", "0")
    if write is not None and write.row.node not in after:
        if write.row.node in _reach({inside}, forward=True):
            raise Refused(
                f"`{inside.name}` is a recurrence over tokens before the layers: each row is made from earlier ones, "
                "at distance (1..N-1, 0); insert-tree-masks replaces such tables where it can prove what they hold"
            )
        return Dependence(inside.name, "0..N-1", "0..L-1")
    count, kind = _layer_count(layers), scope.loop.axis
    reaches_layers = bool(_reach({inside}, forward=True) & layers)
    made = write.row.node if write is not None else result
    if made in after and reaches_layers and not _only_layer_state(scope, inside, result, layers):
        raise Refused(
            f"the final output of a {kind} feeds a later {kind}: `{getattr(made, 'name', made)}`, made after the last "
            f"layer, comes back as `{inside.name}` before the first; distance (1, -{count}) along ({kind}s, layers)",
            final=True,
        )
    where = "inside" if made in after and reaches_layers else "after" if made in after else "before"
    raise Refused(
        f"`{inside.name}` is a recurrence over {kind}s {where} the layers, at distance (1, 0): not rows of a table"
    )


def _recurrent(scope: Scope, place: int, by_row: bool) -> bool:
    """True where a recurrent op's state is this carried value, or (`by_row`) a row of it."""
    found = ((call, state_table(call, scope)) for call in recurrences(scope))
    return any(held is not None and held.place == place and reads_a_table(call) == by_row for call, held in found)


def _only_layer_state(scope: Scope, inside: Node, result: object, layers: set[Node]) -> bool:
    """True where the value goes from layer l of one iteration to the same layer of the next: sliced by layer on the way
    in, stacked on the way out, and read nowhere else."""
    if not isinstance(result, Node) or not result.args or result.args[0] not in layers or len(inside.users) != 1:
        return False
    loop = result.args[0]
    assert isinstance(loop, Node)
    parts = next(inner.loop for inner in scope.inner() if inner.loop is not None and inner.loop.node is loop)
    number = result.args[1]
    assert isinstance(number, int)
    other = (*parts.carried, *parts.invariant)
    return parts.axis == "layer" and inside in parts.sliced and inside not in other and number >= len(parts.carried)
