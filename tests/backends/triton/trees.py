"""Random operands of the delta rule for kernels: bfloat16 rows, trees with padding, and the errors of results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st

from specc.backends.triton.ops.delta_variants import variant
from specc.ir import ops

BOUND = 2e-6
"""Of ||beta v|| for u, of ||o|| for o before it is rounded (design 09, "Numerics")."""


@dataclass(frozen=True, slots=True)
class Operands:
    """As `specc.ir.ops.delta_rule_verify`; q, k bfloat16, v float32 with bfloat16 values, so that o is not rounded."""

    state: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    parent_row: torch.Tensor
    mask: torch.Tensor
    valid: torch.Tensor

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """state, q, k, v, g, beta."""
        return self.state, self.q, self.k, self.v, self.g, self.beta

    @property
    def tree(self) -> tuple[torch.Tensor, torch.Tensor]:
        """parent_row, mask."""
        return self.parent_row, self.mask

    @property
    def wide(self) -> tuple[torch.Tensor, ...]:
        """The rows in float64."""
        return tuple(x.double() for x in self.rows)

    def with_(self, **changes: torch.Tensor) -> Operands:
        """A copy with other tensors."""
        return replace(self, **changes)


def operands(
    parents: list[list[int]],
    real: list[int],
    heads: tuple[int, int] = (1, 1),
    sizes: tuple[int, int] = (32, 16),
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
) -> Operands:
    """Random operands of trees given by parent rows, with (H, HV) heads and (K, V); nodes from real[b] on: padding."""
    generator = torch.Generator().manual_seed(seed)
    batch, nodes = len(parents), len(parents[0])

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    valid = torch.arange(nodes) < torch.tensor(real).unsqueeze(1)
    parent_row = torch.where(valid, torch.tensor(parents), 0)
    return Operands(
        rand(batch, heads[1], sizes[1], sizes[0]),
        rand(batch, nodes, heads[0], sizes[0]).to(dtype),
        rand(batch, nodes, heads[0], sizes[0]).to(dtype),
        rand(batch, nodes, heads[1], sizes[1]).to(torch.bfloat16).float(),
        -rand(batch, nodes, heads[1]).abs(),
        2 * torch.sigmoid(rand(batch, nodes, heads[1])),
        parent_row,
        ops.ancestor_mask(parent_row, valid),
        valid,
    )


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 7, max_batch: int = 2) -> Operands:
    """Trees and forests with padding nodes, grouped heads, several sizes."""
    batch, nodes = draw(st.integers(1, max_batch)), draw(st.integers(1, max_nodes))
    parents = [[draw(st.integers(0, i)) for i in range(nodes)] for _ in range(batch)]
    real = [draw(st.integers(1, nodes)) for _ in range(batch)]
    heads = draw(st.sampled_from([(1, 1), (1, 2), (2, 2)]))
    sizes = draw(st.sampled_from([(32, 16), (16, 16), (64, 16)]))
    return operands(parents, real, heads, sizes, draw(st.integers(0, 1 << 20)))


def relative(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> float:
    """||a - b|| / ||scale||; NaN is not small."""
    return float((a.double() - b).norm() / scale.norm())


def check(
    case: Operands,
    o: torch.Tensor,
    u: torch.Tensor,
    expected: tuple[torch.Tensor, torch.Tensor],
    bound: float = BOUND,
) -> None:
    """o and u of the valid nodes within the bounds of float64's."""
    keep = case.valid
    scale = (case.beta.unsqueeze(-1) * case.v).double()
    assert relative(u[keep], expected[1][keep], scale[keep]) <= bound
    assert relative(o[keep], expected[0][keep], expected[0][keep]) <= bound


def exact(case: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, u) in float64 by the reference's own recurrence."""
    o, u = ops.delta_rule_verify(*case.wide, *case.tree, "serial")
    return o, u


def called(op: str, case: Operands, schedule: str, **more: Any) -> tuple[torch.Tensor, ...]:
    """What the function that stands for an op under a schedule makes of a case's operands."""
    names = ("state", "q", "k", "v", "g", "beta", "parent_row", "mask")
    arguments = {name: getattr(case, name) for name in names} | {"schedule": schedule} | more
    found = variant(op, arguments)
    assert found is not None
    result: tuple[torch.Tensor, ...] = found.function(*(arguments[name] for name in found.operands))
    return result
