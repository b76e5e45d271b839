"""What a backend is: it turns a program into the source of one standalone module, and says what it supports.

Backends register under a name; the driver looks them up and refuses, with a code and the reason, what a
backend's capability table does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from specc.backends.printing.origins import Origins
from specc.diagnostics import Diagnostic, Span, error
from specc.ir.edit import modules
from specc.ir.op import info
from specc.program import DecodeProgram

ABI = 1


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """What the header of a generated module states besides the program itself.

    `spec` is the resolved spec as plain values (never a path); `fingerprint` and `pipeline` identify spec and passes;
    `lines` maps dotted spec keys to 1-based lines of the YAML, for the comments; `spans` to their places, for findings.
    `origins`, where it is given, is told which nodes each printed statement comes from.
    """

    spec: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    pipeline: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)
    origins: Origins | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a target supports.

    `ops`: names of specc ops it can generate (None: all that are declared). `properties`: what a program must have
    been given by passes first. `features`: spec settings by dotted key -> the values it supports.
    """

    ops: frozenset[str] | None = None
    properties: frozenset[str] = frozenset()
    features: Mapping[str, frozenset[str]] = field(default_factory=dict)


@runtime_checkable
class Backend(Protocol):
    """One target."""

    @property
    def name(self) -> str:
        """The name of `--target`."""

    @property
    def capabilities(self) -> Capabilities:
        """What it supports."""

    def generate(self, program: DecodeProgram, module: ModuleInfo) -> str:
        """The source of the module. Deterministic. Raises DiagnosticError where `refusals` is not empty."""


BACKENDS: dict[str, Backend] = {}


def register(backend: Backend) -> Backend:
    """Make a backend known by its name. Raises ValueError for a name that is taken."""
    if backend.name in BACKENDS:
        raise ValueError(f"two backends are called {backend.name}")
    BACKENDS[backend.name] = backend
    return backend


def refusals(backend: Backend, program: DecodeProgram, spec: Mapping[str, Any] | None = None) -> list[Diagnostic]:
    """Why this backend can't generate the program: SPC260 an op, SPC261 a property, SPC262 a setting of the spec."""
    table, found = backend.capabilities, list[Diagnostic]()
    if table.ops is not None:
        used = {name for module in program.graphs.values() for name in ops_used(module)}
        for name in sorted(used - table.ops):
            message = f"target `{backend.name}` has no form of the op `{name}`"
            found.append(error("SPC260", message, help="compile for another target, or use `passes: default`"))
    for name in sorted(table.properties - program.properties):
        message = f"target `{backend.name}` needs a program that is {name}"
        found.append(error("SPC261", message, help="add the pass that establishes it, or use `passes: default`"))
    for key, allowed in sorted(table.features.items()):
        value = _setting(spec or {}, key)
        if value is not None and value not in allowed:
            known = ", ".join(sorted(allowed))
            message = f"target `{backend.name}` does not support `{key}: {value}`"
            found.append(error("SPC262", message, help=f"it supports: {known}"))
    return found


def ops_used(module: Any) -> set[str]:
    """Names of the specc ops in a step graph and its loop bodies."""
    found: set[str] = set()
    for item in modules(module):
        for node in item.graph.nodes:
            declared = info(node.target)
            if declared is not None:
                found.add(declared.name)
    return found


def _setting(spec: Mapping[str, Any], key: str) -> str | None:
    value: Any = spec
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return None if value is None else str(value)
