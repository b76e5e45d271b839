"""The contracts of Ascend operators, checked on FX graphs before anything is generated. One file per op family."""

from __future__ import annotations

from specc.backends.ascend.contracts.checker import check_contracts
from specc.backends.ascend.contracts.context import Meaning, Stage

__all__ = ["Meaning", "Stage", "check_contracts"]
