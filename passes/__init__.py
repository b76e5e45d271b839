"""The passes, and the pipelines on one screen. Imported as `specc.passes` only."""

from __future__ import annotations

if not __name__.startswith("specc."):
    raise ImportError("import specc.passes, not passes: the top-level folder is linked into the specc package")

from collections.abc import Mapping

from specc.diagnostics import Span
from specc.manager import Pass, Pipeline
from specc.pass_options import from_options
from specc.passes.canonicalize import Canonicalize
from specc.passes.cse import CommonSubexpressions
from specc.passes.dce import DeadCode
from specc.passes.fuse_deferred_state_update import FuseDeferredStateUpdate
from specc.passes.fuse_linear import FuseLinear
from specc.passes.fuse_projections import FuseProjections
from specc.passes.insert_tree_masks import InsertTreeMasks
from specc.passes.layer_major import LayerMajor
from specc.passes.legalize_ascend import LegalizeAscend
from specc.passes.page_caches import PageCaches
from specc.passes.plan_buffers import PlanBuffers
from specc.passes.rewrite_negative_indices import RewriteNegativeIndices
from specc.passes.select_schedule import SelectSchedule
from specc.spec.model import Spec

AVAILABLE: Mapping[str, type[Pass]] = {
    item.name: item
    for item in (
        RewriteNegativeIndices,
        InsertTreeMasks,
        LayerMajor,
        FuseDeferredStateUpdate,
        FuseProjections,
        Canonicalize,
        CommonSubexpressions,
        DeadCode,
        SelectSchedule,
        PlanBuffers,
        FuseLinear,
        LegalizeAscend,
    )
}


DEVICE_PASSES: Mapping[str, tuple[Pass, ...]] = {
    "triton": (FuseLinear(),),
    **dict.fromkeys(("ascend", "onnx", "mlir"), (LegalizeAscend(),)),
}
"""What a target adds to a pipeline: it prepares for that backend and changes no meaning."""

VALUE_TARGETS: Mapping[str, frozenset[str]] = dict.fromkeys(
    ("ascend", "onnx", "mlir"), frozenset({PlanBuffers.name, FuseLinear.name})
)
"""Targets that take values, and the passes that a pipeline for them goes without (`legalize-ascend` notes it): their
graph engines plan memory themselves, and fold `copy_(scatter(…))` only where nothing else wrote in place."""


def default_pipeline(spec: Spec) -> Pipeline:
    """What `passes: default` means for a spec."""
    window = spec.commit.window or 0
    deferred = (FuseDeferredStateUpdate(window=window),) if spec.commit.update == "deferred" else ()
    recurrence = spec.verify.recurrence or "auto"
    scheduled = (SelectSchedule(schedule=recurrence),) if spec.target.geometry.recurrent else ()
    return Pipeline(
        (
            RewriteNegativeIndices(),  # no -1 reaches an index
            InsertTreeMasks(),  # own-path gathers become masked reads of all nodes
            LayerMajor(),  # token { layer } becomes layer { all tokens }
            *deferred,  # commit's row movement moves to the head of the next verify
            FuseProjections(),  # q, k, v into one GEMM; gate and up into one
            Canonicalize(),
            CommonSubexpressions(),
            DeadCode(),
            *scheduled,  # how states reach the nodes of a verify step: replay, serial, hybrid or tree
            PlanBuffers(),  # values become donated buffers, updated in place
            *_paged(spec),  # the target's caches become pages of a pool that all rows share
        )
    )


def _paged(spec: Spec) -> tuple[Pass, ...]:
    """The pass that `runtime.kv_layout` asks for, whatever `passes` lists; it needs plan-buffers before it."""
    return (PageCaches(page=spec.runtime.kv_block_size),) if spec.runtime.kv_layout == "paged" else ()


def pipeline_of(spec: Spec, spans: Mapping[str, Span] | None = None, target: str = "reference") -> Pipeline:
    """The pipeline that a spec asks for. Raises DiagnosticError: SPC250 order, SPC251 unknown pass, SPC252 options."""
    more, fewer = DEVICE_PASSES.get(target, ()), VALUE_TARGETS.get(target, frozenset())
    if spec.passes == "default":
        kept = tuple(item for item in default_pipeline(spec).passes if item.name not in fewer)
        return Pipeline((*kept, *more))
    place = (spans or {}).get("passes")
    chosen = tuple(from_options(entry.name, entry.options, AVAILABLE, place) for entry in spec.passes)
    names = {item.name for item in chosen}
    chosen = tuple(item for item in chosen if item.name not in fewer)
    chosen += _paged(spec)
    if fewer or PlanBuffers.name in names:
        chosen += tuple(item for item in more if item.name not in names)
    pipeline = Pipeline(chosen)
    pipeline.check_order(span=place, available=AVAILABLE.values())
    return pipeline
