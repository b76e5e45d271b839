"""What every drafter returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft [B,N]: node 0 the root, padding last (token 0, parent 0, valid False).

    `parent` is None for chains, `log_probs` float32 where the drafter knows none, `q_probs` [B,N,V] (the drafter's law
    of each node's children) unless drafts are drawn.
    """

    tokens: Node
    parent: Node | None
    valid: Node
    log_probs: Node | None = None
    q_probs: Node | None = None
