"""A spec with another draft tree: which keys that changes, and how the changed spec is loaded and compiled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specc.diagnostics import DiagnosticError, SpecError, error
from specc.driver import compile_spec
from specc.output import make_folder, write_text
from specc.spec import LoadedSpec, fingerprint, load
from specc.spec.defaults import dynamic_capacity
from specc.tune.shapes import RankPath

Kind = Literal["chain", "static", "dynamic"]
KINDS: tuple[Kind, ...] = ("chain", "static", "dynamic")
SCORED = ("eagle3", "draft_model", "bigram")
"""Drafters that give their candidates log-probabilities: these can be re-ranked and pruned."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One draft tree: `nodes` drafted nodes on at most `steps` levels. `margin` prunes by path log-probability."""

    kind: Kind
    nodes: int
    steps: int
    top_k: int
    choices: tuple[RankPath, ...] = ()
    margin: float | None = None

    @property
    def label(self) -> str:
        """How tables name it."""
        if self.kind == "chain":
            return f"chain of {self.nodes}"
        pruned = "" if self.margin is None else f", margin {self.margin:g}"
        return f"{self.kind} {self.nodes} nodes, {self.steps} levels, top_k {self.top_k}{pruned}"

    def settings(self, spec: LoadedSpec) -> dict[str, Any]:
        """Dotted spec key -> value (None: the key goes) that turn the spec into one with this tree."""
        draft = spec.spec.draft
        prune: dict[str, float] | None = None
        if draft.prune is not None and self.kind != "static":
            kept = {"min_path_log_prob": draft.prune.min_path_log_prob, "path_log_prob_margin": self.margin}
            prune = {key: value for key, value in kept.items() if value is not None} or None
        elif self.margin is not None:
            prune = {"path_log_prob_margin": self.margin}
        found: dict[str, Any] = {
            "draft.tree": self.kind,
            "draft.num_speculative_tokens": self.nodes,
            "draft.num_steps": self.steps,
            "draft.top_k": self.top_k,
            "draft.choices": [list(path) for path in self.choices] or None,
            "draft.prune": prune,
        }
        if spec.spec.commit.kv == "length" and self.kind != "chain":
            found["commit.kv"] = "path_index"
        return found


def source_tree(loaded: LoadedSpec) -> Tree:
    """The tree that a spec has."""
    draft = loaded.spec.draft
    margin = None if draft.prune is None else draft.prune.path_log_prob_margin
    if loaded.spec.is_chain and draft.tree != "static":
        return Tree("chain", draft.num_speculative_tokens, draft.num_speculative_tokens, 1, (), margin)
    return Tree(draft.tree, draft.num_speculative_tokens, draft.num_steps, draft.top_k, draft.choices or (), margin)


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """The settings in the form of `--set`: JSON is YAML."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


@dataclass(frozen=True, slots=True)
class Source:
    """A spec file with the overrides that were given on the command line, and variants of it."""

    path: Path
    overrides: tuple[str, ...]
    loaded: LoadedSpec

    @classmethod
    def read(cls, path: Path, overrides: Sequence[str]) -> Source:
        """Raises SpecError."""
        return cls(path, tuple(overrides), load(path, overrides))

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process reads the file itself: a loaded spec holds views of mappings, which can't be sent."""
        return Source.read, (self.path, self.overrides)

    def with_tree(self, tree: Tree, more: Sequence[str] = ()) -> LoadedSpec:
        """The spec with another tree. Raises SpecError."""
        return load(self.path, [*self.overrides, *as_overrides(tree.settings(self.loaded)), *more])

    def deepest(self, tree: Tree) -> int:
        """The most levels, up to the tree's, that the positions of target and drafter allow."""
        for steps in range(tree.steps, 0, -1):
            try:
                self.with_tree(Tree(tree.kind, min(tree.nodes, steps), steps, tree.top_k))
            except SpecError:
                continue
            return steps
        return 0


def tuned_changes(spec: Path, tuned: Path) -> tuple[str, ...]:
    """The `--set` lines that give a spec the tree of another one. Raises SpecError."""
    return tuple(as_overrides(source_tree(load(tuned)).settings(load(spec))))


def generous(method: str, top_k: int, steps: int) -> Tree:
    """The tree that keeps every candidate."""
    nodes = dynamic_capacity(method, top_k, steps)
    return Tree("chain" if top_k == 1 else "dynamic", nodes, steps, top_k)


def check_tunable(loaded: LoadedSpec) -> None:
    """Raise DiagnosticError (SPC490) for a spec without drafts, or whose acceptance can't be replayed.

    With `rejection` and `target_only` a drafted token is kept if it is what the target's law gave, as with greedy
    acceptance, so that recorded text tells what would have been kept. Typical acceptance keeps other tokens, and
    `true_q` draws its drafts.
    """
    spec, source = loaded.spec, loaded.source
    if spec.draft.method == "none":
        span = source.span("draft", "method")
        message = "the spec has `draft.method: none`: there is no tree to tune"
        raise DiagnosticError([error("SPC490", message, span, help="give a spec that drafts")])
    greedy = spec.accept.method == "greedy" or (spec.accept.method == "rejection" and spec.sampling.temperature == 0)
    if not greedy and (spec.accept.method == "typical" or spec.accept.rule == "true_q"):
        what = "typical acceptance" if spec.accept.method == "typical" else "`rule: true_q`"
        message = f"{what} can't be replayed from recorded text"
        help_text = "tune with --set accept.method=greedy --set sampling.temperature=0.0, then restore the keys"
        raise DiagnosticError([error("SPC490", message, source.span("accept", "method"), help=help_text)])


def source_of(loaded: LoadedSpec, target: str, folder: Path | None = None) -> str:
    """The module's source, from `folder` if an earlier run left it there."""
    if folder is None:
        return compile_spec(loaded, target, verify=False).source
    path = folder / f"{loaded.spec.name}-{target}-{fingerprint(loaded.spec)[:16]}.py"
    if not path.is_file():
        make_folder(folder)
        write_text(path, compile_spec(loaded, target, verify=False).source)
    return path.read_text(encoding="utf-8")
