"""The draft tree: budgets, static choices, chains, prompt lookup, pruning."""

from __future__ import annotations

from collections.abc import Iterator

from specc.diagnostics import Diagnostic, warning
from specc.spec.checks.view import View
from specc.spec.defaults import dynamic_capacity
from specc.spec.model import Draft


def _drafting(view: View, *trees: str) -> Draft | None:
    """The draft section if it drafts with one of these trees."""
    draft = view.draft
    return draft if draft is not None and draft.method != "none" and draft.tree in trees else None


def drafts_something(view: View) -> Iterator[Diagnostic]:
    """A method that drafts has at least one token and one step (SPC109)."""
    draft = _drafting(view, "chain", "static", "dynamic")
    if draft is None or (draft.tree == "static" and draft.choices is None):
        return
    for key in ("num_speculative_tokens", "num_steps"):
        if view.written("draft", key) == 0:
            yield view.error(
                "SPC109",
                f"`draft.{key}` is 0, so `method: {draft.method}` drafts nothing",
                "draft", key,
                label="must be at least 1",
                help="write `method: none` for plain decoding",
            )  # fmt: skip


def chain(view: View) -> Iterator[Diagnostic]:
    """A chain has one child per node and one node per step (SPC111, SPC112)."""
    draft = _drafting(view, "chain")
    if draft is None:
        return
    if draft.top_k != 1:
        yield view.error(
            "SPC111",
            f"a chain has one child per node, but top_k is {draft.top_k}",
            "draft", "top_k",
            label="must be 1",
            help="write `tree: dynamic` for a tree",
        )  # fmt: skip
    written = view.written("draft", "num_speculative_tokens"), view.written("draft", "num_steps")
    if draft.num_speculative_tokens != draft.num_steps and 0 not in written:
        yield view.error(
            "SPC112",
            f"a chain of {draft.num_speculative_tokens} tokens has {draft.num_speculative_tokens} steps, "
            f"not {draft.num_steps}",
            "draft", "num_steps",
            label=f"must be {draft.num_speculative_tokens}",
            help="leave num_steps out",
        )  # fmt: skip


def dynamic(view: View) -> Iterator[Diagnostic]:
    """The budget is within the candidates, and can reach the last step (SPC110, SPC127)."""
    draft = _drafting(view, "dynamic")
    if draft is None:
        return
    tokens, steps, top_k = draft.num_speculative_tokens, draft.num_steps, draft.top_k
    capacity = dynamic_capacity(draft.method, top_k, steps)
    if tokens > capacity and steps:
        formula = "top_k x num_steps" if draft.method == "prompt_lookup" else "top_k + (num_steps - 1) x top_k^2"
        yield view.error(
            "SPC110",
            f"{tokens} drafted tokens are more than the tree's {capacity} candidates",
            "draft", "num_speculative_tokens",
            label=f"at most {formula} = {capacity}",
            help="raise top_k or num_steps, or lower num_speculative_tokens",
        )  # fmt: skip
    elif 0 < tokens < steps:
        yield warning(
            "SPC127",
            f"a tree of {tokens} tokens can't be {steps} steps deep",
            view.source.span("draft", "num_steps"),
            label=f"steps beyond {tokens} are drafted in vain",
            help=f"set num_steps to {tokens} or less",
        )


def static(view: View) -> Iterator[Diagnostic]:
    """Choices exist, are sorted, distinct, prefix-closed, and of the stated size (SPC113 to SPC119)."""
    draft = _drafting(view, "static")
    if draft is None:
        return
    if draft.choices is None:
        if not view.source.has("draft", "choices") or view.written("draft", "choices") is None:
            yield view.error(
                "SPC113",
                "a static tree needs `draft.choices`",
                "draft", "tree",
                label="no choices are given",
                help="add rank paths, such as `choices: [[0], [1], [0, 0]]`",
            )  # fmt: skip
        return
    yield from _paths(view, draft, draft.choices)
    if draft.num_speculative_tokens != len(draft.choices):
        yield view.error(
            "SPC118",
            f"num_speculative_tokens is {draft.num_speculative_tokens}, "
            f"but there are {len(draft.choices)} choices",
            "draft", "num_speculative_tokens",
            label=f"must be {len(draft.choices)}",
            help="leave num_speculative_tokens out",
        )  # fmt: skip


def _paths(view: View, draft: Draft, choices: tuple[tuple[int, ...], ...]) -> Iterator[Diagnostic]:
    known = set(choices)
    seen: set[tuple[int, ...]] = set()
    for index, path in enumerate(choices):
        at = ("draft", "choices", index)
        if path in seen:
            yield view.error(
                "SPC116", f"the choice {list(path)} is listed twice", *at,
                label="siblings must have distinct ranks", help="remove one",
            )  # fmt: skip
        elif len(path) > 1 and path[:-1] not in known:
            yield view.error(
                "SPC114", f"the choice {list(path)} has no parent", *at,
                label=f"{list(path[:-1])} is not listed", help=f"add {list(path[:-1])} before it",
            )  # fmt: skip
        if index and (len(path), path) < (len(choices[index - 1]), choices[index - 1]):
            yield view.error(
                "SPC115", "choices are not sorted by length, then by ranks", *at,
                label=f"belongs before {list(choices[index - 1])}",
                help="parents come first, so that parent[i] < i",
            )  # fmt: skip
        if len(path) > draft.num_steps > 0:
            yield view.error(
                "SPC117", f"the choice {list(path)} is deeper than num_steps {draft.num_steps}", *at,
                label=f"{len(path)} levels below the root", help="raise num_steps or leave it out",
            )  # fmt: skip
        if max(path) >= draft.top_k:
            yield view.error(
                "SPC119", f"rank {max(path)} needs top_k > {max(path)}, but top_k is {draft.top_k}", *at,
                label=f"ranks are 0 to {draft.top_k - 1}", help="raise top_k or leave it out",
            )  # fmt: skip
        seen.add(path)


def ngram(view: View) -> Iterator[Diagnostic]:
    """The n-gram range is not empty (SPC124)."""
    draft = view.draft
    if draft is None or draft.method != "prompt_lookup" or draft.ngram is None:
        return
    if draft.ngram.min > draft.ngram.max:
        yield view.error(
            "SPC124",
            f"ngram.min {draft.ngram.min} is more than ngram.max {draft.ngram.max}",
            "draft", "ngram", "min",
            label=f"at most {draft.ngram.max}",
            help="write the shortest match first: {min: 1, max: 4}",
        )  # fmt: skip


def prune(view: View) -> Iterator[Diagnostic]:
    """A pruning section has a threshold (SPC125)."""
    draft = _drafting(view, "chain", "dynamic")
    if draft is None or draft.prune is None:
        return
    if draft.prune.path_log_prob_margin is None and draft.prune.min_path_log_prob is None:
        yield view.error(
            "SPC125",
            "`draft.prune` has no threshold, so it prunes nothing",
            "draft", "prune",
            label="no threshold",
            help="give path_log_prob_margin or min_path_log_prob, or remove `prune`",
        )  # fmt: skip


def drafter_geometry(view: View) -> Iterator[Diagnostic]:
    """A draft model's sizes are known at compile time (SPC120)."""
    draft = view.draft
    if draft is None or draft.method != "draft_model" or draft.config is not None:
        return
    if view.written("draft", "config") is None and view.written("draft", "checkpoint") is None:
        yield view.error(
            "SPC120",
            "the draft model's sizes are not known",
            "draft", "method",
            label="needs `draft.config` or `draft.checkpoint`",
            help="add `config: {num_hidden_layers: …, …}` (its weights may come at run time), or `checkpoint`",
        )  # fmt: skip
