"""Which function stands for an op in an Ascend module; ops that are not listed are their reference implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from specc.backends.ascend.ops import (
    aten,
    attention,
    cache,
    chain,
    conv,
    create,
    delta,
    draft,
    moe,
    npu,
    random,
    rows,
    sampling,
)
from specc.backends.printing.dialect import Call
from specc.ir.op import info

ops = torch.ops.aten
Function = Callable[..., Any]

FUNCTIONS: tuple[Function, ...] = (
    attention.ancestor_mask,
    attention.attention_mask,
    attention.masked_attention,
    cache.append_rows,
    cache.commit_path,
    cache.joined_rows,
    chain.npu_chain_slots,
    chain.npu_pool_fill,
    chain.npu_pool_read,
    chain.npu_recurrent_chain,
    conv.conv_commit,
    conv.short_conv,
    conv.tree_conv,
    create.int_table,
    create.root_table,
    delta.delta_rule,
    delta.delta_rule_chunk,
    delta.delta_rule_commit,
    delta.delta_rule_verify,
    delta.delta_rule_verify_pending,
    delta.delta_rule_verify_states,
    draft.pack_tree,
    draft.score_rank,
    draft.stable_topk,
    moe.moe,
    npu.npu_fused_infer_attention_score,
    npu.npu_rms_norm,
    npu.npu_rotary_mul,
    npu.npu_scatter_update,
    npu.npu_swiglu,
    random.counter_uniform,
    random.counter_uniform_rows,
    sampling.sample_index,
    sampling.sampling_probs,
)
KERNELS: Mapping[str, Function] = {function.__name__: function for function in FUNCTIONS}
POINTWISE: Mapping[object, Function] = {ops.softplus.default: aten.softplus}
# Of aten ops that are always replaced: the function has the op's own parameters.
REPLACED: Mapping[object, Function] = {
    ops.amax.default: aten.amax,
    ops.argmax.default: aten.argmax,
    ops.clamp_max.default: aten.clamp_max,
    ops.logaddexp.default: aten.logaddexp,
    ops.roll.default: aten.roll,
    ops.select_scatter.default: aten.select_scatter,
    ops.xlogy.Tensor: aten.xlogy,
}
NAMES: frozenset[str] = frozenset(KERNELS) | {
    "linear",
    *(function.__name__ for function in (*POINTWISE.values(), *REPLACED.values())),
    "cumprod",
    "less",
    "take_entries",
    "take_rows",
}


def special(node: Node) -> Call | None:
    """The function for an aten node that GE has no form of, or whose result it leaves open; None for all others."""
    if node.kwargs:
        return None
    if node.target in REPLACED:
        return _replaced(node)
    if node.target is ops.index.Tensor:
        return _taken(node)
    if node.target is ops.cumprod.default and _is_flag(node.args[0]):
        return aten.cumprod, tuple(node.args)
    if node.target is ops.lt.Tensor and len({argument.meta["val"].dtype for argument in node.all_input_nodes}) > 1:
        return aten.less, tuple(node.args)
    return None


def npu_special(node: Node) -> Call | None:
    """`special`, and the device's own linear layer: torch's is a product with the weights transposed by an op."""
    if node.target is ops.linear.default and not node.kwargs:
        return npu.linear, tuple(node.args)
    return special(node)


def _replaced(node: Node) -> Call | None:
    """A node of REPLACED, where its function covers the arguments."""
    whole = node.target is ops.argmax.default and (len(node.args) < 2 or node.args[1] is None)
    several = node.target is ops.amax.default and (len(node.args) < 2 or len(node.args[1]) != 1)  # type: ignore[arg-type]
    across = node.target is ops.roll.default and (len(node.args) < 3 or len(node.args[2]) != 1)  # type: ignore[arg-type]
    return None if whole or several or across else (REPLACED[node.target], tuple(node.args))


def _taken(node: Node) -> Call | None:
    """x[index], or x[batch, index] with the number of each sequence."""
    value, indices = node.args[0], node.args[1]
    if not isinstance(indices, (list, tuple)):
        return None
    nodes = [item for item in indices if isinstance(item, Node)]
    if len(nodes) != len(indices):
        return None
    *batch, index = nodes
    fake = index.meta["val"]
    if fake.dtype != torch.int64 or len(batch) > 1:
        return None
    if not batch:
        return rows.take_entries, (value, index)
    declared = info(batch[0].target)
    if declared is None or declared.name != "batch_index" or fake.dim() != 2:
        return None
    return rows.take_rows, (value, index)


def _is_flag(value: Any) -> bool:
    """Whether a node holds zeros and ones: a truth value as a number."""
    if not isinstance(value, Node) or value.target is not ops._to_copy.default:
        return False
    source = value.args[0]
    return isinstance(source, Node) and source.meta["val"].dtype == torch.bool
