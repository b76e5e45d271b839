"""Times of what a step does besides attention, products and recurrences, on a CUDA machine.

    python -m specc.bench.kernels_step_parts [--part NAME ...] [--output FOLDER] [--seconds S]

Parts: `argmax`, `topk`, `commit`, `draft`, `law`, `level` (a drawn level and its laws), `walk` (the rejection walk),
`spans` (the walk with parts of other sizes). Each case is compared with the op's reference implementation (indices
exactly, numbers against float64), then captured in a graph over rotated inputs and timed, beside torch's own op or the
reference implementation (`torch_us`). Results: specc/bench/results/kernels_step_parts.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specc.backends.triton.ops import cache, draft, drawing, sampling, vocab
from specc.bench.gpu_timing import (
    FAILURES,
    Row,
    checked,
    compiled_in_parallel,
    error,
    failed,
    guarded,
    nbytes,
    report,
    require_gpu,
    sets_for,
    timed,
)
from specc.bench.results import RESULTS
from specc.ir import ops
from specc.ir.op import info

VOCABULARIES = (49152, 151936)
NODES = 16
BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


def generator(seed: int = 0) -> torch.Generator:
    """Random numbers on the device."""
    return torch.Generator("cuda").manual_seed(seed)


def normal(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> Tensor:
    """Like logits: a spread of 2."""
    return (torch.randn(*shape, device="cuda", generator=generator(seed)) * 2).to(dtype)


def integers(*shape: int, high: int, seed: int = 0) -> Tensor:
    """Below `high`."""
    return torch.randint(high, shape, device="cuda", generator=generator(seed))


def unequal(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """How many elements differ."""
    return float(sum(int((a != b).sum()) for a, b in zip(found, expected, strict=True)))


def beside(row: Row, name: str, calls: Sequence[Callable[[], Any]]) -> Row:
    """The row with the time of another way to the same result, or why there is none."""
    try:
        return row | timed(calls).row(name)
    except FAILURES as failure:
        return row | {f"{name}_failed": failed(failure)["failed"]}


def copies(x: Tensor) -> list[Tensor]:
    """As many as exceed the cache, each with other values."""
    return [x.roll(turn, -1).contiguous() for turn in range(sets_for(nbytes([x]), 64))]


def argmax_part() -> Iterator[Row]:
    """The target's choice at every node."""
    for size in VOCABULARIES:
        for dtype in (BF16, F32):
            for rows in (NODES, 1):
                x = normal(1, rows, size, dtype=dtype)
                ties = x.clone()
                ties[..., 7] = ties[..., size - 5] = 50.0
                ties[0, 0, 9] = float("nan")
                many = copies(x)

                def errors(x: Tensor = x, ties: Tensor = ties) -> dict[str, float]:
                    found = [vocab.vocabulary_argmax(x), vocab.vocabulary_argmax(ties)]
                    return {"unequal": unequal(found, [x.argmax(-1), ties.argmax(-1)])}

                label = {"case": "argmax", "rows": rows, "vocabulary": size, "dtype": str(dtype)}
                calls = [partial(vocab.vocabulary_argmax, each) for each in many]
                row = checked(label, errors, {"unequal": 0}, partial(list, calls), nbytes([x]))
                yield beside(row, "torch_us", [partial(torch.argmax, each, -1) for each in many])


def best_by_torch(x: Tensor, k: int) -> Any:
    """What a drafter written in torch does."""
    return torch.topk(x.float().log_softmax(-1), k, -1)


def topk_part() -> Iterator[Row]:
    """The best children of drafted nodes."""
    for size in VOCABULARIES:
        for rows, k in ((1, 4), (4, 4), (10, 10)):
            x = normal(1, rows, size, dtype=BF16)
            many = copies(x)

            def errors(x: Tensor = x, k: int = k) -> dict[str, float]:
                found, expected = vocab.topk_log_probs(x, k), ops.topk_log_probs(x, k)
                plain, wanted = vocab.stable_topk(x.float(), k), ops.stable_topk(x.float(), k)
                exact = x.double().log_softmax(-1).gather(-1, expected[1])
                differing = unequal([found[1], *plain], [expected[1], *wanted])
                return {"unequal": differing, "log_probs": error(found[0], exact)}

            label = {"case": "topk_log_probs", "rows": rows, "k": k, "vocabulary": size}
            calls = [partial(vocab.topk_log_probs, each, k) for each in many]
            bounds = {"unequal": 0, "log_probs": 1e-6}
            row = checked(label, errors, bounds, partial(list, calls), nbytes([x]))
            wide = [partial(vocab.stable_topk, each.float(), k) for each in many]
            row = beside(row, "stable_topk_us", wide)
            yield beside(row, "torch_us", [partial(best_by_torch, each, k) for each in many])


def gathered(caches: Sequence[Tensor], source: Tensor, target: Tensor) -> None:
    """A commit written in torch: every layer and both caches at once."""
    for each in caches:
        each.index_copy_(2, target, each.index_select(2, source))


def commit_part() -> Iterator[Row]:
    """KV rows of all layers, factors of all layers."""
    for layers, heads, dim, capacity in ((30, 3, 64, 2064), (16, 8, 64, 4112), (28, 8, 128, 2064)):
        for batch in (1, 8):
            made = [normal(layers, batch, capacity, heads, dim, dtype=BF16, seed=seed) for seed in (0, 1)]
            path = torch.tensor([[0, 2, 4, 7, 9, 0, 0]], device="cuda").expand(batch, 7).contiguous()
            start = integers(batch, high=capacity - NODES)
            count = torch.full((batch,), 5, device="cuda")
            places = [
                (made, start),
                *(([x.clone() for x in made], integers(batch, high=capacity - NODES, seed=3 + n)) for n in range(2)),
            ]

            def errors(
                made: list[Tensor] = made, path: Tensor = path, start: Tensor = start, count: Tensor = count
            ) -> dict[str, float]:
                found, expected = [x.clone() for x in made], [x.clone() for x in made]
                cache.commit_path_layers_(found, path, start, count, True)
                declared = info(ops.commit_path_layers_)
                assert declared is not None
                declared.reference(expected, path, start, count, True)
                return {"unequal": unequal(found, expected)}

            label = {"case": "commit", "layers": layers, "batch": batch, "row": heads * dim, "count": 5}
            calls = [partial(cache.commit_path_layers_, x, path, at, count, True) for x, at in places]
            moved = 2.0 * 2 * layers * batch * 4 * heads * dim * 2
            row = checked(label, errors, {"unequal": 0}, partial(list, calls), moved)
            source, target = start[0] + path[0, :5], start[0] + torch.arange(5, device="cuda")
            yield beside(row, "torch_us", [partial(gathered, x, source, target) for x, _ in places])


def draft_part() -> Iterator[Row]:
    """Factor rows, the history, packing and ranking of candidates."""
    path, start = torch.tensor([[0, 2, 4, 7, 9, 0, 0]], device="cuda"), torch.tensor([1], device="cuda")
    count = torch.tensor([5], device="cuda")
    shapes = ((24, 1, 16, 8, 256), (24, 1, 16, 8, 256), (24, 1, 16, 8))
    rows = [normal(*shape, dtype=dtype) for shape, dtype in zip(shapes, (BF16, F32, F32), strict=True)]
    pending = [torch.zeros_like(x) for x in rows]
    history, tokens = integers(1, 2065, high=49152), integers(1, 7, high=49152)
    scores = -normal(1, 68, seed=3).abs()
    chosen = ops.score_rank(scores) < 15
    parent = torch.arange(68, device="cuda").sub(4).div(4, rounding_mode="floor")[None]
    numbers, root = integers(1, 68, high=9), integers(1, high=9)
    for name, function, arguments in (
        ("append_path_layers_", cache.append_path_layers_, (pending, rows, path, start, count)),
        ("append_rows", cache.append_rows, (history, tokens, start, count)),
        ("score_rank", draft.score_rank, (scores,)),
        ("pack_tree", draft.pack_tree, (chosen, numbers, parent, scores, root, NODES)),
        ("counter_uniform", sampling.counter_uniform, (integers(8, high=99), integers(8, high=99), 3)),
        ("counter_uniform_rows", sampling.counter_uniform_rows, (start, path[:, :2], path[:, :2], 49152)),
    ):
        declared = info(getattr(ops, name))
        assert declared is not None
        reference: Any = declared.reference

        def errors(function: Any = function, reference: Any = reference, given: Any = arguments) -> dict[str, float]:
            found, expected = function(*given), reference(*given)
            if found is None:
                made = [x.clone() for x in given[0]]
                reference(made, *given[1:])
                return {"unequal": unequal(given[0], made)}
            both = [(x,) if isinstance(x, Tensor) else x for x in (found, expected)]
            return {"unequal": unequal(both[0], both[1])}

        calls = [partial(function, *arguments)] * 8
        row = checked({"case": name}, errors, {"unequal": 0}, partial(list, calls))
        if name.startswith("append"):  # The reference asks the host for the counts: no graph can hold it.
            yield row
        else:
            yield beside(row, "torch_us", [partial(reference, *arguments)] * 4)


def draw_errors(weights: Tensor, uniform: Tensor) -> dict[str, float]:
    """How many draws differ."""
    return {"unequal": unequal([sampling.sample_index(weights, uniform)], [ops.sample_index(weights, uniform)])}


def law_part() -> Iterator[Row]:
    """Laws of all nodes, and a draw."""
    for size in VOCABULARIES:
        for dtype, top_k in ((BF16, 0), (BF16, 50), (F32, 50)):
            x = normal(1, NODES, size, dtype=dtype)
            many = copies(x)

            def errors(x: Tensor = x, k: int = top_k) -> dict[str, float]:
                found = sampling.sampling_probs(x, 0.8, k, 1.0, F32)
                return {"law": error(found, ops.sampling_probs(x, 0.8, k, 1.0, F64))}

            label = {"case": "sampling_probs", "rows": NODES, "top_k": top_k, "vocabulary": size, "dtype": str(dtype)}
            calls = [partial(sampling.sampling_probs, each, 0.8, top_k, 1.0, F32) for each in many]
            row = checked(label, errors, {"law": 1e-6}, partial(list, calls), nbytes([x]) + 4.0 * x.numel())
            yield beside(
                row,
                "torch_us",
                [partial(ops.sampling_probs, each, 0.8, top_k, 1.0, F32) for each in many],
            )
        weights, uniform = normal(1, size).softmax(-1), torch.tensor([0.7], dtype=F64, device="cuda")
        row = checked(
            {"case": "sample_index", "vocabulary": size},
            partial(draw_errors, weights, uniform),
            {"unequal": 0},
            partial(list, [partial(sampling.sample_index, weights, uniform)] * 8),
            nbytes([weights]),
        )
        yield beside(row, "torch_us", [partial(ops.sample_index, weights, uniform)] * 4)


def level_inputs(batch: int, rows: int, size: int, seed: int) -> Any:
    """Logits of a level's nodes, and the counters of its draws."""
    counters = [integers(*shape, high=10**6, seed=seed) for shape in ((batch,), (batch, rows), (1, rows))]
    return normal(batch, rows, size, dtype=BF16, seed=seed), *counters


def law_errors(given: Any) -> dict[str, float]:
    """Laws of drawn nodes against the reference."""
    return {"law": error(drawing.drawn_laws(*given), ops.drawn_laws(*given))}


def level_part() -> Iterator[Row]:
    """The draws of one level of a tree, with the embeddings of its tokens, and the laws of all nodes."""
    for size in VOCABULARIES:
        table = normal(size, 576, dtype=BF16)
        for batch, rows, count in ((1, 1, 3), (1, 3, 2), (8, 3, 2)):
            many = [level_inputs(batch, rows, size, seed) for seed in range(24)]
            more: Any = (count, 0.8, table, list(range(rows * count - 1)))

            def errors(many: Any = many, more: Any = more) -> dict[str, float]:
                both = [(drawing.draw_embedded(*each, *more), ops.draw_embedded(*each, *more)) for each in many]
                differing = unequal([found[at] for found, _ in both for at in (0, 3)],
                                    [expected[at] for _, expected in both for at in (0, 3)])  # fmt: skip
                return {"unequal": differing, "log_probs": max(error(found[1], wanted[1]) for found, wanted in both)}

            label = {"case": "draw_embedded", "batch": batch, "rows": rows, "count": count, "vocabulary": size}
            calls = [partial(drawing.draw_embedded, *each, *more) for each in many]
            row = checked(label, errors, {"unequal": 0, "log_probs": 1e-6}, partial(list, calls), nbytes(many[0][:1]))
            yield beside(row, "torch_us", [partial(ops.draw_embedded, *each, *more) for each in many[:4]])
        levels = [level_inputs(1, rows, size, rows) for rows in (1, 3, 3, 3, 1)]
        sums = [ops.draw_children(*each, 1, 0.8)[2] for each in levels]
        given: Any = ([each[0] for each in levels], sums, torch.arange(NODES, device="cuda").clamp(max=11)[None], 0.8)
        made: list[Any] = [partial(drawing.drawn_laws, *given)] * 8
        label = {"case": "drawn_laws", "vocabulary": size}
        row = checked(label, partial(law_errors, given), {"law": 1e-6}, partial(list, made))
        yield beside(row, "torch_us", [partial(ops.drawn_laws, *given)] * 4)


def walk_inputs(size: int, dtype: torch.dtype, true_q: bool, seed: int, batch: int = 1) -> Any:
    """Logits and a tree; half of the drafted tokens are likely ones, so that some are accepted."""
    logits = normal(batch, NODES, size, dtype=dtype, seed=seed) * 2
    q_law = (logits.float() + normal(batch, NODES, size, seed=seed + 1)).softmax(-1) if true_q else None
    parent = torch.tensor([[-1, 0, 0, 0, 0, 1, 1, 2, 2, 3, 5, 5, 7, 9, 10, 12]], device="cuda").expand(batch, NODES)
    best = logits.float().topk(4, -1).indices
    tokens = integers(batch, NODES, high=size, seed=seed)
    for node in range(1, NODES, 2):
        tokens[:, node] = best[torch.arange(batch), parent[:, node].clamp(min=0), node % 4]
    valid = torch.ones(batch, NODES, dtype=torch.bool, device="cuda")
    rng, length = (integers(batch, high=10**6, seed=seed + n) for n in range(2))
    return logits, q_law, tokens, parent.contiguous(), valid, rng, length, 7


def walk_errors(inputs: Sequence[Any], options: Any) -> dict[str, float]:
    """Against the reference in float64; a decision that rounding alone could change is not expected here."""
    wrong = 0.0
    for case in inputs:
        wide = (case[0].double(), None if case[1] is None else case[1].double(), *case[2:])
        wrong += unequal(sampling.reject_tree(*(*case, *options)), ops.reject_tree(*wide, *options))
    return {"unequal": wrong}


WALKS = (
    (49152, BF16, False, 0, 1),
    (49152, BF16, True, 0, 1),
    (49152, BF16, True, 50, 1),
    (49152, F32, True, 0, 1),
    (49152, F32, True, 50, 1),
    (49152, BF16, True, 0, 8),
    (151936, BF16, True, 0, 1),
)
"""Vocabulary, dtype, rule true_q, top_k, batch."""
SPANS = ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (4096, 16), (8192, 16))
"""Elements of a row that a program has, and its warps."""


def warm(size: int, dtype: torch.dtype, true_q: bool, top_k: int, batch: int, span: int, warps: int) -> None:
    """Compiles one form of the walk (in a process of its own: compiled kernels are kept on disk)."""
    sampling.SPAN, sampling.SPAN_WARPS = span, warps
    sampling.reject_tree(*(*walk_inputs(size, dtype, true_q, 0, batch), 0.8, top_k))
    torch.cuda.synchronize()


def compile_ahead(parts: Sequence[str]) -> None:
    """All forms of the walk, side by side."""
    usual = sampling.SPAN, sampling.SPAN_WARPS
    jobs = [partial(warm, *walk, *usual) for walk in WALKS] if "walk" in parts else []
    if "spans" in parts:
        jobs += [partial(warm, 49152, BF16, True, k, 1, *spans) for k in (0, 50) for spans in SPANS]
    compiled_in_parallel(jobs)


def walk_part() -> Iterator[Row]:
    """The whole rejection walk: laws, decisions, path and next token."""
    for size, dtype, true_q, top_k, batch in WALKS:
        many = [walk_inputs(size, dtype, true_q, 10 * seed, batch) for seed in range(12)]
        label = {"case": "reject_tree", "vocabulary": size, "dtype": str(dtype), "true_q": true_q, "top_k": top_k}
        read = float(nbytes([x for x in many[0][:2] if x is not None]))
        calls = [partial(sampling.reject_tree, *(*case, 0.8, top_k)) for case in many]
        errors = partial(walk_errors, many, (0.8, top_k))
        row = checked(label | {"batch": batch}, errors, {"unequal": 0}, partial(list, calls), read)
        row["accepted"] = [int(call()[1].sum()) for call in calls]
        yield beside(row, "torch_us", [partial(ops.reject_tree, *case, 0.8, top_k) for case in many[:3]])


def spans_part() -> Iterator[Row]:
    """The walk and the law with other sizes of parts."""
    for true_q, top_k in ((True, 0), (True, 50)):
        many = [walk_inputs(49152, BF16, true_q, 10 * seed) for seed in range(12)]
        for span, warps in SPANS:
            kept = sampling.SPAN, sampling.SPAN_WARPS
            sampling.SPAN, sampling.SPAN_WARPS = span, warps
            label = {"case": "reject_tree spans", "true_q": true_q, "top_k": top_k, "span": span, "warps": warps}
            calls = [partial(sampling.reject_tree, *(*case, 0.8, top_k)) for case in many]
            yield checked(label, partial(walk_errors, many, (0.8, top_k)), {"unequal": 0}, partial(list, calls))
            sampling.SPAN, sampling.SPAN_WARPS = kept


PARTS: Mapping[str, Callable[[], Iterator[Row]]] = {
    "argmax": argmax_part,
    "commit": commit_part,
    "walk": walk_part,
    "draft": draft_part,
    "topk": topk_part,
    "law": law_part,
    "level": level_part,
    "spans": spans_part,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the parts; 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=[*PARTS], help="only these (default: all)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of kernels_step_parts.json")
    parser.add_argument("--seconds", type=float, default=240.0, help="start no further part after so many seconds")
    chosen = parser.parse_args(argv)
    require_gpu("specc bench kernels")
    begin = time.monotonic()
    compile_ahead(chosen.part or list(PARTS))
    result = report("kernels_step_parts", "specc.bench.kernels_step_parts", argv, chosen.output)
    for name in chosen.part or PARTS:
        for row in guarded({"part": name}, PARTS[name]()):
            result.add({"part": name, **row})
            if time.monotonic() - begin > chosen.seconds:
                return int(result.wrong)
        print(f"# {name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return int(result.wrong)


if __name__ == "__main__":
    raise SystemExit(main())
