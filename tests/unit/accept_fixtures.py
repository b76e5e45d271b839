"""Accept graphs over small vocabularies, and how to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from specc.ir.dims import BATCH
from specc.ir.interpreter import Hook, Interpreter
from specc.lower.accept import lower_accept
from specc.lower.config import AcceptConfig, DraftConfig
from specc.lower.context import LowerContext
from specc.lower.transformer import ModelInfo
from specc.models.geometry import transformer_geometry
from specc.program import Slot, output_ports
from specc.testing import DraftTree
from tests.unit.decoding_fixtures import SIZES

LONGEST = 1000


def accept_graph(
    accept: AcceptConfig,
    nodes: int,
    vocabulary: int,
    *,
    max_path: int | None = None,
    chain: bool = False,
    dtype: torch.dtype = torch.float64,
) -> GraphModule:
    """The accept graph of N nodes over V tokens."""
    geometry = transformer_geometry("llama", SIZES | {"vocab_size": vocabulary})
    slots = {
        name: Slot(name, (BATCH,), torch.bool if name == "finished" else torch.int64, "control", "")
        for name in ("length", "remaining", "finished", "rng")
    }
    ctx = LowerContext(
        slots, {}, ModelInfo(geometry, "", dtype, {}), None, nodes, max_path or nodes, chain, 0, LONGEST, dtype
    )
    draft = DraftConfig("draft_model", draws=accept.uses_draft_law)
    return lower_accept(ctx, accept, draft)


def run_accept(
    module: GraphModule,
    trees: Sequence[DraftTree],
    logits: torch.Tensor,
    *,
    q_probs: torch.Tensor | None = None,
    state: Mapping[str, torch.Tensor] | None = None,
    hooks: Sequence[Hook] = (),
) -> dict[str, torch.Tensor]:
    """Results by name; a state of running rows unless given."""
    batch = len(trees)
    values: dict[str, Any] = {
        "tokens": torch.tensor([tree.tokens for tree in trees]),
        "parent": torch.tensor([tree.parent for tree in trees]),
        "valid": torch.tensor([tree.valid for tree in trees]),
        "logits": logits,
        "q_probs": q_probs,
        "length": torch.full((batch,), 10),
        "remaining": torch.full((batch,), 1 << 40),
        "finished": torch.zeros(batch, dtype=torch.bool),
        "rng": torch.arange(batch),
    } | dict(state or {})
    ports = [node.meta["port"] for node in module.graph.nodes if node.op == "placeholder"]
    out = Interpreter(module, strict=True, hooks=hooks).run(*(values[port.name] for port in ports))
    return {port.name: value for port, value in zip(output_ports(module), out, strict=True)}
