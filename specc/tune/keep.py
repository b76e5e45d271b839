"""Measurements kept by content: a run that is repeated, or was interrupted, does not measure again what it has.

Keys hold what a measurement depends on: the variant's fingerprint, the bytes of the weights, the compiler's sources,
the prompts' ids, the bounds, the device. Step times are cells of `specc.bench.evaluation.store`; recordings are .npz
files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from specc.bench.evaluation.cells import Cell, code_fingerprint, fingerprint_of, key_of
from specc.bench.evaluation.store import Store
from specc.output import make_folder, replacing
from specc.runtime.session import Session
from specc.spec import LoadedSpec, fingerprint
from specc.tune.evidence import Recorded, TextSpan
from specc.tune.lookup import Decoded
from specc.tune.timing import Point
from specc.tune.variants import Tree

STEP_TIME = "specc.tune.timing:time_steps"
ARRAYS = ("token", "parent", "score", "truth")
DIGITS = 24


@dataclass(frozen=True, slots=True)
class Kept:
    """A folder of measurements; None keeps nothing. `device` is its name."""

    folder: Path | None
    device: str

    def inputs(self, loaded: LoadedSpec, session: Session, target: str, **more: Any) -> dict[str, Any]:
        """What a measurement of this variant depends on."""
        drafter = Path(session.drafter) if session.drafter and not session.simulated else None
        return {
            "spec": fingerprint(loaded.spec),
            "target": target,
            "device": self.device,
            "code": code_fingerprint(),
            "model": fingerprint_of(session.model),
            "drafter": session.drafter if drafter is None else fingerprint_of(drafter),
            "seed": session.identity.seed,
            **more,
        }

    def point(self, inputs: Callable[[], Mapping[str, Any]], tree: Tree) -> Point | None:
        """A step time from the folder, if it is there."""
        if self.folder is None:
            return None
        found = Store(self.folder).get(Cell(tree.label, STEP_TIME, inputs()))
        return None if found is None else Point(tree, found["seconds"], found["low"], found["high"], found["steps"])

    def keep_point(self, inputs: Callable[[], Mapping[str, Any]], made: Point) -> None:
        """Keep a step time that was measured."""
        if self.folder is not None:
            numbers = {key: value for key, value in asdict(made).items() if key != "tree"}
            Store(self.folder).put(Cell(made.tree.label, STEP_TIME, inputs()), numbers)

    def recording(
        self, inputs: Callable[[], Mapping[str, Any]], measure: Callable[[], tuple[Recorded, bool]]
    ) -> Recorded:
        """A recording from the folder, or made; kept there if it is whole, not cut off by the time."""
        if self.folder is None:
            return measure()[0]
        path = self.folder / f"recording-{key_of(inputs())[:DIGITS]}.npz"
        found = _read(path)
        if found is not None:
            return Recorded(**found)
        made, whole = measure()
        if whole:
            spans = [[span.name, span.start, span.stop] for span in made.spans]
            head = json.dumps({"spans": spans, "top_k": made.top_k, "levels": made.levels})
            _write(path, {"head": np.array(head), **{name: getattr(made, name) for name in ARRAYS}})
        return made

    def texts(
        self, inputs: Callable[[], Mapping[str, Any]], measure: Callable[[], tuple[list[Decoded], bool]]
    ) -> list[Decoded]:
        """Plain texts from the folder, or decoded; kept there if they are whole."""
        if self.folder is None:
            return measure()[0]
        store, cell = Store(self.folder), Cell("texts", "specc.tune.record:look_up", inputs())
        found = store.get(cell)
        if found is not None:
            return [Decoded(name, tuple(prompt), tuple(tokens)) for name, prompt, tokens in found["texts"]]
        made, whole = measure()
        if whole:
            store.put(cell, {"texts": [[text.name, text.prompt, text.tokens] for text in made]})
        return made


NOTHING_KEPT = Kept(None, "")


def _read(path: Path) -> dict[str, Any] | None:
    """The fields of a recording; None where there is none, or a damaged one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            head = json.loads(str(file["head"]))
            fields: dict[str, Any] = {name: file[name] for name in ARRAYS}
    except (OSError, ValueError, KeyError, BadZipFile):
        return None
    spans = [TextSpan(name, start, stop) for name, start, stop in head["spans"]]
    return fields | {"spans": spans, "top_k": head["top_k"], "levels": head["levels"]}


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    """Under a temporary name, then renamed. Raises DiagnosticError (SPC460)."""
    make_folder(path.parent)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
