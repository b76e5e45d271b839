"""Fused attention: FusedInferAttentionScore (decode rounds and prompts), PromptFlashAttention."""

from __future__ import annotations

import torch

from specc.backends.ascend.harness.evaluator.node import Node, documented, operator
from specc.backends.ascend.semantics.attention import UNBOUNDED, AttentionSettings, attention

TOKENS = {"pre_tokens": None, "next_tokens": None}


@operator(
    "FusedInferAttentionScore",
    inputs=("query", "atten_mask", "actual_seq_lengths", "actual_seq_lengths_kv"),
    dynamic=("key", "value"),
    attributes=TOKENS
    | {
        "num_heads": None,
        "num_key_value_heads": None,
        "scale": None,
        "input_layout": None,
        "sparse_mode": None,
        "inner_precise": None,
        "block_size": (0,),
        "antiquant_mode": (0,),
        "key_antiquant_mode": (0,),
        "value_antiquant_mode": (0,),
        "query_quant_mode": (0,),
        "softmax_lse_flag": (False,),
        "pse_type": (0,),
        "out_dtype": (0,),
    },
)
def fused_infer_attention_score(node: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """(attention, zeros [1]: the log-sum-exp is not asked for)."""
    settings = _settings(node, "scale", next_tokens=UNBOUNDED, inner_precise=0)
    return _attention(node, settings, node.tensors("key"), node.tensors("value")), torch.zeros(1)


@operator(
    "PromptFlashAttention",
    inputs=("query", "key", "value", "atten_mask", "actual_seq_lengths", "actual_seq_lengths_kv"),
    attributes=TOKENS
    | {
        "num_heads": None,
        "num_key_value_heads": None,
        "scale_value": None,
        "input_layout": None,
        "sparse_mode": None,
        "inner_precise": None,
    },
)
def prompt_flash_attention(node: Node) -> torch.Tensor:
    """Attention of a prompt. next_tokens is 0 unless it is given: causal from the first row."""
    settings = _settings(node, "scale_value", next_tokens=0, inner_precise=1)
    return _attention(node, settings, [node.tensor("key")], [node.tensor("value")])


def _settings(node: Node, scale: str, *, next_tokens: int, inner_precise: int) -> AttentionSettings:
    return AttentionSettings(
        node.attribute("num_heads"),
        node.attribute("num_key_value_heads", 0),
        node.attribute(scale, 1.0),
        node.attribute("input_layout", "BSH"),
        node.attribute("sparse_mode", 0),
        node.attribute("inner_precise", inner_precise),
        node.attribute("pre_tokens", UNBOUNDED),
        node.attribute("next_tokens", next_tokens),
    )


def _attention(
    node: Node, settings: AttentionSettings, keys: list[torch.Tensor], values: list[torch.Tensor]
) -> torch.Tensor:
    if len(keys) != 1 or len(values) != 1:
        raise node.unmodelled("a list of caches, one for each sequence")
    mask = node.optional("atten_mask")
    lengths = [_lengths(node, name) for name in ("actual_seq_lengths", "actual_seq_lengths_kv")]
    return documented(node, attention, node.tensor("query"), keys[0], values[0], mask, *lengths, settings)


def _lengths(node: Node, name: str) -> list[int] | None:
    value = node.optional(name)
    if value is None:
        return None
    if value.dtype != torch.int64:
        raise node.undefined(f"{name} of {value.dtype}")
    return [int(length) for length in value.reshape(-1).tolist()]
