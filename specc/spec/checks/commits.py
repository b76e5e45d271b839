"""Commit rules and their schedules."""

from __future__ import annotations

from collections.abc import Iterator

from specc.diagnostics import Diagnostic
from specc.spec.checks.view import View
from specc.spec.model import is_chain
from specc.spec.names import ATTENTION_FAMILIES, RECURRENT_FAMILIES


def length_is_for_chains(view: View) -> Iterator[Diagnostic]:
    """Advancing the length commits the first rows, which is the accepted path in chains only (SPC140)."""
    commit, draft = view.commit, view.draft
    if commit is None or draft is None or commit.kv != "length" or is_chain(draft):
        return
    yield view.error(
        "SPC140",
        "`commit.kv: length` commits the wrong rows of a tree",
        "commit", "kv",
        label="legal for chains only",
        help="write `kv: path_index`, or `draft.tree: chain`",
    )  # fmt: skip


def deferred_needs(view: View) -> Iterator[Diagnostic]:
    """Deferred updates replay what is pending: paths of KV rows, factors of states (SPC141, SPC142)."""
    commit, target = view.commit, view.target
    if commit is None or target is None or commit.update != "deferred":
        return
    if target.family in ATTENTION_FAMILIES and commit.kv == "length":
        yield view.error(
            "SPC141",
            "`update: deferred` needs `kv: path_index`: with `length` there is nothing to defer",
            "commit", "kv",
            label="not with deferred",
            help="write `kv: path_index`, or `update: immediate`",
        )  # fmt: skip
    if target.family in RECURRENT_FAMILIES and commit.state != "factors":
        yield view.error(
            "SPC142",
            f"`update: deferred` needs `state: factors`: `{commit.state}` has nothing that could be pending",
            "commit", "state",
            label="not with deferred",
            help="write `state: factors`, or `update: immediate`",
        )  # fmt: skip


def state_type(view: View) -> Iterator[Diagnostic]:
    """A float64 model keeps float64 states: narrower ones would round every step (SPC143)."""
    target, runtime = view.target, view.runtime
    if target is None or runtime is None or target.family not in RECURRENT_FAMILIES:
        return
    if runtime.dtype == "float64" and runtime.state_dtype != "float64":
        yield view.error(
            "SPC143",
            f"`dtype: float64` with `state_dtype: {runtime.state_dtype}` would round the recurrent state every step",
            "runtime", "state_dtype",
            label="must be float64",
            help="leave state_dtype out: it follows dtype",
        )  # fmt: skip
