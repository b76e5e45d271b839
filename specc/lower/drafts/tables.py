"""Tables of the drafter's rows during one draft."""

from __future__ import annotations

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import GraphBuilder
from specc.lower.drafts.model import DraftModel

aten = torch.ops.aten


def node_tables(b: GraphBuilder, model: DraftModel, like: Node, rows: int) -> dict[str, Node]:
    """Zeroed k_table, v_table [Ld,B,rows,Hkv,D]; the batch is that of `like`."""
    geometry = model.info.geometry
    shape = [geometry.num_hidden_layers, -1, rows, geometry.num_key_value_heads, geometry.head_dim]
    return {
        name: b.call(ops.full_rows, like, shape, 0, model.info.dtype, name=f"draft_{name}")
        for name in ("k_table", "v_table")
    }


def plus(b: GraphBuilder, column: Node, row: Node) -> Node:
    """[B,1] + [M] -> [B,M]."""
    return b.call(aten.add.Tensor, column, row)
