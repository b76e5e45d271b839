"""Operands of a verify as kernels take them: pointers, strides, sizes, and which of them are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from specc.backends.triton.launch.core import as_bytes, power_of_two


@dataclass(frozen=True, slots=True)
class Gate:
    """Gates computed in the kernel: raw a in place of g and b in place of beta; beta = scale sigmoid(b), scale 1 or 2.

    a_log, dt_bias [HV]; g_out [B,N,HV] float32 gets the log decays, which factors need.
    """

    a_log: torch.Tensor
    dt_bias: torch.Tensor
    g_out: torch.Tensor
    scale: int = 1


@dataclass(frozen=True, slots=True)
class Rows:
    """state [B,HV,V,K] float32 contiguous; q, k [B,N,H,K], v [B,N,HV,V] bfloat16 or float32, g, beta [B,N,HV].

    The rows may be parts of wider tensors: heads and columns contiguous, any stride of sequences and nodes. `valid`
    bool [B,N]: what is not valid is padding, gets zeros and has no effect. `gate`: see `Gate`.
    """

    state: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    valid: torch.Tensor | None = None
    gate: Gate | None = None

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """B, N, H, HV, K, V."""
        batch, nodes, heads, keys = self.k.shape
        return batch, nodes, heads, self.v.shape[2], keys, self.v.shape[3]

    @property
    def tile(self) -> int:
        """T: nodes padded to a tile."""
        return power_of_two(self.sizes[1], 16)

    def arguments(self) -> dict[str, Any]:
        """Arguments that all kernels over rows share."""
        _, nodes, heads, value_heads, _, _ = self.sizes
        gate = self.gate
        return {
            **{name: getattr(self, name) for name in ("q", "k", "g", "beta")},
            "valid": as_bytes(self.valid, self.state),
            "a_log": self.state if gate is None else gate.a_log,
            "dt_bias": self.state if gate is None else gate.dt_bias,
            "g_out": self.state if gate is None else gate.g_out,
            "N": nodes,
            "H": heads,
            "HV": value_heads,
            **{f"stride_{name}b": x.stride(0) for name, x in (("q", self.q), ("k", self.k), ("g", self.g))},
            **{f"stride_{name}t": x.stride(1) for name, x in (("q", self.q), ("k", self.k), ("g", self.g))},
            "K": self.sizes[4],
            "VALID": self.valid is not None,
            "GATE": 0 if gate is None else gate.scale,
        }

    def value_arguments(self) -> dict[str, Any]:
        """And those of kernels that see values."""
        return {"state": self.state, "v": self.v, "V": self.sizes[5]} | {
            "stride_vb": self.v.stride(0),
            "stride_vt": self.v.stride(1),
        }

    def outputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for o in v's dtype and u in the state's, [B,N,HV,V]."""
        return self.v.new_empty(self.v.shape), self.v.new_empty(self.v.shape, dtype=self.state.dtype)


@dataclass(frozen=True, slots=True)
class Pending:
    """Factors in front of a verify: raw k [B,R,H,K], u [B,R,HV,V], g [B,R,HV], of which the first count[b] along
    path[b] (int64 [B,P]; None: in order) are to be applied; sequences with count >= max(window, 1) are written."""

    k: torch.Tensor
    u: torch.Tensor
    g: torch.Tensor
    path: torch.Tensor | None
    count: torch.Tensor
    window: int


def pending_arguments(pending: Pending | None, unused: torch.Tensor) -> dict[str, Any]:
    """Arguments of kernels that apply pending factors."""
    if pending is None:
        none = dict.fromkeys(("pending_k", "pending_u", "pending_g", "path", "count"), unused)
        return none | {"window": 0, "P": 0, "ROWS": 0, "PATH": False}
    rows = pending.k.shape[1]
    return {
        "pending_k": pending.k,
        "pending_u": pending.u,
        "pending_g": pending.g,
        "path": unused if pending.path is None else pending.path,
        "count": pending.count,
        "window": pending.window,
        "P": rows if pending.path is None else pending.path.shape[1],
        "ROWS": rows,
        "PATH": pending.path is not None,
    }


def mask_arguments(mask: torch.Tensor | None, unused: torch.Tensor) -> dict[str, Any]:
    """An ancestor mask: none (a chain), bool [B,N,N], or int64 bits [B,N] (bit j of row i: j is an ancestor or i)."""
    kind = 0 if mask is None else 1 if mask.dim() == 3 else 2
    return {"mask": as_bytes(mask, unused), "MASK": kind}
