"""What the optional rung compiles, and what is expected of each: the delta-rule tile in two sizes, tree attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
DEVICE = "Ascend910B3"


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel with its constants bound. `fits`: whether its tiles fit the unified buffer with double buffering."""

    name: str
    kernel: str
    signature: Mapping[str, str]
    constants: Mapping[str, int]
    fits: bool = True

    def request(self) -> dict[str, Any]:
        """The case for `lower_kernel`."""
        file = str(KERNELS / f"{self.kernel}.py")
        return {
            "file": file,
            "kernel": self.kernel,
            "signature": dict(self.signature),
            "constants": dict(self.constants),
        }


_GDN = MappingProxyType(
    dict.fromkeys(("states", "q", "k", "v", "g", "beta", "out"), "*fp32")
    | {"parent_row": "*i32", "N": "i32", "H": "i32", "HV": "i32"}
)
_ATTENTION = MappingProxyType(
    dict.fromkeys(("q", "k_cache", "v_cache", "out"), "*fp16")
    | {"masked": "*i8", "scale": "fp32", "N": "i32", "C": "i32", "HKV": "i32"}
)

CASES = (
    Case("gdn tile 64 x 128, fp32", "gdn_tile", _GDN, MappingProxyType({"K": 128, "V": 128, "BV": 64})),
    Case("gdn tile 128 x 128, fp32", "gdn_tile", _GDN, MappingProxyType({"K": 128, "V": 128, "BV": 128}), fits=False),
    Case(
        "tree attention, 16 nodes of 4 heads of 128, fp16",
        "tree_attention",
        _ATTENTION,
        MappingProxyType({"G": 4, "D": 128, "BM": 64, "BN": 128}),
    ),
)
