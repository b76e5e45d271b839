"""Geometries, random operands and trees for the benchmarks of the gated delta rule's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specc.backends.triton.ops.delta_launch import Pending, Rows
from specc.bench.gpu_timing import sets_for
from specc.ir import ops

BOUND = 2e-6
"""Of u relative to beta v, and of a state; o is held to twice as much before it is rounded."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """H, HV, K, V of a model's recurrent layers, and how many there are."""

    name: str
    heads: int
    value_heads: int
    keys: int
    values: int
    layers: int

    def state_bytes(self, batch: int) -> int:
        """Of one layer's float32 states."""
        return 4 * batch * self.value_heads * self.keys * self.values


GDN = Geometry("gdn-1.3b", 8, 8, 256, 256, 24)
QWEN = Geometry("qwen3-next", 16, 32, 128, 128, 36)
GEOMETRIES = (GDN, QWEN)
BATCHES = (1, 8, 32)


@dataclass(frozen=True, slots=True)
class Inputs:
    """A state [B,HV,V,K] float32 and the rows of a call; see `specc.ir.ops.delta_rule_verify`."""

    state: Tensor
    rows: Rows

    @property
    def wide(self) -> tuple[Tensor, ...]:
        """state, q, k, v, g, beta in float64."""
        return tuple(x.double() for x in (self.state, *self.rows))

    @property
    def scale(self) -> Tensor:
        """beta v: what errors of u are relative to."""
        return self.rows.beta.unsqueeze(-1) * self.rows.v

    def part(self, tokens: slice = slice(None), batch: slice = slice(None)) -> Inputs:
        """Some tokens of some sequences; the state is shared, not copied."""
        return Inputs(self.state[batch], Rows(*(x[batch, tokens] for x in self.rows)))


def inputs(geometry: Geometry, batch: int, nodes: int, seed: int = 0) -> Inputs:
    """Random operands: gates as models have them (slow and fast heads), correlated keys."""
    made = torch.Generator("cuda").manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=made)

    base = rand(batch, 1, geometry.heads, geometry.keys)
    shape = (batch, nodes, geometry.heads, geometry.keys)
    speed = torch.logspace(-3, 0.5, geometry.value_heads, device="cuda")
    state = rand(batch, geometry.value_heads, geometry.values, geometry.keys)
    return Inputs(
        state,
        Rows(
            (rand(*shape) + base).bfloat16(),
            (rand(*shape) + base).bfloat16(),
            rand(batch, nodes, geometry.value_heads, geometry.values).bfloat16(),
            -rand(batch, nodes, geometry.value_heads).abs() * speed,
            torch.sigmoid(rand(batch, nodes, geometry.value_heads)),
        ),
    )


def many_inputs(geometry: Geometry, batch: int, nodes: int) -> list[Inputs]:
    """As many input sets as exceed the cache twice over."""
    return [inputs(geometry, batch, nodes, seed) for seed in range(sets_for(geometry.state_bytes(batch)))]


def pending_of(geometry: Geometry, one: Inputs, waiting: int, window: int, rows: int = 16) -> Pending:
    """Factors of `waiting` random tokens, all pending, among `rows` rows."""
    batch = one.state.shape[0]
    before = inputs(geometry, batch, rows, 99).rows
    _, u, _ = ops.delta_rule(one.state, *before)
    count = torch.full((batch,), waiting, dtype=torch.int64, device="cuda")
    return Pending(before.k, u, before.g, None, count, window)


def in_order(batch: int, size: int) -> Tensor:
    """The path of a chain: int64 [B,size]."""
    return torch.arange(size, device="cuda").expand(batch, -1).contiguous()


def folded(one: Inputs, pending: Pending) -> Tensor:
    """The state with its pending factors, float64."""
    wide = [x.double() for x in (one.state, pending.k, pending.u, pending.g)]
    path = in_order(one.state.shape[0], pending.k.shape[1])
    return ops.delta_rule_commit(*wide, path, pending.count, "steps")


def random_tree(batch: int, nodes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """parent_row [B,N] and mask [B,N,N] of random trees that go deep more often than wide."""
    made = torch.Generator().manual_seed(seed)
    rows = [[max(0, i - int(3 * torch.rand(1, generator=made) ** 2 * 2)) for i in range(nodes)] for _ in range(batch)]
    return tree_of(rows)


def tree_of(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """parent_row and mask on the device from lists."""
    parent_row = torch.tensor(rows)
    mask = ops.ancestor_mask(parent_row, torch.ones_like(parent_row, dtype=torch.bool))
    return parent_row.cuda(), mask.cuda()


def comb(teeth: int, length: int) -> list[int]:
    """Branches of one length from the context: parent rows."""
    return [0 if i % length == 0 else i for i in range(teeth * length)]


def ranked(top: int, depth: int, nodes: int, first: float = 0.7) -> list[int]:
    """Parent rows of a root and the likeliest nodes below it: each has `top` children, the one of rank r taken with
    probability `first` (1 - first)^r; of all nodes down to `depth` the likeliest, in the order of their levels (as
    EAGLE-2 ranks a draft again)."""
    nodes -= 1
    level, found = [(1.0, -1)], list[tuple[float, int, int]]()
    for at in range(depth):
        grown = [(p * first * (1 - first) ** rank, above) for p, above in level for rank in range(top)]
        grown = sorted(grown, reverse=True)[:nodes]
        level = []
        for p, above in grown:
            level.append((p, len(found)))
            found.append((p, at, above))
    kept = sorted(sorted(range(len(found)), key=lambda i: (-found[i][0], i))[:nodes])
    place = {node: i for i, node in enumerate(kept)}
    return [0, *(1 if found[node][2] < 0 else place[found[node][2]] + 2 for node in kept)]


def exact(one: Inputs, parent_row: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """(o, u) in float64: token by token, or in the tree form for big batches of trees."""
    schedule = "serial" if one.state.numel() <= 1 << 22 or mask is None else "tree"
    o, u = ops.delta_rule_verify(*one.wide, parent_row, mask, schedule)
    return o, u
