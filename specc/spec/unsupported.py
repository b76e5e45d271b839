"""Compile-time refusals (SPC2xx): a valid spec that needs machinery which this version does not have.

The tables at the top say what there is; adding a feature means adding it to a table.
"""

from __future__ import annotations

from collections.abc import Iterator

from specc.diagnostics import Diagnostic, error, in_source_order
from specc.spec.checks import ascend
from specc.spec.load import LoadedSpec
from specc.spec.names import RECURRENT_FAMILIES

TARGETS: tuple[str, ...] = ("reference", "triton", "ascend", "onnx", "mlir")
DTYPES: dict[str, frozenset[str]] = {
    "reference": frozenset({"float32", "float64"}),
    "triton": frozenset({"float32", "bfloat16", "float16"}),
    "ascend": frozenset({"float32", "bfloat16", "float16"}),
    "onnx": frozenset({"float32", "float64", "bfloat16", "float16"}),
    "mlir": frozenset({"float32", "bfloat16", "float16"}),
}
STATE_DTYPES: dict[str, frozenset[str]] = {
    "reference": frozenset({"float32", "float64", "bfloat16"}),
    "triton": frozenset({"float32"}),
    "ascend": frozenset({"float32", "bfloat16"}),
    "onnx": frozenset({"float32", "float64"}),
    "mlir": frozenset({"float32"}),
}
PAGED: dict[str, str] = {
    "ascend": "the NPU scatters new rows through slots, which no pass makes of a block table yet",
    "onnx": "an export has no op that appends rows through a block table",
    "mlir": "an export has no op that appends rows through a block table",
}
"""Targets that have no paged caches, and what is missing."""
SMALLEST_PAGE = 16
"""Triton's attention reads at least that many rows of a page at a time."""


def unsupported(loaded: LoadedSpec, target: str) -> list[Diagnostic]:
    """What `specc compile --target target` can't do yet for this spec, in source order; empty if nothing."""
    if target not in TARGETS:
        names = ", ".join(TARGETS)
        return [error("SPC200", f"unknown target `{target}`", help=f"targets: {names}")]
    return in_source_order([*_backend(loaded, target), *_runtime(loaded, target)])


def _backend(loaded: LoadedSpec, target: str) -> Iterator[Diagnostic]:
    if target == "ascend" and not loaded.source.has("backend", "ascend"):
        yield from ascend.contracts(loaded.view)


def _runtime(loaded: LoadedSpec, target: str) -> Iterator[Diagnostic]:
    runtime = loaded.spec.runtime
    if runtime.kv_layout == "paged":
        yield from _paged(loaded, target)
    if runtime.dtype not in DTYPES[target]:
        yield error(
            "SPC204",
            f"the {target} backend does not compute in {runtime.dtype} yet",
            loaded.source.span("runtime", "dtype"),
            label="not yet",
            help=f"dtypes of this backend: {', '.join(sorted(DTYPES[target]))}",
        )
    recurrent = loaded.spec.target.family in RECURRENT_FAMILIES
    if recurrent and runtime.state_dtype not in STATE_DTYPES[target]:
        yield error(
            "SPC204",
            f"the {target} backend does not keep recurrent states in {runtime.state_dtype} yet",
            loaded.source.span("runtime", "state_dtype"),
            label="not yet",
            help=_state_remedy(target, runtime.state_dtype),
        )


def _paged(loaded: LoadedSpec, target: str) -> Iterator[Diagnostic]:
    """Why this target can't have the paged cache."""
    page = loaded.spec.runtime.kv_block_size
    if target in PAGED:
        yield error(
            "SPC203",
            f"the {target} backend has no paged caches yet: {PAGED[target]}",
            loaded.source.span("runtime", "kv_layout"),
            label="not yet",
            help="write `kv_layout: contiguous`, or take the target reference or triton",
        )
    elif target == "triton" and (page < SMALLEST_PAGE or page & (page - 1)):
        yield error(
            "SPC203",
            f"pages of {page} rows: the triton backend has powers of two from {SMALLEST_PAGE} on",
            loaded.source.span("runtime", "kv_block_size") or loaded.source.span("runtime", "kv_layout"),
            label="not a power of two" if page & (page - 1) else "too small",
            help=f"write `kv_block_size: {max(SMALLEST_PAGE, 1 << (page - 1).bit_length())}`",
        )


def _state_remedy(target: str, dtype: str) -> str:
    """The state types of the target, and the targets that have this one."""
    own = " or ".join(sorted(STATE_DTYPES[target], reverse=True))
    others = ", ".join(sorted(name for name, held in STATE_DTYPES.items() if dtype in held))
    return f"write `state_dtype: {own}`; {others} keep {dtype} states"
