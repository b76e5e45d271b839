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
    )
}


DEVICE_PASSES: Mapping[str, tuple[Pass, ...]] = {"triton": (FuseLinear(),)}
"""What a target adds to any pipeline that ends in buffers: it prepares for that backend and changes no meaning."""


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
        )
    )


def pipeline_of(spec: Spec, spans: Mapping[str, Span] | None = None, target: str = "reference") -> Pipeline:
    """The pipeline that a spec asks for. Raises DiagnosticError: SPC250 order, SPC251 unknown pass, SPC252 options."""
    if spec.passes == "default":
        return Pipeline((*default_pipeline(spec).passes, *DEVICE_PASSES.get(target, ())))
    place = (spans or {}).get("passes")
    chosen = tuple(from_options(entry.name, entry.options, AVAILABLE, place) for entry in spec.passes)
    names = {item.name for item in chosen}
    if PlanBuffers.name in names:
        chosen += tuple(item for item in DEVICE_PASSES.get(target, ()) if item.name not in names)
    pipeline = Pipeline(chosen)
    pipeline.check_order()
    return pipeline
