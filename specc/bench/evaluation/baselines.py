"""Plain decoding's texts, kept by content: later turns are asked with them, other modules are compared with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.bench.evaluation.cells import key_of
from specc.output import make_folder, write_text


@dataclass(frozen=True, slots=True)
class Baselines:
    """Texts of one model: `identity` is a key of everything but the prompt that decides them."""

    folder: Path
    identity: str

    @classmethod
    def of(cls, inputs: Mapping[str, Any], places: Mapping[str, str], dtype: str, stop: Sequence[int]) -> Baselines:
        """The texts of a cell's model, in its dtype, on its kind of device."""
        names = ("model", "target", "device", "code", "max_new_tokens")
        identity = key_of({name: inputs[name] for name in names} | {"dtype": dtype, "stop": list(stop)})
        return cls(Path(places["cache"]) / "plain" / identity[:24], identity)

    def get(self, ids: Sequence[int]) -> list[int] | None:
        """The text after a prompt; None if no worker has decoded it yet."""
        try:
            kept = json.loads(self._path(ids).read_text(encoding="utf-8"))
            return list(map(int, kept["tokens"])) if kept["identity"] == self.identity else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, ids: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Keep a text unless there is one; the one that is kept."""
        kept = self.get(ids)
        if kept is None:
            make_folder(self.folder)
            write_text(self._path(ids), json.dumps({"identity": self.identity, "tokens": list(tokens)}) + "\n")
            kept = list(tokens)
        return kept

    def _path(self, ids: Sequence[int]) -> Path:
        return self.folder / f"{key_of(list(ids))[:24]}.json"
