"""The invariants that specc proves by test: their numbers, names, statements and equality classes.

Pure data without dependencies, at the bottom of the package, so that the loader can check the spec's
`invariants:` key without importing torch or hypothesis. The checks themselves are in `specc.testing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Equality(Enum):
    """How the two sides of an invariant are compared."""

    INTEGER = "integer"
    """Integer or boolean results, equal."""
    BIT_EXACT = "bit-exact"
    """Floating-point results, equal bit by bit: both sides do the same arithmetic or only move data."""
    BOUNDED = "bounded"
    """Integer results equal; floating-point results within a stated bound of a float64 run."""
    STATISTICAL = "statistical"
    """Laws equal: exactly by rational arithmetic, or by a test with a fixed seed and alpha = 1e-6."""


class Applies(Enum):
    """What a target must have for an invariant to say anything about it."""

    KV = "kv"
    RECURRENT = "recurrent"
    PAGED = "paged"


@dataclass(frozen=True, slots=True)
class Invariant:
    """One invariant. `id` is its stable number ("I7"), `name` is what a spec's `invariants:` list uses."""

    id: str
    name: str
    statement: str
    equality: Equality
    applies_to: frozenset[Applies]


_BOTH = frozenset({Applies.KV, Applies.RECURRENT})
_KV = frozenset({Applies.KV})
_RECURRENT = frozenset({Applies.RECURRENT})
_PAGED = frozenset({Applies.PAGED})

_TABLE: tuple[tuple[str, str, Equality, frozenset[Applies]], ...] = (
    (
        "acyclic",
        "parent[i] < i for every drafted node, and node 0 alone has parent -1",
        Equality.INTEGER,
        _BOTH,
    ),
    ("ancestor-closed", "a node kept by rerank or prune has its parent kept too", Equality.INTEGER, _BOTH),
    (
        "mask-ancestors",
        "row i of the mask is i and its ancestors: popcount = depth + 1",
        Equality.INTEGER,
        _BOTH,
    ),
    ("positions", "position = prefix length + depth, from unshifted parents", Equality.INTEGER, _BOTH),
    ("distinct-siblings", "children of one node have different tokens", Equality.INTEGER, _BOTH),
    (
        "index-range",
        "every index is inside its dimension once indices are rewritten",
        Equality.INTEGER,
        _BOTH,
    ),
    (
        "path-valid",
        "the accepted path runs from the root by parents, then is padded with 0",
        Equality.INTEGER,
        _BOTH,
    ),
    ("commit-gather", "the in-place commit moves rows exactly as a gather would", Equality.BIT_EXACT, _KV),
    ("length-advance", "a step advances length by accept_length + 1", Equality.INTEGER, _BOTH),
    ("paged-blocks", "blocks allocated = blocks committed + blocks freed", Equality.INTEGER, _PAGED),
    ("output-law", "stochastic acceptance emits the target's law", Equality.STATISTICAL, _BOTH),
    (
        "chain-as-tree",
        "a chain sent through the tree path gives what the chain module gives",
        Equality.BOUNDED,
        _BOTH,
    ),
    ("batch-rows", "a batch of B rows gives what B batches of one row give", Equality.BOUNDED, _BOTH),
    (
        "padding-inert",
        "padding nodes, padding rows and finished rows change nothing",
        Equality.BIT_EXACT,
        _BOTH,
    ),
    ("vocabulary-map", "d2t and t2d agree, and every token id is in range", Equality.INTEGER, _BOTH),
    (
        "state-along-path",
        "the state at a node is the sequential state along its path",
        Equality.BOUNDED,
        _RECURRENT,
    ),
    (
        "no-leak",
        "a node depends on its ancestors only, and nothing after commit depends on rejected nodes",
        Equality.BIT_EXACT,
        _BOTH,
    ),
    (
        "layer-major",
        "the layer-major program gives what the token-major program gives",
        Equality.BOUNDED,
        _BOTH,
    ),
    ("deferred-update", "deferred update + flush = immediate update, at any moment", Equality.BOUNDED, _BOTH),
    ("generated-module", "the generated module gives what the interpreter gives", Equality.BOUNDED, _BOTH),
    ("snapshot", "snapshot, restore and flush are idempotent", Equality.BIT_EXACT, _BOTH),
    ("prefill-split", "prefill split anywhere = one prefill = plain steps", Equality.BOUNDED, _BOTH),
    ("lossless", "greedy output does not depend on the drafts", Equality.INTEGER, _BOTH),
    ("verify-pure", "verify without commit can't be observed", Equality.BIT_EXACT, _BOTH),
    ("capacity", "reaching the capacity ends generation cleanly", Equality.INTEGER, _BOTH),
    ("superset-tree", "a tree that contains another never accepts less (greedy)", Equality.INTEGER, _BOTH),
    ("one-path", "K, V, conv and drafter rows are moved by the same path", Equality.BIT_EXACT, _BOTH),
    ("fingerprint", "a pass that changes nothing keeps the program's fingerprint", Equality.INTEGER, _BOTH),
)

INVARIANTS: tuple[Invariant, ...] = tuple(
    Invariant(f"I{number}", name, statement, equality, applies_to)
    for number, (name, statement, equality, applies_to) in enumerate(_TABLE, start=1)
)
"""I1 to I28, in order."""

INVARIANT_NAMES: tuple[str, ...] = tuple(invariant.name for invariant in INVARIANTS)
"""What a spec's `invariants:` list may hold (or the word `all`)."""

_BY_KEY = {key: invariant for invariant in INVARIANTS for key in (invariant.id, invariant.name)}


def invariant(key: str) -> Invariant:
    """Return the invariant with this id ("I7") or name ("path-valid"). Raises KeyError for any other text."""
    return _BY_KEY[key]


def applicable(features: frozenset[Applies]) -> tuple[Invariant, ...]:
    """Return the invariants that say something about a target with these features, in order."""
    return tuple(entry for entry in INVARIANTS if entry.applies_to & features)
