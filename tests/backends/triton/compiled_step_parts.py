"""Compiles the kernels around attention, products and recurrences for one vocabulary; prints what they need as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from specc.backends.triton.ops import cache, conv, draft, drawing, linear_conv, moe, pages, sampling, vocab
from tests.backends.triton.recorded import launched

BF16, F32, F64, I64 = torch.bfloat16, torch.float32, torch.float64, torch.int64
B, N, P = 2, 16, 7


def empty(*shape: int, dtype: torch.dtype = I64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def vocabulary_calls(size: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, call) of everything that goes over a vocabulary."""
    uniform, valid = empty(B, dtype=F64), empty(B, N, dtype=torch.bool)
    for dtype in (BF16, F32):
        logits, q_law = empty(B, N, size, dtype=dtype), empty(B, N, size, dtype=F32)
        yield f"argmax {dtype}", partial(vocab.vocabulary_argmax, logits)
        for k in (4, 10):
            yield f"stable_topk {k} {dtype}", partial(vocab.stable_topk, logits, k)
            yield f"topk_log_probs {k} {dtype}", partial(vocab.topk_log_probs, logits, k)
        for top_k in (0, 50):
            yield f"sampling_probs {top_k} {dtype}", partial(sampling.sampling_probs, logits, 0.8, top_k, 1.0, F32)
            for q in (None, q_law):
                tree = (empty(B, N), empty(B, N), valid, empty(B), empty(B), P)
                name = f"reject_tree {top_k} {dtype} {q is None}"
                yield name, partial(sampling.reject_tree, logits, q, *(*tree, 0.8, top_k))
        for rows, k in ((1, 3), (3, 2)):
            drawn = (logits[:, :rows], empty(B), empty(B, rows), empty(1, rows), k, 0.8)
            yield f"draw_children {rows} {dtype}", partial(drawing.draw_children, *drawn)
            table = empty(size, 576, dtype=dtype), list(range(rows * k))
            yield f"draw_embedded {rows} {dtype}", partial(drawing.draw_embedded, *drawn, *table)
        sums = empty(B, N, 2, dtype=F32)
        yield f"drawn_laws {dtype}", partial(drawing.drawn_laws, [logits] * 6, [sums] * 6, empty(B, N), 0.8)
    yield "stable_topk float64", partial(vocab.stable_topk, empty(B, N, size, dtype=F64), 4)
    yield "sample_index", partial(sampling.sample_index, empty(B, size, dtype=F32), uniform)
    yield "counter_uniform_rows", partial(sampling.counter_uniform_rows, empty(B), empty(B, 2), empty(B, 2), size)


def row_calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, call) of what moves rows, ranks and packs, and the experts of Qwen3-Next."""
    window, weight = empty(B, 3, 6144, dtype=BF16), empty(6144, 1, 4, dtype=BF16)
    live = empty(B, 1, dtype=torch.bool)
    yield (
        "short_conv_",
        partial(conv.short_conv_, window, empty(B, 1, 8208, dtype=BF16)[..., :6144], weight, None, live),
    )
    x = empty(B, N, 8208, dtype=BF16)
    mixed, a, b = x[..., :6144], x[..., 6144:6152], x[..., 6152:6160]
    gates, rows = (empty(8, dtype=BF16), empty(8, dtype=BF16), 1), (mixed[:, :1], a[:, :1], b[:, :1])
    yield "token's gates", partial(conv.token_conv_gates_, window, rows[0], weight, None, live, *rows[1:], *gates)
    kept = empty(B, N, 6144, dtype=BF16)
    yield "nodes' gates", partial(conv.tree_conv_gates_, window, mixed, weight, None, empty(B, N), a, b, *gates, kept)
    product = (empty(8208, 2048, dtype=BF16), empty(2048, dtype=BF16), 1e-6, weight, None)
    for nodes in (1, N):
        x, name = empty(B, nodes, 2048, dtype=BF16), f"projection, convolution, gates of {nodes}"
        if nodes == 1:
            yield name, partial(linear_conv.linear_token_conv_gates_, window, x, *product, live, *gates, 6144, 6152)
        else:
            tree = (empty(1, N), *gates, 6144, 6152, kept[:1])
            yield name, partial(linear_conv.linear_tree_conv_gates_, window[:1], x[:1], *product, *tree)
    for heads, dim in ((3, 64), (8, 128)):
        kv = empty(2, B, 96, heads, dim, dtype=BF16)
        for path in (empty(B, P), empty(B, 40)):
            name = f"commit {heads} {path.shape[1]}"
            yield name, partial(cache.commit_path_layers_, [kv, kv], path, empty(B), empty(B), True)
        yield f"append {heads}", partial(cache.append_rows_, kv[0], kv[0, :, :N], empty(B))
        pool, table = empty(2, 24, 64, heads, dim, dtype=BF16), empty(B, 3, dtype=torch.int32)
        paths = (table, empty(B, P), empty(B), empty(B), True)
        yield f"commit pages {heads}", partial(pages.commit_pages_layers_, [pool, pool], *paths)
        rows = empty(B, N, heads, dim, dtype=BF16)
        yield f"append pages {heads}", partial(pages.append_pages_, pool[0], table, rows, empty(B))
    for count in (empty(B), None):
        owner = empty(2100, dtype=torch.int32)
        yield (
            f"take pages {count is None}",
            partial(pages.take_pages_, empty(B, 65, dtype=torch.int32), owner, empty(B), count, N, 64),
        )
    factors = [empty(2, B, N, 16, 256, dtype=dtype) for dtype in (BF16, F32)] + [empty(2, B, N, 16, dtype=F32)]
    yield "factors", partial(cache.append_path_layers_, factors, factors, empty(B, P), empty(B), empty(B))
    yield "windows", partial(
        cache.conv_commit_layers_, [empty(2, B, 3, 8192, dtype=BF16)], [empty(2, B, N, 8192, dtype=BF16)],
        empty(B, P), empty(B),
    )  # fmt: skip
    yield "history", partial(cache.append_rows, empty(B, 2065), empty(B, P), empty(B), empty(B))
    scores, chosen = empty(B, 68, dtype=F32), empty(B, 68, dtype=torch.bool)
    yield "score_rank", partial(draft.score_rank, scores)
    yield "pack_tree", partial(draft.pack_tree, chosen, empty(B, 68), empty(B, 68), scores, empty(B), N)
    x, router = empty(1, N, 2048, dtype=BF16), empty(512, 2048, dtype=BF16)
    experts = empty(8 * 1024, 2048, dtype=BF16), empty(8 * 2048, 512, dtype=BF16)
    yield "moe", partial(moe.moe, x, router, *experts, 10, True)


if __name__ == "__main__":
    calls = row_calls() if sys.argv[1] == "rows" else vocabulary_calls(int(sys.argv[1]))
    print(json.dumps({f"{name}: {kernel}": asdict(used) for name, call in calls for kernel, used in launched(call)}))
