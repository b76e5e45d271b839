"""Names of what a state holds: by kind, and by the layers that a slot covers.

Slots that exist per layer start with the position in the layers' period, `l0_` … (no prefix where all layers are
alike), and have one entry for each repetition of the period.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from specc.models.geometry import Geometry

POSITION = re.compile(r"^(?:l(\d+)_)?(.+)$")
CACHES = ("k_cache", "v_cache")
RECURRENT = ("state", "conv_window")
FACTORS = ("k_factor", "u_factor", "g_factor")
INPUTS = ("k_input", "v_input", "g_input", "beta_input")
NODE_ROWS = frozenset({"k_candidate", "v_candidate", "conv_candidate", "state_candidate", *FACTORS, *INPUTS})
"""Rows [trips,B,N,…] of the nodes verified last."""
PENDING_ROWS = frozenset({"pending_k", "pending_u", "pending_g"})
"""Factors [trips,B,R,…] of several steps that wait to be folded, in order."""


def role(name: str) -> str:
    """The name without the position in the period."""
    found = POSITION.match(name)
    return found[2] if found else name


def prefix(name: str) -> str:
    """The position in the period as it stands before the name."""
    return name[: len(name) - len(role(name))]


def named(names: Iterable[str], roles: Iterable[str]) -> list[str]:
    """Those of `names` that have one of these roles, in order."""
    wanted = frozenset(roles)
    return [name for name in names if role(name) in wanted]


def layers_of(name: str, geometry: Geometry) -> range:
    """The decoder layers that the entries of a slot belong to."""
    found = POSITION.match(name)
    first = int(found[1]) if found and found[1] else 0
    return range(first, geometry.num_hidden_layers, geometry.period)


def positions(names: Iterable[str], geometry: Geometry) -> Iterator[tuple[str, range]]:
    """Prefix and layers of every recurrent position."""
    for name in named(names, ["state"]):
        yield prefix(name), layers_of(name, geometry)
