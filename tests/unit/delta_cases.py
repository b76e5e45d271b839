"""Random inputs of the delta rule: batches of trees with padding nodes, grouped heads, factors that are pending."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import strategies as st

from specc.ir import ops
from specc.testing.delta_oracles import Array, Token, delta_path, path_to

BY_STEPS = ("unscheduled", "replay", "serial", "hybrid")
SCHEDULES = (*BY_STEPS, "tree")


@dataclass(frozen=True, slots=True)
class Case:
    """Operands of a verify: state [B,HV,V,K], raw q, k [B,N,H,K], v [B,N,HV,V], g, beta [B,N,HV], parent_row [B,N]."""

    state: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    parent_row: torch.Tensor
    mask: torch.Tensor

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """q, k, v, g, beta."""
        return self.q, self.k, self.v, self.g, self.beta

    @property
    def nodes(self) -> int:
        """N."""
        return self.v.shape[1]

    def to(self, dtype: torch.dtype) -> Case:
        """The case with its numbers in another dtype."""
        names = ("state", "q", "k", "v", "g", "beta")
        return replace(self, **{name: getattr(self, name).to(dtype) for name in names})

    def take(self, part: slice) -> Case:
        """Some of the sequences."""
        return Case(*(getattr(self, name)[part] for name in self.__dataclass_fields__))

    def token(self, b: int, node: int) -> Token:
        """A node's operands in float64, for the oracle."""
        return Token(*(array(x[b, node]) for x in self.rows))

    def path_results(self, b: int, node: int, before: tuple[Token, ...] = ()) -> tuple[Array, Array, Array]:
        """(o, u, state) of a node by the recurrence along its own path, after the tokens `before` every path."""
        path = path_to(node, self.parent_row[b].tolist())
        return delta_path(array(self.state[b]), [*before, *(self.token(b, i) for i in path)])


def array(x: torch.Tensor) -> Array:
    """As float64 NumPy."""
    made: Array = x.to(torch.float64).numpy()
    return made


def random_rows(generator: torch.Generator, heads: tuple[int, int], sizes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """q, k, v, g, beta for (H, HV) heads and (B, T, K, V)."""
    batch, tokens, keys, values = sizes

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    shape = (batch, tokens, heads[1])
    return (
        rand(batch, tokens, heads[0], keys),
        rand(batch, tokens, heads[0], keys),
        rand(*shape, values),
        -rand(*shape).abs(),
        2 * torch.sigmoid(rand(*shape)),
    )


def tree_of(parent_rows: list[list[int]], real: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """parent_row and the ancestor mask; nodes at or beyond real[b] are padding."""
    parent_row = torch.tensor(parent_rows)
    valid = torch.arange(parent_row.shape[1]) < torch.tensor(real).unsqueeze(1)
    parent_row = torch.where(valid, parent_row, 0)
    return parent_row, ops.ancestor_mask(parent_row, valid)


@st.composite
def cases(draw: st.DrawFn, max_nodes: int = 9, max_batch: int = 3, chain: bool = False) -> Case:
    """Trees (also several from the context, and chains), float64."""
    batch, nodes = draw(st.integers(1, max_batch)), draw(st.integers(1, max_nodes))
    shared, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    keys, values = draw(st.sampled_from([1, 3, 8, 16])), draw(st.sampled_from([1, 2, 5, 8]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    heads = (shared, shared * group)
    rows = random_rows(generator, heads, (batch, nodes, keys, values))
    state = torch.randn(batch, heads[1], values, keys, dtype=torch.float64, generator=generator)
    parents, real = [], []
    for _ in range(batch):
        parents.append([i if chain else draw(st.integers(0, i)) for i in range(nodes)])
        real.append(nodes if chain else draw(st.integers(1, nodes)))
    return Case(state, *rows, *tree_of(parents, real))


@dataclass(frozen=True, slots=True)
class Pending:
    """Factors of R rows made by running a chain; the first count[b] along path[b] (None: in order) are pending.

    All other rows hold NaN and infinities. `tokens[b]`: the tokens whose factors are pending.
    """

    k: torch.Tensor
    u: torch.Tensor
    g: torch.Tensor
    path: torch.Tensor | None
    count: torch.Tensor
    tokens: tuple[tuple[Token, ...], ...]
    rows: tuple[torch.Tensor, ...]

    @property
    def operands(self) -> tuple[torch.Tensor | None, ...]:
        """pending_k, pending_u, pending_g, path, count."""
        return self.k, self.u, self.g, self.path, self.count


def poisoned(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """x [B,R,…] with NaN and infinity in the rows that are not kept, bool [B,R]."""
    out = x.clone()
    out[~kept] = float("nan")
    out[~kept, ..., :1] = float("inf")
    return out


@st.composite
def pendings(draw: st.DrawFn, case: Case, max_rows: int = 5) -> Pending:
    """Factors pending in front of a case, with the dtypes of the case."""
    batch, rows = case.state.shape[0], draw(st.integers(1, max_rows))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    count = torch.tensor(draw(st.lists(st.integers(0, rows), min_size=batch, max_size=batch)))
    heads = (case.k.shape[2], case.v.shape[2])
    sizes = (batch, rows, case.k.shape[-1], case.v.shape[-1])
    made = tuple(x.to(case.state.dtype) for x in random_rows(generator, heads, sizes))
    _, factors, _ = ops.delta_rule(case.state, *made)
    path, spare = None, 0
    if draw(st.booleans()):
        spare = draw(st.integers(0, 3))
        path = torch.stack([torch.randperm(rows + spare, generator=generator)[:rows] for _ in range(batch)])
    place = torch.arange(rows).expand(batch, -1) if path is None else path
    counted = torch.arange(rows) < count.unsqueeze(1)
    row = torch.arange(batch).unsqueeze(1)
    kept = torch.zeros(batch, rows + spare, dtype=torch.bool)
    kept[row, place] = counted

    def spread(x: torch.Tensor) -> torch.Tensor:
        wide = x.new_zeros(batch, rows + spare, *x.shape[2:])
        wide[row, place] = x
        return poisoned(wide, kept)

    tokens = tuple(tuple(Token(*(array(x[b, j]) for x in made)) for j in range(int(count[b]))) for b in range(batch))
    path = path if path is None else torch.where(counted, path, 0)
    return Pending(spread(made[1]), spread(factors), spread(made[3]), path, count, tokens, made)


@st.composite
def pending_cases(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> tuple[Case, Pending]:
    """A case with factors pending in front of it."""
    case = draw(cases(max_nodes=7)).to(dtype)
    return case, draw(pendings(case))


def oracle(case: Case, before: tuple[tuple[Token, ...], ...] | None = None) -> tuple[torch.Tensor, ...]:
    """o, u [B,N,HV,V] and the nodes' states [B,N,HV,V,K] by definition."""
    batch = case.state.shape[0]
    results = [
        [case.path_results(b, node, () if before is None else before[b]) for node in range(case.nodes)]
        for b in range(batch)
    ]
    return tuple(
        torch.from_numpy(np.stack([np.stack([node[part] for node in row]) for row in results])) for part in range(3)
    )


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    """Equal within 1e-12 of the largest value (float64)."""
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12 * max(1.0, float(b.abs().max())))
