"""Contracts of the gated delta rule (SPC550 to SPC557): the fused op for chains, precision of the matmul form."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import Node

from specc.backends.ascend.contracts.calls import NpuCall, fake_tensor
from specc.backends.ascend.contracts.context import Context, sizes, static, words
from specc.backends.ascend.contracts.distinct import distinct_rows
from specc.ir.edit import modules
from specc.ir.op import info
from specc.ir.ranges import interval as iv
from specc.ir.ranges.bounds import of_size
from specc.ir.ranges.calls import Call, call_of, dtype_of, shape_of

OURS = "npu_recurrent_chain"
NAMES = (OURS, "npu_recurrent_gated_delta_rule", "npu_recurrent_gated_delta_rule_functional")
NARROW, MAX_SIZE = torch.bfloat16, 256
NEEDED = ("beta", "scale", "actual_seq_lengths", "ssm_state_indices")
TYPES: Mapping[str, torch.dtype] = {
    **dict.fromkeys(("query", "key", "value", "beta"), NARROW),
    **dict.fromkeys(("actual_seq_lengths", "ssm_state_indices"), torch.int32),
    "g": torch.float32,
}
"""Of the device's own operator. Ours rounds queries, keys and rates itself."""
OUR_TYPES: Mapping[str, torch.dtype] = {"v": NARROW, "slots": torch.int32, "g": torch.float32}
MAX_TOKENS = 8
HALF = (torch.float16, torch.bfloat16)
_PRODUCTS = words("mm bmm matmul baddbmm addmm einsum")
_CASTS = words("to half bfloat16 type convert_element_type")
_VIEWS = words("view reshape expand unsqueeze squeeze permute transpose t contiguous clone select slice")
_TRIANGLE_KEEPS = words("neg mul div add sub where tril triu masked_fill")
_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros", "scalar_tensor", "full"})
STATE_DIMS = 4


def check_delta(call: NpuCall, ctx: Context) -> None:
    """The fused op: bfloat16 state, a chain of at most 8 tokens, one state row per token, the functional form."""
    if call.name not in NAMES:
        return
    node, state, query = call.node, fake_tensor(call.get("state", "pool")), fake_tensor(call.get("query", "q"))
    if state is not None and state.dtype != NARROW:
        help = "write `runtime: {state_dtype: bfloat16}`, or verify by matmuls (`verify: {recurrence: tree}`)"
        ctx.refuse("SPC550", node, f"the state is {state.dtype}; the op has bfloat16 states only", help)
    tokens = None if query is None else _tokens(call, query, ctx)
    if tokens is not None and tokens > MAX_TOKENS:
        help = f"draft at most {MAX_TOKENS - 2} tokens, or verify by matmuls (`verify: {{recurrence: tree}}`)"
        ctx.refuse("SPC551", node, f"{tokens} tokens of one sequence; the op takes at most {MAX_TOKENS}", help)
    if ctx.facts.attributes.get("chain") is False and tokens != 1:
        message = (
            "the drafts of this program branch, and the op goes along a chain: a node would start from its neighbour"
        )
        ctx.refuse("SPC552", node, message, "verify by matmuls (`verify: {recurrence: tree}`), or draft a chain")
    _operands(call, ctx)
    _sizes(call, state, query, ctx)
    _state_rows(call, state, query, ctx)
    if call.in_place:
        message = "the op writes the state in place, and a graph may only hold its functional form"
        ctx.refuse("SPC553", node, message, "call npu_recurrent_gated_delta_rule_functional and copy_ its state back")


def _operands(call: NpuCall, ctx: Context) -> None:
    """SPC555 and SPC557: what the op takes, and in which types."""
    for name, dtype in (OUR_TYPES if call.name == OURS else TYPES).items():
        found = fake_tensor(call.get(name))
        if found is not None and found.dtype != dtype:
            help = "compute in bfloat16 (`runtime: {dtype: bfloat16}`), or verify by matmuls with a float32 state"
            ctx.refuse("SPC555", call.node, f"`{name}` is {found.dtype}; the op takes {dtype}", help)
    if call.name == OURS:
        return
    missing = [name for name in NEEDED if call.get(name) is None]
    if missing:
        message = f"{', '.join(missing)} left out; no default stands for it in a graph"
        ctx.refuse("SPC557", call.node, message, "pass rates, K^-0.5, the tokens of every sequence and a row per token")
    if call.get("gk") is not None:
        ctx.refuse("SPC557", call.node, "gk is reserved: decays are one number per head", "leave gk out and pass g")


def _sizes(call: NpuCall, state: torch.Tensor | None, query: torch.Tensor | None, ctx: Context) -> None:
    """SPC556: heads and their sizes."""
    value = fake_tensor(call.get("value", "v"))
    if state is None or query is None or value is None:
        return
    heads, wide = static(query.shape[-2]), static(value.shape[-2])
    numbers = [heads, wide, static(query.shape[-1]), static(value.shape[-1])]
    held = [number for number in numbers if number is not None]
    if max(held, default=0) > MAX_SIZE or (heads and wide and wide % heads):
        message = f"{heads} key heads and {wide} value heads of {numbers[2]} and {numbers[3]} elements"
        help = f"at most {MAX_SIZE} each, value heads a multiple of key heads; verify others by matmuls"
        ctx.refuse("SPC556", call.node, message, help)
        return
    expected = [wide, numbers[3], numbers[2]]
    found = [static(size) for size in state.shape[-3:]]
    if None not in (*expected, *found) and found != expected:
        message = f"states of {found}, not {expected}: value heads, value size, key size"
        ctx.refuse("SPC556", call.node, message, "keep states as [slots, value heads, value size, key size]")


def _tokens(call: NpuCall, query: torch.Tensor, ctx: Context) -> int | None:
    """Rows per sequence: all rows over the number of sequences."""
    slots = fake_tensor(call.get("slots"))
    if slots is not None:
        return static(slots.shape[0] // query.shape[0])
    if query.dim() == 4:
        return static(query.shape[1])
    rows, lengths = static(query.shape[0]), fake_tensor(call.get("actual_seq_lengths"))
    batch = 1 if lengths is None else static(lengths.shape[0])
    return None if rows is None or not batch else -(-rows // batch)


def _state_rows(call: NpuCall, state: torch.Tensor | None, query: torch.Tensor | None, ctx: Context) -> None:
    """`ssm_state_indices`: where the state after each token goes."""
    index = call.get("ssm_state_indices", "slots")
    fake = fake_tensor(index)
    if fake is None or state is None or query is None:
        return
    carried = 0 if query.dim() == 3 else fake.shape[0] // query.shape[0] - query.shape[1]
    if (query.dim() == 3 and fake.numel() != query.shape[0]) or carried not in (0, 1):
        message = f"{sizes(fake)} state rows for {sizes(query)} tokens; the op wants one row per token"
        ctx.refuse("SPC552", call.node, message, "give each token its own row of the pool")
    held, legal = ctx.ranges.of(index), iv.up_to(of_size(math.prod(state.shape[:-3])))
    if not held.within(legal):
        message = f"a state row may be {held}, and the pool has {legal}; the op does not check"
        ctx.refuse("SPC540", call.node, message, "declare the range of the rows, or clamp them")
    if not distinct_rows(index, ctx):
        message = f"two tokens may share a state row: nothing shows that `{index.name}` has no row twice"
        help = f"give each token its own row and declare: unique={{'{index.name}'}}"
        ctx.refuse("SPC541", call.node, message, help)


def check_products(ctx: Context) -> None:
    """SPC554: products of the node-by-node triangle and of the state, in half precision."""
    for module in modules(ctx.module):
        for node in module.graph.nodes:
            _state_of_our_ops(node, ctx)
            call = call_of(node)
            if call is None or call.name not in _PRODUCTS:
                continue
            for operand in _factors(call):
                what = _lossy(operand, ctx) if dtype_of(operand) in HALF else None
                if what:
                    ctx.refuse(
                        "SPC554",
                        node,
                        f"a product of {what} with {dtype_of(operand)} operands: u is then off by 3e-3 (float16) or "
                        "2e-2 (bfloat16) on repeated keys, against 5e-8",
                        "cast the operands to float32 before the product, and the result back after it",
                    )


def _state_of_our_ops(node: Node, ctx: Context) -> None:
    """Our delta rule ops compute in float32, but what a state has lost before they do not get back."""
    declaration = info(node.target)
    if declaration is None or not declaration.name.startswith("delta_rule") or not node.args:
        return
    what = _lossy(node.args[0], ctx) if isinstance(node.args[0], Node) else None
    if what:
        help = "keep the state in float32, or in bfloat16 everywhere (`runtime: {state_dtype: bfloat16}`)"
        ctx.refuse("SPC554", node, f"it starts from {what} rounded to {dtype_of(node.args[0])}", help)


def _factors(call: Call) -> Iterator[Node]:
    items = call.args[1] if call.name == "einsum" and len(call.args) == 2 else call.args
    for item in items if isinstance(items, (list, tuple)) else call.args[1:]:
        if isinstance(item, Node):
            yield item


def _lossy(operand: Node, ctx: Context) -> str | None:
    """Why this operand must not be rounded: it is a strict triangle [.., N, N], or a cast of a float32 state."""
    if is_triangle(operand):
        return "the N x N matrix of the delta rule"
    node, rounded = operand, False
    for _ in range(12):
        node = ctx.outer(node)
        call = call_of(node)
        if call is None or call.name not in _CASTS | _VIEWS or not isinstance(call.first, Node):
            break
        before = dtype_of(call.first)
        rounded = rounded or (before == torch.float32 and dtype_of(node) in HALF)
        node = call.first
    fake = fake_tensor(node)
    is_state = node.op == "placeholder" and fake is not None and fake.dim() >= STATE_DIMS
    return f"the recurrent state `{node.name}`" if rounded and is_state else None


def _zeroed_by_mask(call: Call) -> bool:
    """A square matrix whose pairs are chosen by a bool mask and zero elsewhere: a tree's triangle."""
    if call.name == "where":
        fill = call.arg(2, "other")
        filled = call_of(fill) if isinstance(fill, Node) else None
        zero = fill == 0 if isinstance(fill, (int, float)) else filled is not None and filled.name in _ZEROS
        return zero and _is_pair_mask(call.arg(0, "condition"))
    if call.name == "masked_fill":
        fill = call.arg(2, "value")
        return isinstance(fill, (int, float)) and fill == 0 and _is_pair_mask(call.arg(1, "mask"))
    return call.name == "mul" and any(_is_pair_mask(side) for side in (call.first, call.arg(1, "other")))


def _is_pair_mask(item: Any) -> bool:
    """bool [.., N, N], also as numbers."""
    while isinstance(item, Node):
        call, shape = call_of(item), shape_of(item)
        if not shape or len(shape) < 2 or shape[-1] != shape[-2] or static(shape[-1]) == 1:
            return False
        if dtype_of(item) == torch.bool:
            return True
        if call is None or call.name not in _CASTS | _VIEWS:
            return False
        item = call.first
    return False


def is_triangle(node: Any, depth: int = 12) -> bool:
    """A matrix whose upper half and diagonal were zeroed, or made of one by casts, elementwise ops and products."""
    if not isinstance(node, Node) or depth == 0:
        return False
    call, shape = call_of(node), shape_of(node)
    if call is None or not shape or len(shape) < 2 or shape[-1] != shape[-2]:
        return False
    if call.name == "tril":
        diagonal = call.arg(1, "diagonal", default=0)
        return isinstance(diagonal, int) and diagonal < 0
    if _zeroed_by_mask(call):
        return True
    if call.name in _CASTS | _VIEWS | _TRIANGLE_KEEPS | _PRODUCTS or node.target is operator.getitem:
        return any(is_triangle(item, depth - 1) for item in node.all_input_nodes)
    return False
