"""What a semantic check sees: the sections that are well-formed, and where everything was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specc.diagnostics import Diagnostic, error
from specc.spec.model import Accept, Backend, Commit, Draft, Runtime, Sampling, Target, Verify
from specc.spec.source import SourceMap
from specc.spec.structure import dotted


@dataclass(frozen=True, slots=True)
class View:
    """A section is None where it is not well-formed (and that was reported); checks skip what they can't see.

    `raw` holds the values as written, so that a written key can be told from a default.
    """

    source: SourceMap
    raw: Mapping[str, Any]
    target: Target | None = None
    draft: Draft | None = None
    verify: Verify | None = None
    accept: Accept | None = None
    commit: Commit | None = None
    sampling: Sampling | None = None
    runtime: Runtime | None = None
    backend: Backend | None = None

    def written(self, *path: str) -> Any:
        """The value as written, or None where the key was left out or is null."""
        value: Any = self.raw
        for part in path:
            if not isinstance(value, Mapping):
                return None
            value = value.get(part)
        return value

    def error(self, code: str, message: str, *path: str | int, label: str = "", help: str = "") -> Diagnostic:
        """An error at the value of `path`."""
        return error(code, message, self.source.span(*path), label=label, help=help)

    def unused(self, why: str, *path: str) -> Diagnostic:
        """SPC100: the key at `path` has no meaning here because of `why`."""
        return error(
            "SPC100",
            f"`{dotted(path)}` has no meaning here: {why}",
            self.source.key_span(*path),
            label="does not apply",
            help="remove the key (or set it to null)",
        )


Check = Callable[[View], Iterator[Diagnostic]]
