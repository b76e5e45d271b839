"""Legal graphs with torch_npu's ops, made node by node with recorded values: no kernel of theirs is needed.

`legal(name)` gives a fresh graph and what a caller declares about it; the methods of `Legal` change
one node.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from specc.backends.ascend import cpu
from specc.backends.ascend.schemas import define
from specc.ir.build import value_of

aten = torch.ops.aten
BF16 = torch.bfloat16
BATCH, HEADS, KV_HEADS, DIM, ROWS, KEYS, VOCABULARY = 2, 8, 2, 64, 16, 1024, 256


def npu(name: str) -> Any:
    """`torch.ops.npu.<name>`, declared by its shipped schema where torch_npu is not there."""
    define([name])
    return getattr(torch.ops.npu, name).default


def air(name: str) -> Any:
    """torchair's form: the same op with tensors for lengths."""
    cpu.register()
    return getattr(torch.ops.air, name).default


@dataclass
class Legal:
    """A graph without faults, and the declarations that its proof needs."""

    module: GraphModule
    declared: dict[str, Any]
    mode: FakeTensorMode

    def __getitem__(self, name: str) -> Node:
        """A node by its name."""
        return next(node for node in self.module.graph.nodes if node.name == name)

    def keyword(self, name: str, **changes: Any) -> None:
        """Keyword arguments of a node; None takes one away."""
        node = self[name]
        node.kwargs = {key: held for key, held in {**node.kwargs, **changes}.items() if held is not None}
        self.retype()

    def argument(self, name: str, position: int, held: Any) -> None:
        """A positional argument of a node."""
        self[name].update_arg(position, held)
        self.retype()

    def target(self, name: str, target: Any, *args: Any, **kwargs: Any) -> None:
        """Another op in place of a node, on the same operands or on `args`."""
        node = self[name]
        node.target = target
        if args:
            node.args, node.kwargs = args, kwargs
        self.retype()

    def put_in(self, name: str, *shape: int, dtype: torch.dtype, strides: tuple[int, ...] | None = None) -> None:
        """Another type of an input."""
        with self.mode:
            made = torch.empty(shape, dtype=dtype)
            self[name].meta["val"] = made if strides is None else made.as_strided(shape, strides)
        self.retype()

    def behind(self, name: str, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A new node that takes this one, whose users go on with the new one."""
        node = self[name]
        with self.module.graph.inserting_after(node):
            made = self.module.graph.call_function(target, (node, *args), kwargs)
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
        made.meta["val"] = computed(self.mode, made)
        self.retype()
        return made

    def ahead(self, name: str, position: int, target: Any, *args: Any, **kwargs: Any) -> None:
        """A new node between a node and one of its operands; `retype` is left to the caller."""
        node = self[name]
        with self.module.graph.inserting_before(node):
            made = self.module.graph.call_function(target, (node.args[position], *args), kwargs)
        made.meta["val"] = computed(self.mode, made)
        node.update_arg(position, made)

    def beside(self, name: str, target: Any, *args: Any, like: Any = None, **kwargs: Any) -> Node:
        """A new node before the output, which returns it too."""
        output = self.module.graph.output_node()
        with self.module.graph.inserting_before(output):
            made = self.module.graph.call_function(target, (self[name], *args), kwargs)
        made.meta["val"] = computed(self.mode, made) if like is None else value_of(like)
        output.args = ((*output.args[0], made),)
        return made

    def retype(self) -> None:
        """The recorded values of aten nodes after a change."""
        for node in self.module.graph.nodes:
            if getattr(node.target, "namespace", "") == "aten":
                node.meta["val"] = computed(self.mode, node)


class Builder:
    """Adds nodes with recorded fake values; aten ops are computed on fakes, NPU ops give a value like an operand."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def input(self, name: str, *shape: int, dtype: torch.dtype = BF16) -> Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = self._fake(shape, dtype)
        return node

    def _fake(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        with self.mode:
            return torch.empty(shape, dtype=dtype)

    def call(self, target: Any, *args: Any, name: str | None = None, like: Any = None, **kwargs: Any) -> Node:
        node = self.graph.call_function(target, args, kwargs)
        if name is not None:
            node.name = name
        node.meta["val"] = computed(self.mode, node) if like is None else value_of(like)
        return node

    def item(self, node: Node, number: int) -> Node:
        """One result of a node with several."""
        made = self.graph.call_function(operator.getitem, (node, number))
        made.meta["val"] = node.meta["val"][number]
        return made

    def done(self, *outputs: Node, **declared: Any) -> Legal:
        self.graph.output(tuple(outputs))
        self.graph.lint()
        return Legal(GraphModule(torch.nn.Module(), self.graph), declared, self.mode)


def computed(mode: FakeTensorMode, node: Node) -> Any:
    """What an aten op gives on the recorded fakes."""
    with mode:
        return node.target(*value_of(node.args), **value_of(node.kwargs))


def decode_round() -> Legal:
    """One layer of a verify: rows into the caches, a tree mask over the whole cache, fused attention, a lookup."""
    b = Builder()
    query = b.input("query", BATCH, HEADS, ROWS, DIM)
    rows = [b.input(name, BATCH, KV_HEADS, ROWS, DIM) for name in ("new_k", "new_v")]
    caches = [b.input(name, BATCH, KV_HEADS, KEYS, DIM) for name in ("k_cache", "v_cache")]
    length = b.input("length", BATCH, dtype=torch.int64)
    tree = b.input("tree", BATCH, ROWS, ROWS, dtype=torch.bool)
    table = b.input("table", VOCABULARY, DIM)
    tokens = b.input("tokens", BATCH, ROWS, dtype=torch.int64)
    path = b.input("path", BATCH, ROWS, dtype=torch.int64)
    keys, values = (
        b.call(npu("scatter_update"), cache, length, new, -2, like=cache, name=name)
        for cache, new, name in zip(caches, rows, ("keys", "values"), strict=True)
    )
    mask = tree_mask(b, length, tree)
    live = b.call(aten.add.Tensor, length, ROWS, name="live")
    attention = b.call(
        air("npu_fused_infer_attention_score"), query, keys, values, like=(query, query), name="attention",
        atten_mask=mask, actual_seq_lengths_kv=live, num_heads=HEADS, num_key_value_heads=KV_HEADS, scale=0.125,
        input_layout="BNSD", sparse_mode=0, inner_precise=2,
    )  # fmt: skip
    attended = b.item(attention, 0)
    embedded = b.call(aten.embedding.default, table, tokens, name="embedded")
    accepted = b.call(aten.gather.default, tokens, 1, path, name="accepted")
    copies = [
        b.call(aten.copy_.default, cache, new, name=f"{cache.name}_back")
        for cache, new in zip(caches, (keys, values), strict=True)
    ]
    return b.done(
        attended, embedded, accepted, *copies, masks={"tree": "visible"},
        ranges={"length": (0, KEYS - ROWS), "tokens": (0, VOCABULARY - 1), "path": (0, ROWS - 1)},
    )  # fmt: skip


def tree_mask(b: Builder, length: Node, tree: Node) -> Node:
    """int8 [B,1,Q,KV], 1 = masked out: the committed prefix, and the tree's rows behind it."""
    columns = b.call(aten.arange.default, KEYS, dtype=torch.int64, name="columns")
    start = b.call(aten.view.default, length, [BATCH, 1, 1], name="start")
    prefix = b.call(aten.lt.Tensor, columns, start, name="prefix")
    seen = b.call(aten.expand.default, prefix, [BATCH, ROWS, KEYS], name="seen")
    offset = b.call(aten.arange.default, ROWS, dtype=torch.int64, name="offset")
    place = b.call(aten.add.Tensor, start, offset, name="place")
    places = b.call(aten.expand.default, place, [BATCH, ROWS, ROWS], name="places")
    whole = b.call(aten.clone.default, seen, memory_format=torch.contiguous_format, name="whole")
    visible = b.call(aten.scatter.src, whole, 2, places, tree, name="visible")
    hidden = b.call(aten.logical_not.default, visible, name="hidden")
    bits = b.call(aten._to_copy.default, hidden, dtype=torch.int8, name="bits")
    return b.call(aten.unsqueeze.default, bits, 1, name="mask")


def paged_round() -> Legal:
    """Rows into pages by slot, attention over pages; the table's unused entries hold page 0."""
    b, pages, page = Builder(), 8, 128
    query = b.input("query", BATCH, HEADS, ROWS, DIM)
    rows = [b.input(name, BATCH * ROWS, KV_HEADS, DIM) for name in ("new_k", "new_v")]
    caches = [b.input(name, pages, page, KV_HEADS, DIM) for name in ("k_pages", "v_pages")]
    slots = b.input("slots", BATCH * ROWS, dtype=torch.int32)
    block_table = b.input("block_table", BATCH, 4, dtype=torch.int32)
    lengths = b.input("lengths", BATCH, dtype=torch.int64)
    mask = b.input("mask", BATCH, 1, ROWS, 4 * page, dtype=torch.int8)
    written = b.call(
        npu("npu_scatter_pa_kv_cache_functional"), *rows, *caches, slots, cache_mode="Norm", like=tuple(caches),
        name="written",
    )  # fmt: skip
    keys, values = b.item(written, 0), b.item(written, 1)
    flat = [b.call(aten.view.default, part, [pages, page, KV_HEADS * DIM]) for part in (keys, values)]
    attention = b.call(
        air("npu_fused_infer_attention_score"), query, *flat, like=(query, query), name="attention",
        atten_mask=mask, actual_seq_lengths_kv=lengths, block_table=block_table, block_size=page, num_heads=HEADS,
        num_key_value_heads=KV_HEADS, scale=0.125, input_layout="BNSD", sparse_mode=0, inner_precise=2,
    )  # fmt: skip
    return b.done(
        b.item(attention, 0), masks={"mask": "hidden"}, unique={"slots"},
        ranges={"slots": (0, pages * page - 1), "block_table": (0, pages - 1), "lengths": (1, 4 * page)},
    )  # fmt: skip


def plain_step() -> Legal:
    """One query row over a long cache, int8 mask by positions, incremental attention beside the fused one."""
    b = Builder()
    query = b.input("query", BATCH, 1, HEADS, DIM)
    cache = [b.input(name, BATCH, KEYS, KV_HEADS, DIM) for name in ("k_cache", "v_cache")]
    length = b.input("length", BATCH, dtype=torch.int64)
    columns = b.call(aten.arange.default, KEYS, dtype=torch.int64, name="columns")
    last = b.call(aten.view.default, length, [BATCH, 1, 1, 1], name="last")
    hidden = b.call(aten.gt.Tensor, columns, last, name="hidden")
    mask = b.call(aten._to_copy.default, hidden, dtype=torch.int8, name="mask")
    attention = b.call(
        npu("npu_fused_infer_attention_score"), query, *cache, like=(query, query), name="attention", atten_mask=mask,
        num_heads=HEADS, num_key_value_heads=KV_HEADS, scale=0.125, input_layout="BSND",
    )  # fmt: skip
    return b.done(b.item(attention, 0), ranges={"length": (0, KEYS - 1)})


def packed_prompt() -> Legal:
    """Packed rows of several prompts with the fixed triangle, and a dense prompt by the older op."""
    b, rows = Builder(), 48
    query = b.input("query", rows, HEADS, 128)
    key, value = (b.input(name, rows, KV_HEADS, 128) for name in ("key", "value"))
    ones = b.call(aten.ones.default, [2048, 2048], dtype=torch.bool, name="ones")
    triangle = b.call(aten.triu.default, ones, 1, name="triangle")
    lengths = b.input("lengths", BATCH, dtype=torch.int64)
    attention = b.call(
        air("npu_fused_infer_attention_score"), query, key, value, like=(query, query), name="attention",
        atten_mask=triangle, actual_seq_lengths=lengths, actual_seq_lengths_kv=lengths, num_heads=HEADS,
        num_key_value_heads=KV_HEADS, scale=0.1, input_layout="TND", sparse_mode=3,
    )  # fmt: skip
    prompt = [b.input(name, 1, HEADS, rows, 128) for name in ("prompt_q", "prompt_k", "prompt_v")]
    dense = b.call(
        npu("npu_prompt_flash_attention"), *prompt, like=prompt[0], name="prompt", num_heads=HEADS, scale_value=0.1,
        input_layout="BNSD",
    )  # fmt: skip
    return b.done(b.item(attention, 0), dense, stage="prefill")


def latent_tree() -> Legal:
    """A tree's mask in the mode for it: the second version of the op, over int8 keys."""
    b = Builder()
    query = b.input("query", 1, HEADS, ROWS, DIM)
    cache = [b.input(name, 1, HEADS, KEYS, DIM, dtype=torch.int8) for name in ("k_cache", "v_cache")]
    mask = b.input("mask", ROWS, ROWS, dtype=torch.int8)
    attention = b.call(
        npu("npu_fused_infer_attention_score_v2"), query, *cache, like=(query, query), name="attention",
        atten_mask=mask, num_query_heads=HEADS, softmax_scale=0.125, input_layout="BNSD", sparse_mode=9,
    )  # fmt: skip
    return b.done(b.item(attention, 0), masks={"mask": "hidden"})


def short_prompt() -> Legal:
    """A few rows of a prompt over a longer cache: every token limit is given."""
    b = Builder()
    query = b.input("query", 1, HEADS, ROWS, DIM)
    cache = [b.input(name, 1, HEADS, KEYS, DIM) for name in ("k_cache", "v_cache")]
    mask = b.input("mask", 1, 1, ROWS, KEYS, dtype=torch.int8)
    attention = b.call(
        npu("npu_prompt_flash_attention"), query, *cache, like=query, name="attention",
        atten_mask=mask, num_heads=HEADS, scale_value=0.1, input_layout="BNSD", next_tokens=2**31 - 1,
    )  # fmt: skip
    return b.done(attention, masks={"mask": "hidden"})


def state_pool() -> Legal:
    """Rows of several sequences into a pool by places (sequence, row)."""
    b = Builder()
    pool, rows = b.input("pool", 4, 32, 8, dtype=torch.float32), b.input("rows", 4, 8, dtype=torch.float32)
    row = b.input("row", 4, dtype=torch.int64)
    sequence = b.call(aten.arange.default, 4, dtype=torch.int64, name="sequence")
    places = b.call(aten.stack.default, [sequence, row], -1, name="places")
    written = b.call(npu("npu_scatter_nd_update"), pool, places, rows, like=pool, name="written")
    back = b.call(aten.copy_.default, pool, written, name="pool_back")
    return b.done(back, ranges={"row": (0, 31)})


def chain_step() -> Legal:
    """The fused delta rule over a chain of 8 tokens."""
    b, tokens = Builder(), 8
    query, key = (b.input(name, tokens, 4, 64) for name in ("query", "key"))
    value = b.input("value", tokens, 8, 64)
    state = b.input("state", 32, 8, 64, 64)
    beta = b.input("beta", tokens, 8)
    decay = b.input("decay", tokens, 8, dtype=torch.float32)
    lengths, rows = b.input("lengths", 1, dtype=torch.int32), b.input("rows", tokens, dtype=torch.int32)
    stepped = b.call(
        npu("npu_recurrent_gated_delta_rule_functional"), query, key, value, state, beta=beta, scale=0.125,
        actual_seq_lengths=lengths, ssm_state_indices=rows, g=decay, like=(value, state), name="stepped",
    )  # fmt: skip
    back = b.call(aten.copy_.default, state, b.item(stepped, 1), name="state_back")
    return b.done(b.item(stepped, 0), back, ranges={"rows": (0, 31), "lengths": (1, 8)}, unique={"rows"})


def matmul_form() -> Legal:
    """The delta rule of a tree from matmuls: the N x N matrix and the state in float32."""
    b = Builder()
    key, value = b.input("key", 8, ROWS, 64), b.input("value", 8, ROWS, 64)
    state = b.input("state", 1, 8, 64, 64, dtype=torch.float32)
    key32 = b.call(aten._to_copy.default, key, dtype=torch.float32, name="key32")
    value32 = b.call(aten._to_copy.default, value, dtype=torch.float32, name="value32")
    turned = b.call(aten.transpose.int, key32, 1, 2, name="turned")
    gram = b.call(aten.bmm.default, key32, turned, name="gram")
    lower = b.call(aten.tril.default, gram, -1, name="lower")
    right = b.call(aten.bmm.default, lower, value32, name="right")
    related = b.input("related", 8, ROWS, ROWS, dtype=torch.bool)
    zero = b.call(aten.zeros_like.default, gram, name="zero")
    chosen = b.call(aten.where.self, related, gram, zero, name="chosen")
    tree = b.call(aten.bmm.default, chosen, value32, name="tree")
    square = b.call(aten.view.default, state, [8, 64, 64], name="square")
    read = b.call(aten.bmm.default, key32, square, name="read")
    return b.done(b.call(aten.sub.Tensor, right, read, name="u"), tree)


MADE = (
    decode_round,
    paged_round,
    plain_step,
    packed_prompt,
    latent_tree,
    short_prompt,
    state_pool,
    chain_step,
    matmul_form,
)
LEGAL: Mapping[str, Callable[[], Legal]] = {made.__name__: made for made in MADE}


def legal(name: str) -> Legal:
    """A fresh legal graph."""
    return LEGAL[name]()
