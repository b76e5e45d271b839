"""The identity of a resolved spec."""

from __future__ import annotations

import hashlib
import json

from specc.spec.model import Spec


def fingerprint(spec: Spec) -> str:
    """sha256 (hex) over canonical JSON of the resolved spec, without its description and its paths.

    Two specs with the same fingerprint compile to the same module: defaults written out, another key order, or
    a checkpoint instead of the same sizes written down make no difference.
    """
    mapping = spec.model_dump(mode="json")
    del mapping["description"]
    del mapping["target"]["checkpoint"]
    del mapping["draft"]["checkpoint"]
    text = json.dumps(mapping, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
