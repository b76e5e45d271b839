"""aten ops that torchair turns into no GE op (SPC570), with what says the same in ops that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.fx import Node

from specc.backends.ascend.contracts.context import Context, words
from specc.ir.edit import modules
from specc.ir.ranges.calls import Call, call_of, dtype_of

When = Callable[[Call], bool]


def always(call: Call) -> bool:
    """Every form of the op."""
    return True


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a graph can't hold the op, where `when` holds, and what to write instead."""

    remedy: str
    when: When = always


def _by_mask(call: Call) -> bool:
    """`x[mask]`: the size of the result depends on the data."""
    items = call.arg(1, "indices") or ()
    items = items if isinstance(items, (list, tuple)) else [items]
    return any(dtype_of(item) in (torch.bool, torch.uint8) for item in items if isinstance(item, Node))


def _along_dim(call: Call) -> bool:
    """`all(x, dim)`; over all elements there is a converter."""
    return call.arg(1, "dim") is not None


def _by_number(call: Call) -> bool:
    """`x & 3`: the form with a number."""
    return not isinstance(call.arg(1, "other"), Node)


def _is_stable(call: Call) -> bool:
    return bool(call.kwargs.get("stable"))


TRIANGLE = "make the constant once, as a buffer of the module, and pass it in"
STATIC = "keep every row and carry a mask: sizes of a graph may not depend on data"
MISSING: Mapping[str, Missing] = {
    "index_put": Missing("write rows by npu scatter_update, or single elements by torch.scatter"),
    "index_copy": Missing("write rows by npu scatter_update, or elements by torch.scatter"),
    "masked_scatter": Missing("torch.where with a gathered source"),
    "cumprod": Missing("exp of the cumsum of logarithms, or a loop over a static number of steps"),
    "roll": Missing("torch.cat of two slices"),
    "nonzero": Missing(STATIC),
    "nonzero_static": Missing(STATIC),
    "masked_select": Missing(STATIC),
    "argwhere": Missing(STATIC),
    "unique": Missing(STATIC),
    "unique_consecutive": Missing(STATIC),
    "index": Missing(f"torch.where, or: {STATIC}", _by_mask),
    "cond": Missing("compute both branches and choose by torch.where: a graph has no branches"),
    "while_loop": Missing("a loop over a static number of steps, with torch.where for what is finished"),
    "softplus": Missing("torch.where(x > 20, x, torch.log1p(torch.exp(torch.clamp(x, max=20))))"),
    "logaddexp": Missing("m + log(exp(a - m) + exp(b - m)) with m = torch.maximum(a, b)"),
    "logaddexp2": Missing("m + log2(2^(a - m) + 2^(b - m)) with m = torch.maximum(a, b)"),
    "logcumsumexp": Missing("log of the cumsum of exp(x - max)"),
    "eye": Missing(TRIANGLE),
    "linalg_inv": Missing("the block recursion X - X A X from matmuls (it needs no eye)"),
    "linalg_inv_ex": Missing("the block recursion X - X A X from matmuls (it needs no eye)"),
    "linalg_solve_triangular": Missing("the block recursion X - X A X from matmuls (it needs no eye)"),
    "triangular_solve": Missing("the block recursion X - X A X from matmuls (it needs no eye)"),
    "amax": Missing("torch.max(x, dim).values"),
    "amin": Missing("torch.neg(torch.max(torch.neg(x), dim).values)"),
    "aminmax": Missing("torch.max(x, dim).values, and the same of -x"),
    "min": Missing("torch.max of -x along the dim (its values negated)", _along_dim),
    "prod": Missing("products of slices, over a static number of steps"),
    "var": Missing("mean of squares less the square of the mean"),
    "isnan": Missing("x != x"),
    "logical_xor": Missing("torch.ne of two bool tensors"),
    "trunc": Missing("torch.where(x < 0, torch.ceil(x), torch.floor(x))"),
    "fmod": Missing("torch.remainder, where the operands are not negative"),
    "exp2": Missing("torch.exp(x * log(2))"),
    "mv": Missing("torch.matmul with a dim of 1 added"),
    "dot": Missing("(x * y).sum()"),
    "diagonal": Missing("multiply by an identity matrix that is passed in, and sum"),
    "_assert_async": Missing("check on the host before the step"),
    "all": Missing("torch.logical_not(torch.any(torch.logical_not(x), dim))", _along_dim),
    "cummax": Missing("a loop over a static number of steps with torch.maximum"),
    "cummin": Missing("a loop over a static number of steps with torch.minimum"),
    "isin": Missing("(x.unsqueeze(-1) == set).any(-1)"),
    "one_hot": Missing("x.unsqueeze(-1) == torch.arange(classes)"),
    "bitwise_and": Missing("torch.remainder by a power of two, or keep bits apart as bool tensors", _by_number),
    "bitwise_or": Missing("keep bits apart as bool tensors", _by_number),
    "bitwise_xor": Missing("keep bits apart as bool tensors", _by_number),
    "__and__": Missing("torch.remainder by a power of two", _by_number),
    "bitwise_left_shift": Missing("multiply by a power of two"),
    "lshift": Missing("multiply by a power of two"),
    "__lshift__": Missing("multiply by a power of two"),
    "bitwise_right_shift": Missing("torch.floor_divide by a power of two"),
    "rshift": Missing("torch.floor_divide by a power of two"),
    "__rshift__": Missing("torch.floor_divide by a power of two"),
    "sort": Missing("topk over the whole row; ranks by counting, which are stable", _is_stable),
    "argsort": Missing("topk over the whole row; ranks by counting, which are stable", _is_stable),
    "scaled_dot_product_attention": Missing(
        "npu_fused_infer_attention_score; traced for a CPU this op becomes one of the CPU's own kernels"
    ),
    "_scaled_dot_product_flash_attention_for_cpu": Missing("npu_fused_infer_attention_score"),
    "_grouped_mm": Missing("npu_grouped_matmul"),
}
RANDOM = words(
    "rand randn randint rand_like randn_like randint_like randperm bernoulli multinomial normal uniform "
    "exponential geometric cauchy log_normal poisson native_dropout dropout"
)
PACKAGES = ("aten", "torch", "_operator", "prims", "higher_order")


def check_converters(ctx: Context) -> None:
    """SPC570 and SPC572 for every node of the module and its loop bodies."""
    for module in modules(ctx.module):
        for node in module.graph.nodes:
            call = call_of(node)
            if call is None:
                continue
            if call.name in RANDOM:
                ctx.refuse(
                    "SPC572",
                    node,
                    f"{call.name} draws random numbers inside the graph: they would be those of its capture, or none",
                    "draw outside and pass the numbers in as a tensor",
                )
                continue
            missing = MISSING.get(call.name)
            if missing is None or not missing.when(call) or ctx.facts.printed(node):
                continue
            ctx.refuse("SPC570", node, f"{call.name} has no GE converter: the graph can't be built", missing.remedy)
