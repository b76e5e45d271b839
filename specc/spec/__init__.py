"""The spec language: YAML text to a typed, resolved Spec with source spans, or every error at once."""

from __future__ import annotations

from specc.spec.fingerprint import fingerprint
from specc.spec.load import LoadedSpec, from_mapping, load, loads
from specc.spec.model import Spec, to_mapping
from specc.spec.source import SourceMap
from specc.spec.unsupported import unsupported

__all__ = [
    "LoadedSpec",
    "SourceMap",
    "Spec",
    "fingerprint",
    "from_mapping",
    "load",
    "loads",
    "to_mapping",
    "unsupported",
]
