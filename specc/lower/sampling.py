"""Tokens from logits: the law in effect, its draws, and which counter each draw uses.

Every draw is `counter_uniform(rng of the row, position of the token that it decides about, purpose)`. A position is
decided at most once in a text, and purposes differ within a position, so that no two decisions share a number.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import GraphBuilder
from specc.lower.config import AcceptConfig
from specc.lower.step import StepBuilder

aten = torch.ops.aten

# Purposes. Accepting node i at a position uses ACCEPT_DRAW + i, drawing the children of node i DRAFT_DRAW + i.
PICK_DRAW = 0
ACCEPT_DRAW = 1
DRAFT_DRAW = 1 << 20


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that laws are computed in: float64 for float64 models, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def target_probs(b: GraphBuilder, accept: AcceptConfig, logits: Node, name: str = "probs") -> Node:
    """The law over the last dim of logits [B,M,V] after temperature, top_k and top_p.

    At temperature 0 (typical acceptance without sampling) it is the model's own law, temperature 1.
    """
    dtype = compute_dtype(logits.meta["val"].dtype)
    temperature = accept.temperature or 1.0
    return b.call(ops.sampling_probs, logits, float(temperature), accept.top_k, float(accept.top_p), dtype, name=name)


def at_token(b: GraphBuilder, table: Node, token: Node, name: str | None = None) -> Node:
    """table [B,V] at token [B] -> [B]."""
    column = b.call(aten.unsqueeze.default, token, 1)
    return b.call(aten.squeeze.dim, b.call(aten.gather.default, table, 1, column), 1, name=name)


def at_node(b: GraphBuilder, table: Node, node: Node, name: str | None = None) -> Node:
    """table [B,N,…] at node [B] -> [B,…]."""
    batch = b.call(ops.batch_index, node)
    row = b.call(aten.index.Tensor, table, [batch, b.call(aten.unsqueeze.default, node, 1)])
    return b.call(aten.squeeze.dim, row, 1, name=name)


def zero_like(b: GraphBuilder, node: Node) -> Node:
    """Zeros of the same type."""
    return b.call(aten.zeros_like.default, node)


def pick_token(b: StepBuilder, accept: AcceptConfig, logits: Node, position: Node) -> Node:
    """The token [B] that stands at `position` int64 [B], from the logits [B,V] before it: argmax at temperature 0."""
    with b.spec("sampling"):
        if accept.temperature == 0.0:
            return b.call(aten.argmax.default, logits, -1, name="picked")
        rows = target_probs(b, accept, b.call(aten.unsqueeze.default, logits, 1))
        uniform = b.call(ops.counter_uniform, b.slot("rng"), position, PICK_DRAW)
        return b.call(ops.sample_index, b.call(aten.squeeze.dim, rows, 1), uniform, name="picked")
