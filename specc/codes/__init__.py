"""Every diagnostic code with its title, explanation and a minimal example that raises it.

Ranges: SPC0xx YAML and loading, SPC1xx meaning of the spec, SPC2xx refused at compile time, SPC3xx index
analysis, IR and verifier, SPC4xx checkpoint, fetch and run, SPC5xx check and the contracts
of Ascend operators, SPC9xx internal. A new code is one entry in the file of its range.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from specc.codes.ascend import ASCEND_CODES
from specc.codes.check import CHECK_CODES
from specc.codes.checkpoint import CHECKPOINT_CODES
from specc.codes.compile import COMPILE_CODES
from specc.codes.entry import Code
from specc.codes.internal import INTERNAL_CODES
from specc.codes.ir import IR_CODES
from specc.codes.loading import LOADING_CODES
from specc.codes.semantic import SEMANTIC_CODES
from specc.codes.trace import TRACE_CODES
from specc.codes.train import TRAIN_CODES
from specc.codes.tune import TUNE_CODES

__all__ = ["CODES", "Code"]


def _registry(*groups: tuple[Code, ...]) -> Mapping[str, Code]:
    table: dict[str, Code] = {}
    for group in groups:
        for entry in group:
            if entry.code in table:
                raise ValueError(f"diagnostic code {entry.code} is declared twice")
            table[entry.code] = entry
    return MappingProxyType(dict(sorted(table.items())))


CODES: Mapping[str, Code] = _registry(
    LOADING_CODES,
    SEMANTIC_CODES,
    COMPILE_CODES,
    IR_CODES,
    CHECKPOINT_CODES,
    TRAIN_CODES,
    TUNE_CODES,
    TRACE_CODES,
    CHECK_CODES,
    ASCEND_CODES,
    INTERNAL_CODES,
)
