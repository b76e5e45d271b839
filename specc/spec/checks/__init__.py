"""What the keys of a spec mean together: one function per rule, all of them on this screen."""

from __future__ import annotations

from specc.diagnostics import Diagnostic
from specc.spec.checks import applicability, ascend, commits, geometry, laws, trees
from specc.spec.checks.view import Check, View

CHECKS: tuple[Check, ...] = (
    applicability.draft_keys,
    applicability.accept_keys,
    applicability.layer_kinds,
    applicability.hybrid_layers,
    applicability.state_types,
    geometry.heads,
    geometry.layer_lists,
    geometry.experts,
    geometry.vocabularies,
    geometry.stop_tokens,
    geometry.aux_layers,
    geometry.positions,
    trees.drafts_something,
    trees.chain,
    trees.dynamic,
    trees.static,
    trees.ngram,
    trees.prune,
    trees.drafter_geometry,
    laws.typical_is_lossy,
    laws.true_q,
    laws.temperature,
    commits.length_is_for_chains,
    commits.deferred_needs,
    commits.state_type,
    ascend.if_written,
)


def run_checks(view: View) -> list[Diagnostic]:
    """The findings of every rule."""
    return [finding for check in CHECKS for finding in check(view)]
