"""Faults in one node of a legal graph, each with the code that must refuse it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.backends.ascend.contract_graphs import BATCH, BF16, DIM, HEADS, KEYS, KV_HEADS, ROWS, Legal, npu

aten = torch.ops.aten
F16, I8, I64, F32 = torch.float16, torch.int8, torch.int64, torch.float32
Plant = Callable[[Legal], object]
FAULTS: dict[str, tuple[str, str, Plant]] = {
    # masks
    "float16 mask": ("decode_round", "SPC510", lambda g: g.keyword("bits", dtype=F16)),
    "int64 mask": ("decode_round", "SPC510", lambda g: g.keyword("bits", dtype=I64)),
    "bool mask of one row": ("plain_step", "SPC511", lambda g: g.keyword("mask", dtype=torch.bool)),
    "polarity flipped": ("decode_round", "SPC512", lambda g: g.target("hidden", aten.clone.default)),
    "comparison turned round": ("plain_step", "SPC512", lambda g: g.target("hidden", aten.le.Tensor)),
    "tree of ancestors hidden, prefix shown": (
        "decode_round",
        "SPC512",
        lambda g: g.declared.update(masks={"tree": "hidden"}),
    ),
    "everything masked out": ("decode_round", "SPC512", lambda g: g.behind("bits", aten.ones_like.default)),
    "meaning not declared": ("decode_round", "SPC513", lambda g: g.declared.pop("masks")),
    "mask from an unknown op": ("decode_round", "SPC513", lambda g: g.target("hidden", aten.sin.default, g["visible"])),
    "heads in the mask": ("decode_round", "SPC514", lambda g: g.behind("mask", aten.repeat.default, [1, HEADS, 1, 1])),
    "mask without the heads' dim": (
        "decode_round",
        "SPC514",
        lambda g: g.target("mask", aten.clone.default, g["bits"]),
    ),
    "mask of the tree only": ("decode_round", "SPC514", lambda g: g.behind("mask", aten.slice.Tensor, 3, 0, ROWS)),
    "mask of fewer rows": ("decode_round", "SPC514", lambda g: g.behind("mask", aten.slice.Tensor, 2, 0, 1)),
    "expanded mask": (
        "short_prompt",
        "SPC515",
        lambda g: g.put_in("mask", 1, 1, ROWS, KEYS, dtype=I8, strides=(KEYS, KEYS, 0, 1)),
    ),
    # attention
    "unknown layout": ("decode_round", "SPC520", lambda g: g.keyword("attention", input_layout="SBH")),
    "layout of three dims": ("decode_round", "SPC520", lambda g: g.keyword("attention", input_layout="BSH")),
    "float32 query": ("decode_round", "SPC521", lambda g: g.put_in("query", BATCH, HEADS, ROWS, DIM, dtype=F32)),
    "float16 query over bfloat16 keys": (
        "plain_step",
        "SPC521",
        lambda g: g.put_in("query", BATCH, 1, HEADS, DIM, dtype=F16),
    ),
    "head_dim 72": ("decode_round", "SPC522", lambda g: g.put_in("query", BATCH, HEADS, ROWS, 72, dtype=BF16)),
    "heads not a multiple": ("decode_round", "SPC522", lambda g: g.keyword("attention", num_key_value_heads=3)),
    "257 heads": (
        "short_prompt",
        "SPC522",
        lambda g: (
            g.put_in("query", 1, 257, ROWS, DIM, dtype=BF16),
            g.keyword("attention", num_heads=257),
        ),
    ),
    "65 heads share a key head": (
        "plain_step",
        "SPC522",
        lambda g: (
            g.put_in("query", BATCH, 1, 65, DIM, dtype=BF16),
            g.keyword("attention", num_heads=65, num_key_value_heads=1),
        ),
    ),
    "head_dim 528": ("decode_round", "SPC522", lambda g: g.put_in("query", BATCH, HEADS, ROWS, 528, dtype=BF16)),
    "num_heads of another model": ("decode_round", "SPC522", lambda g: g.keyword("attention", num_heads=4)),
    "17 nodes": (
        "paged_round",
        "SPC523",
        lambda g: (
            g.put_in("query", BATCH, HEADS, 17, DIM, dtype=BF16),
            g.put_in("mask", BATCH, 1, 17, 512, dtype=I8),
        ),
    ),
    "triangle mode with a tree": ("decode_round", "SPC524", lambda g: g.keyword("attention", sparse_mode=3)),
    "tree mode without MLA": ("decode_round", "SPC524", lambda g: g.keyword("attention", sparse_mode=9)),
    "tree mode over bfloat16 keys": (
        "latent_tree",
        "SPC524",
        lambda g: [g.put_in(name, 1, HEADS, KEYS, DIM, dtype=BF16) for name in ("k_cache", "v_cache")],
    ),
    "mode 5": ("decode_round", "SPC524", lambda g: g.keyword("attention", sparse_mode=5)),
    "full-mask mode without one": (
        "plain_step",
        "SPC524",
        lambda g: g.keyword("attention", sparse_mode=1, atten_mask=None),
    ),
    "TND without mask": (
        "packed_prompt",
        "SPC525",
        lambda g: g.keyword("attention", atten_mask=None, sparse_mode=None),
    ),
    "row that may see nothing": ("decode_round", "SPC526", lambda g: g.keyword("attention", inner_precise=0)),
    "inner_precise of another op": ("decode_round", "SPC526", lambda g: g.keyword("attention", inner_precise=4)),
    "one row in a mode of several": ("plain_step", "SPC526", lambda g: g.keyword("attention", inner_precise=2)),
    "next_tokens not given": ("short_prompt", "SPC527", lambda g: g.keyword("attention", next_tokens=None)),
    "window in mode 0": ("decode_round", "SPC527", lambda g: g.keyword("attention", next_tokens=128)),
    "block size 64": (
        "paged_round",
        "SPC528",
        lambda g: (
            g.keyword("attention", block_size=64),
            g.put_in("mask", BATCH, 1, ROWS, 256, dtype=I8),
            g.declared["ranges"].update(lengths=(1, 256)),
        ),
    ),
    "block size of other pages": (
        "paged_round",
        "SPC528",
        lambda g: (
            g.keyword("attention", block_size=256),
            g.put_in("mask", BATCH, 1, ROWS, 1024, dtype=I8),
        ),
    ),
    "page -1": ("paged_round", "SPC529", lambda g: g.declared["ranges"].update(block_table=(-1, 7))),
    "page past the last": ("paged_round", "SPC529", lambda g: g.declared["ranges"].update(block_table=(0, 8))),
    # lengths
    "Python int length": ("plain_step", "SPC530", lambda g: g.keyword("attention", actual_seq_lengths_kv=[512, 512])),
    "stale query lengths": ("plain_step", "SPC531", lambda g: g.keyword("attention", actual_seq_lengths=[1, 2])),
    "length behind the cache": ("decode_round", "SPC532", lambda g: g.argument("live", 1, ROWS + 1)),
    "length of nothing": ("paged_round", "SPC532", lambda g: g.declared["ranges"].update(lengths=(0, 512))),
    # caches
    "rows behind the cache": ("decode_round", "SPC540", lambda g: g.ahead("keys", 1, aten.add.Tensor, 1)),
    "axis that is not there": ("decode_round", "SPC540", lambda g: g.argument("keys", 3, 4)),
    "rows along the sequences": ("decode_round", "SPC540", lambda g: g.argument("keys", 3, 0)),
    "pool row -1": ("state_pool", "SPC540", lambda g: g.declared["ranges"].update(row=(-1, 31))),
    "slot of nothing known": ("paged_round", "SPC540", lambda g: g.declared["ranges"].pop("slots")),
    "duplicate slots": ("paged_round", "SPC541", lambda g: g.declared.pop("unique")),
    "duplicate places": ("state_pool", "SPC541", lambda g: g.target("sequence", aten.zeros.default, [4], dtype=I64)),
    "cache_mode missing": ("paged_round", "SPC542", lambda g: g.keyword("written", cache_mode=None)),
    "cache read beside the scatter": ("decode_round", "SPC543", lambda g: g.beside("k_cache", aten.sum.default)),
    "old cache returned": (
        "decode_round",
        "SPC543",
        lambda g: g.module.graph.output_node().update_arg(0, (*g.module.graph.output_node().args[0], g["k_cache"])),
    ),
    "attention over the old cache": ("decode_round", "SPC543", lambda g: g.argument("attention", 1, g["k_cache"])),
    "scatter on the scatter": (
        "decode_round",
        "SPC544",
        lambda g: g.beside("keys", npu("scatter_update"), g["length"], g["new_k"], -2, like=g["keys"]),
    ),
    "two scatters on one cache": (
        "decode_round",
        "SPC544",
        lambda g: g.beside("k_cache", npu("scatter_update"), g["length"], g["new_k"], -2, like=g["k_cache"]),
    ),
    "copy into a part": (
        "state_pool",
        "SPC545",
        lambda g: g.beside("pool_back", aten.slice.Tensor, 0, 0, 1) and plant_part(g),
    ),
    "scatter into int64": (
        "decode_round",
        "SPC546",
        lambda g: g.put_in("k_cache", BATCH, KV_HEADS, KEYS, DIM, dtype=I64),
    ),
    # delta rule
    "float32 state": ("chain_step", "SPC550", lambda g: g.put_in("state", 32, 8, 64, 64, dtype=F32)),
    "9 tokens": (
        "chain_step",
        "SPC551",
        lambda g: (
            g.put_in("query", 9, 4, 64, dtype=BF16),
            g.put_in("rows", 9, dtype=torch.int32),
        ),
    ),
    "one state row for all tokens": ("chain_step", "SPC552", lambda g: g.put_in("rows", 1, dtype=torch.int32)),
    "state row outside the pool": ("chain_step", "SPC540", lambda g: g.declared["ranges"].update(rows=(0, 32))),
    "two tokens in one state row": ("chain_step", "SPC541", lambda g: g.declared.pop("unique")),
    "state written in place": (
        "chain_step",
        "SPC553",
        lambda g: g.target("stepped", npu("npu_recurrent_gated_delta_rule")),
    ),
    "float16 values in the delta rule": ("chain_step", "SPC555", lambda g: g.put_in("value", 8, 8, 64, dtype=F16)),
    "bfloat16 decays": ("chain_step", "SPC555", lambda g: g.put_in("decay", 8, 8, dtype=BF16)),
    "int64 state rows": ("chain_step", "SPC555", lambda g: g.put_in("rows", 8, dtype=I64)),
    "three key heads for eight value heads": (
        "chain_step",
        "SPC556",
        lambda g: g.put_in("query", 8, 3, 64, dtype=BF16),
    ),
    "queries of another size than the states": (
        "chain_step",
        "SPC556",
        lambda g: g.put_in("query", 8, 4, 32, dtype=BF16),
    ),
    "no rates": ("chain_step", "SPC557", lambda g: g.keyword("stepped", beta=None)),
    "no scale": ("chain_step", "SPC557", lambda g: g.keyword("stepped", scale=None)),
    "decays per element": ("chain_step", "SPC557", lambda g: g.keyword("stepped", gk=g["decay"])),
    "states read beside the delta rule": ("chain_step", "SPC543", lambda g: g.beside("state", aten.neg.default)),
    "bfloat16 triangle": ("matmul_form", "SPC554", lambda g: halve(g, "right")),
    "bfloat16 triangle of a tree": ("matmul_form", "SPC554", lambda g: halve(g, "tree")),
    "bfloat16 state product": ("matmul_form", "SPC554", lambda g: halve(g, "read")),
    # row numbers
    "-1 left in": ("decode_round", "SPC560", lambda g: g.declared["ranges"].update(path=(-1, ROWS - 1))),
    "placeholder in the embedding": ("decode_round", "SPC560", lambda g: g.declared["ranges"].update(tokens=(-1, 255))),
    "token past the vocabulary": ("decode_round", "SPC561", lambda g: g.declared["ranges"].update(tokens=(0, 256))),
    "index of nothing known": ("decode_round", "SPC561", lambda g: g.declared["ranges"].pop("path")),
    "tree rows to one column": (
        "decode_round",
        "SPC541",
        lambda g: g.target("offset", aten.zeros.default, [ROWS], dtype=I64),
    ),
    "negative padding": ("matmul_form", "SPC562", lambda g: g.beside("u", aten.constant_pad_nd.default, [0, -1])),
    "integers padded with a float": (
        "decode_round",
        "SPC562",
        lambda g: g.beside("columns", aten.constant_pad_nd.default, [0, 1], -1.0),
    ),
    # the graph itself
    "roll": ("matmul_form", "SPC570", lambda g: g.beside("u", aten.roll.default, [1])),
    "length read by the host": ("decode_round", "SPC571", lambda g: g.beside("tree", aten.item.default, like=True)),
    "random numbers in the graph": ("matmul_form", "SPC572", lambda g: g.beside("u", aten.rand_like.default)),
}


def plant_part(graph: Legal) -> None:
    """pool[0:1].copy_(rows) in place of returning the slice."""
    part = list(graph.module.graph.nodes)[-2]
    part.args = (graph["pool"], 0, 0, 1)
    graph.module.graph.output_node().update_arg(0, (graph["pool_back"],))
    with graph.module.graph.inserting_after(part):
        copied = graph.module.graph.call_function(aten.copy_.default, (part, graph["rows"]))
    copied.meta["val"] = part.meta["val"]


def halve(graph: Legal, product: str) -> None:
    """Both factors of a product in bfloat16."""
    for position in (0, 1):
        graph.ahead(product, position, aten._to_copy.default, dtype=BF16)
    graph.retype()
