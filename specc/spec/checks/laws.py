"""Acceptance and sampling: which rule gives which law."""

from __future__ import annotations

from collections.abc import Iterator

from specc.diagnostics import Diagnostic, warning
from specc.spec.checks.view import View


def typical_is_lossy(view: View) -> Iterator[Diagnostic]:
    """Typical acceptance changes the output law (SPC130)."""
    accept = view.accept
    if accept is not None and accept.method == "typical" and accept.lossless:
        place = "lossless" if view.written("accept", "lossless") is not None else "method"
        yield view.error(
            "SPC130",
            "typical acceptance is not lossless: its output law is not the target's",
            "accept", place,
            label="contradiction" if place == "lossless" else "lossless is true by default",
            help="set `lossless: false`, or use `method: rejection`",
        )  # fmt: skip


def true_q(view: View) -> Iterator[Diagnostic]:
    """true_q needs q of drawn drafts, in a tree whose shape is fixed before drawing (SPC131, SPC132)."""
    accept, draft = view.accept, view.draft
    if accept is None or draft is None or accept.rule != "true_q" or accept.method != "rejection":
        return
    if draft.method in ("bigram", "prompt_lookup", "none"):
        yield view.error(
            "SPC132",
            f"`rule: true_q` needs the drafter's whole distribution, and `method: {draft.method}` has none",
            "accept", "rule",
            label="no q",
            help="use `rule: target_only`",
        )  # fmt: skip
        return
    if draft.tree == "dynamic" and draft.top_k > 1:
        yield view.error(
            "SPC131",
            "`rule: true_q` needs a tree whose shape does not depend on the draws, but this one is dynamic",
            "accept", "rule",
            label="chain or static trees only",
            help="use `rule: target_only`, or `draft.tree: static`",
        )  # fmt: skip
    if draft.prune is not None:
        yield view.error(
            "SPC131",
            "`rule: true_q` needs a tree whose shape does not depend on the draws, but `draft.prune` cuts by "
            "their probability",
            "accept", "rule",
            label="without pruning only",
            help="remove `draft.prune`, or use `rule: target_only`",
        )  # fmt: skip


def temperature(view: View) -> Iterator[Diagnostic]:
    """Greedy is temperature 0 and the stochastic methods are not (SPC133, SPC134, SPC137)."""
    accept, sampling = view.accept, view.sampling
    if accept is None or sampling is None:
        return
    if accept.method == "greedy" and sampling.temperature > 0:
        yield view.error(
            "SPC133",
            f"greedy acceptance ignores temperature {sampling.temperature}",
            "sampling", "temperature",
            label="must be 0 for greedy",
            help="write `accept: {method: rejection}` to sample, or temperature 0",
        )  # fmt: skip
    if accept.method != "greedy" and sampling.temperature == 0:
        yield view.error(
            "SPC134",
            f"`method: {accept.method}` samples, but the temperature is 0",
            "accept", "method",
            label="needs sampling.temperature > 0",
            help="set sampling.temperature, or write `method: greedy`",
        )  # fmt: skip
    if accept.method == "greedy" and sampling.temperature == 0:
        for key, off in (("top_k", 0), ("top_p", 1.0)):
            if getattr(sampling, key) != off:
                yield warning(
                    "SPC137",
                    f"`sampling.{key}` does nothing under greedy acceptance",
                    view.source.key_span("sampling", key),
                    label="the most probable token stays the same",
                    help="remove it",
                )
