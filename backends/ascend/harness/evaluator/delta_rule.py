"""RecurrentGatedDeltaRule: the state input changes in place."""

from __future__ import annotations

import torch

from specc.backends.ascend.harness.evaluator.node import Node, documented, operator
from specc.backends.ascend.semantics.delta_rule import recurrent_gated_delta_rule_


@operator(
    "RecurrentGatedDeltaRule",
    inputs=(
        "query",
        "key",
        "value",
        "beta",
        "state",
        "actual_seq_lengths",
        "ssm_state_indices",
        "g",
        "num_accepted_tokens",
    ),
    attributes={"scale_value": None},
)
def recurrent_gated_delta_rule(node: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """(outputs, the state)."""
    state = node.tensor("state")
    output = documented(
        node,
        recurrent_gated_delta_rule_,
        node.tensor("query"),
        node.tensor("key"),
        node.tensor("value"),
        state,
        node.tensor("beta"),
        node.attribute("scale_value", 1.0),
        node.tensor("actual_seq_lengths"),
        node.tensor("ssm_state_indices"),
        node.optional("num_accepted_tokens"),
        node.optional("g"),
    )
    return output, state
