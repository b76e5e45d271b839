"""Times of whole decoding steps of generated Triton modules: everything from token ids to the next token.

    specc bench step [--case NAME ...] [--batch N ...] [--modules DIR] [--warm N] [--seconds S] [--output DIR]
                     [--name NAME]

Random weights, bfloat16, one CUDA graph per step. For every case and batch: a plain step beside its floor (weights,
states and K/V rows read once at 4.3 TB/s) and beside the case's matrix products through cuBLAS alone; verifying all
nodes of a tree without padding; every stage alone; acceptance, commit and the next draft as one graph (what stands
between two verifications), where a tree is drawn also its network and its drawing in graphs of their own (see
`specc.bench.step_apart`); the whole speculative step; and both kinds of step from the host through the module's
`Decoder`, read-back included. Launches are counted by the profiler over one replay. Before anything is timed the logits
of a plain step and of a verify are compared with a float64 module of the reference backend with the same weights.
Results: NAME.json (default: step).

`--modules DIR` keeps compiled modules: `CASE-B.py` (and `CASE-B-exact.py`, the float64 one) is used where it is there,
else compiled and written.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specc.bench.arguments import whole
from specc.bench.gpu_timing import (
    FAILURES,
    WORKERS,
    Row,
    compiled_in_parallel,
    error,
    failed,
    report,
    require_gpu,
    timed,
)
from specc.bench.results import RESULTS
from specc.bench.step_cases import BETWEEN, CASES, DRAWN_APART, Case, floor_of, weights_on
from specc.bench.step_stand import Stand, brought_up, form_rows, host_row, prefilled
from specc.driver import backend_of, compile_spec, lower_spec, module_info, run_passes
from specc.output import make_folder, write_text
from specc.runtime.module import GeneratedModule, import_source
from specc.spec import LoadedSpec, Spec

BOUND = 0.05
"""Of logits in bfloat16 against float64, relative: rounding gives 1e-2 to 3e-2 with these weights, a wrong kernel about
1. (With weights twice as large, transformers' own bfloat16 is 0.27 off at SmolLM2's sizes.)"""
CHECKED_CONTEXT = 96
OWN = ("us", "launches")
GREEDY_US, GREEDY_LAUNCHES, REJECTION_US = 15.0, 4, 40.0
"""Issue bars of acceptance, commit and building the next tree (a drafter's network apart), one row of 16 nodes."""


EXACT = "-exact"


def module_of(case: Case, batch: int, folder: Path | None, exact: bool = False) -> GeneratedModule:
    """The case's Triton module, or its float64 module of the reference backend; from `folder` if it is there."""
    name = f"{case.name}-{batch}{EXACT if exact else ''}"
    path = None if folder is None else folder / f"{name}.py"
    if path is not None and path.is_file():
        source = path.read_text(encoding="utf-8")
    else:
        loaded = case.loaded(batch, "float64") if exact else case.loaded(batch)
        source = compile_spec(loaded, "reference", verify=False).source if exact else timed_source(loaded)
        if path is not None:
            make_folder(path.parent)
            write_text(path, source)
    return import_source(source, f"specc_bench_{name.replace('-', '_').replace('.', '_')}")


def timed_source(loaded: LoadedSpec) -> str:
    """The Triton module with `run_between` in it. Raises DiagnosticError as `compile_spec` does."""
    program = run_passes(loaded, lower_spec(loaded, "triton"), target="triton", verify=False).program
    backend_of("triton")
    from specc.backends.triton.backend import TritonBackend  # only now is it known that the package triton is there

    return TritonBackend().generate(program, module_info(loaded, "triton"), between=True)


def first_logits(module: Any, weights: Any, stand: Stand, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Logits of a plain step [B,V] and of a verify [B,N,V] after the first tokens of the prompts: same roots, trees."""
    prompts = [prompt[:CHECKED_CONTEXT] for prompt in stand.prompts]
    tokens, parent, valid = stand.tree
    above = None if stand.loaded.spec.is_chain else parent
    with torch.no_grad():
        state = prefilled(module, weights, prompts, device)
        state = state._replace(root_token=tokens[:, 0].clone())
        verified = module.run_verify(weights, state, tokens, above, valid)[1]
        state = prefilled(module, weights, prompts, device)
        state = state._replace(root_token=tokens[:, 0].clone())
        decoded = module.run_decode(weights, state)[1]
    return decoded.logits, verified.logits


def check_row(stand: Stand, folder: Path | None = None, device: torch.device | str = "cuda") -> Row:
    """Errors of plain and verify logits against float64 by the reference backend."""
    exact = module_of(stand.case, stand.batch, folder, exact=True)
    wide = weights_on(exact, stand.case.loaded(stand.batch, "float64"), device)
    found = first_logits(stand.module, stand.weights, stand, device)
    expected = first_logits(exact, wide, stand, device)
    errors = {name: error(one, two) for name, one, two in zip(("plain", "verify"), found, expected, strict=True)}
    return {"form": "check", "errors": errors, "wrong": not all(value <= BOUND for value in errors.values())}


def cublas_row(stand: Stand, rows: int) -> Row:
    """Every matrix of the module by torch's matrix product, `rows` activations each, in one graph."""
    matrices: list[Tensor] = []
    for layout, value in zip(stand.module.WEIGHTS, stand.weights, strict=True):
        parts = [value] if layout.layers is None else list(value)
        head = layout.name == "embed_tokens" and stand.loaded.spec.target.geometry.tie_word_embeddings
        if parts[0].dim() == 2 and (head or layout.name != "embed_tokens"):
            matrices += parts
    inputs = activations(matrices, rows)
    outputs = [torch.empty(rows, m.shape[0], device=m.device, dtype=m.dtype) for m in matrices]

    def products() -> None:
        for matrix, out in zip(matrices, outputs, strict=True):
            torch.mm(inputs[matrix.shape[1], matrix.dtype], matrix.T, out=out)

    return {"form": f"cuBLAS products, {rows} rows", "products": len(matrices)} | timed([products] * 4).row()


def activations(matrices: Sequence[Tensor], rows: int) -> dict[tuple[int, torch.dtype], Tensor]:
    """Random [rows,H] for every width and type among the matrices [F,H]."""
    kinds = {(matrix.shape[1], matrix.dtype): matrix.device for matrix in matrices}
    return {(width, dtype): torch.randn(rows, width, device=at).to(dtype) for (width, dtype), at in kinds.items()}


def judged(rows: Sequence[Row], stand: Stand) -> Iterator[Row]:
    """Ratios of the case, and whether its bars are met (those are for one row at a time)."""
    floor = floor_of(stand.loaded.spec, stand.batch, stand.case.context)
    us = {row["form"]: row["us"] for row in rows if "us" in row}
    case = stand.case if stand.batch == 1 else Case("", "", 0, 0)
    if "plain" in us:
        ratio = us["plain"] / floor.us
        row: Row = {"form": "plain / floor", "floor_us": round(floor.us, 1), "ratio": round(ratio, 3)}
        if case.plain_bar is not None:
            row |= {"bar": case.plain_bar, "met": ratio <= case.plain_bar}
        if case.plain_us is not None:
            row |= {"bar_us": case.plain_us, "met": us["plain"] <= case.plain_us}
        yield row
    if "plain" in us and "verify" in us:
        ratio = us["verify"] / us["plain"]
        row = {"form": "verify / plain", "ratio": round(ratio, 3)}
        yield row if case.verify_bar is None else row | {"bar": case.verify_bar, "met": ratio <= case.verify_bar}
    if stand.batch == 1 and stand.loaded.spec.num_nodes == 16:
        apart = {
            f"own_{name}": row[name] for row in rows if row["form"] == DRAWN_APART[1] for name in OWN if name in row
        }
        found = [row | apart for row in rows if row["form"] == BETWEEN and "us" in row]
        yield from (between_bar(row, stand.loaded.spec) for row in found)


def between_bar(row: Row, spec: Spec) -> Row:
    """Whether acceptance, commit and the next tree are as fast as the issue asks; no bar with top-p, which sorts."""
    part = "own_" if "own_us" in row else ""
    us, count = row[f"{part}us"], row[f"{part}launches"]
    made: Row = {"form": f"{BETWEEN}, bar", "us": us, "launches": count}
    if spec.accept.method == "greedy":
        made |= {"bar_us": GREEDY_US, "bar_launches": GREEDY_LAUNCHES}
        return made | {"met": us <= GREEDY_US and count <= GREEDY_LAUNCHES}
    return made | {"bar_us": REJECTION_US, "met": us <= REJECTION_US} if spec.sampling.top_p >= 1.0 else made


def case_rows(case: Case, batch: int, folder: Path | None) -> Iterator[Row]:
    """All rows of one case and batch."""
    began = time.perf_counter()
    loaded = case.loaded(batch)
    stand = brought_up(case, loaded, module_of(case, batch, folder), batch, "cuda")
    yield {"form": "set-up", "seconds": round(time.perf_counter() - began, 1), "nodes": loaded.spec.num_nodes}
    try:
        yield check_row(stand, folder)
    except FAILURES as failure:
        yield {"form": "check"} | failed(failure)
    rows = []
    with torch.no_grad():
        for row in form_rows(stand):
            rows.append(row)
            yield row
        yield from judged(rows, stand)
        if case.forms:
            return
        for count in (batch, batch * loaded.spec.num_nodes):
            yield cublas_row(stand, count)
    yield host_row(stand, speculative=False)
    yield host_row(stand, speculative=True)


def warm(case: Case, batch: int, folder: Path | None) -> None:
    """Run everything once, so that its kernels lie compiled on disk."""
    stand = brought_up(case, case.loaded(batch), module_of(case, batch, folder), batch, "cuda")
    with torch.no_grad():
        stand.plant()
        calls = (stand.verify, stand.accept, stand.between, stand.make_draft, stand.commit, stand.plain, stand.step)
        for call in calls:
            call()
    torch.cuda.synchronize()


def _parser() -> argparse.ArgumentParser:
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="specc bench step", description=about)
    parser.add_argument("--case", action="append", choices=[*CASES], help="only these (default: all)")
    parser.add_argument("--batch", action="append", type=whole(1), metavar="N", help="rows at once (default: 1 and 8)")
    parser.add_argument("--modules", type=Path, metavar="DIR", help="keep compiled modules here, and use those there")
    parser.add_argument(
        "--warm", type=whole(0), default=WORKERS, metavar="N",
        help=f"compile everything beforehand in N processes (default: {WORKERS}); 0: it was, by a run with --seconds 0",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=240.0, help="start no further case after so many seconds")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="folder of the results")
    parser.add_argument("--name", default="step", help="of the results' file")
    parser.add_argument(
        "--compile-only", action="store_true", help="write the modules to --modules and end; no GPU needed"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """1 if logits were wrong or a case failed."""
    parser = _parser()
    args = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    cases = [CASES[name] for name in args.case or CASES]
    pairs = [(case, batch) for batch in args.batch or (1, 8) for case in cases]
    if args.compile_only:
        if args.modules is None:
            parser.error("argument --compile-only: needs --modules")
        for case, batch in pairs:
            module_of(case, batch, args.modules)
            module_of(case, batch, args.modules, exact=True)
        return 0
    require_gpu("specc bench step")
    result, begin, skipped = report(args.name, "specc.bench.step", argv, args.output), time.monotonic(), []
    if args.warm:
        compiled_in_parallel([partial(warm, case, batch, args.modules) for case, batch in pairs], args.warm)
    for case, batch in pairs:
        label: Row = {"case": case.name, "batch": batch, "context": case.context}
        if time.monotonic() - begin >= args.seconds:
            skipped.append(label)
            continue
        try:
            for row in case_rows(case, batch, args.modules):
                result.add(label | row)
        except FAILURES as failure:
            result.add(label | {"form": "failed"} | failed(failure))
        torch.cuda.empty_cache()
        result.write(skipped=skipped)
    result.write(skipped=skipped)
    return int(result.wrong)


if __name__ == "__main__":
    sys.exit(main())
