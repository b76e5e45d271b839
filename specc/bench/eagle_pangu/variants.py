"""What is compared with the run's own tree: every variant is the same spec with one or two lines changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specc.spec import load
from specc.tune.variants import source_tree, tuned_changes

LOOKUP = (
    "draft={method: prompt_lookup, tree: dynamic, top_k: 3, num_steps: 6, num_speculative_tokens: 15, "
    "ngram: {min: 1, max: 4}}"
)
BUDGETS = (
    (8, 3), (8, 6), (32, 6), (16, 10), (16, 3), (16, 6), (32, 10), (4, 3), (32, 3), (4, 6), (8, 10), (4, 10),
)  # fmt: skip
"""Nodes (the root counts) and depth, the telling ones first; the spec's own tree is left out."""
FIRST_BUDGETS = 5
"""So many of them stand before the other ablations."""
WINDOWS = (128, 256)
MARGINS = (2.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True)
class Variant:
    """part: the table that it belongs to; changes: `--set` lines; drafter: "head", "none" (no weights) or "bigram"."""

    name: str
    part: str
    title: str
    changes: tuple[str, ...] = ()
    drafter: str = "head"
    nodes: int | None = None
    depth: int | None = None


def chain(length: int, commit: str) -> tuple[str, ...]:
    """The head as a chain of drafted tokens. With `commit: {}` it is committed by length, which moves nothing."""
    return (
        "draft.tree=chain",
        "draft.top_k=1",
        f"draft.num_speculative_tokens={length}",
        f"draft.num_steps={length}",
        f"commit={commit}",
    )


def bigram(folder: Path) -> tuple[str, ...]:
    """The bigram drafter's section: as many candidates as its tables have."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        count = int(config.get("candidates_per_token", 8))
    except (OSError, ValueError, TypeError, AttributeError):
        count = 8
    section = f"draft={{method: bigram, config: {{candidates_per_token: {count}}}, tree: dynamic, "
    return (f"{section}top_k: {min(4, count)}, num_steps: 5, num_speculative_tokens: 15}}",)


def drafters(chains: tuple[int, ...], bigram_folder: Path | None) -> Iterator[Variant]:
    """Other ways to draft, and none at all (its plain step has nothing to prepare for a head)."""
    yield Variant("own", "drafters", "the spec's own tree")
    yield Variant("lookup", "drafters", "prompt lookup, tree of 16", (LOOKUP,), drafter="none")
    if bigram_folder is not None:
        yield Variant("bigram", "drafters", "bigram table, tree of 16", bigram(bigram_folder), drafter="bigram")
    for length in chains:
        title = f"head, chain of {length}"
        yield Variant(f"chain-{length}", "drafters", title, chain(length, "{}"))
    yield Variant("plain", "drafters", "no drafter", ("draft={method: none}", "commit={}"), drafter="none")


def ablations(chains: tuple[int, ...], own: tuple[int, int], tuned: Variant | None = None) -> Iterator[Variant]:
    """One thing switched at a time, in the order of what they tell. `own`: nodes and depth of the spec's tree; `tuned`:
    see `tuned_variant`."""
    if tuned is not None:
        yield tuned
    budgets = [budget(*size) for size in BUDGETS if size != own]
    for window in WINDOWS:
        title = f"drafter sees {window} tokens"
        yield Variant(f"window-{window}", "window", title, (f"draft.window={window}",))
    yield from budgets[:FIRST_BUDGETS]
    yield Variant("mask-eager", "mask", "eager attention with a mask", ("verify.attention=eager",))
    yield Variant("immediate", "commit", "tree, path index, at once", ("commit={update: immediate}",))
    yield Variant(
        "immediate-all-rows",
        "commit",
        "tree, path index, at once, no fast reorder",
        ("commit={kv: path_index, update: immediate, fast_reorder: false}",),
    )
    yield Variant("all-rows", "commit", "tree, deferred, no fast reorder", ("commit.fast_reorder=false",))
    for length in chains[:1]:
        title = f"chain of {length}, path index, at once"
        yield Variant("chain-path-index", "commit", title, chain(length, "{kv: path_index, update: immediate}"))
    for margin in MARGINS:
        changes = (f"draft.prune={{path_log_prob_margin: {margin}}}",)
        yield Variant(f"margin-{margin:g}", "pruning", f"margin {margin:g} nats", changes)
    yield from budgets[FIRST_BUDGETS:]
    for count in (2, 8):
        yield Variant(f"top-k-{count}", "top-k", f"{count} children per node", (f"draft.top_k={count}",))


def tuned_variant(spec: Path, tuned: Path) -> Variant:
    """The spec with the tree of another one. Raises SpecError."""
    title = f"the tree that was tuned: {source_tree(load(tuned)).label}"
    return Variant("tuned", "budget", title, tuned_changes(spec, tuned))


def budget(nodes: int, depth: int) -> Variant:
    """A cell of the sweep of tree sizes."""
    changes = (f"draft.num_speculative_tokens={nodes - 1}", f"draft.num_steps={depth}")
    return Variant(f"budget-{nodes}x{depth}", "budget", f"{nodes} nodes, depth {depth}", changes, "head", nodes, depth)
