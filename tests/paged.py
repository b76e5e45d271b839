"""Sequences whose pages interleave in pools, and the caches that tables name: what ops on pages are tested with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from specc.ir import ops


@dataclass(frozen=True, slots=True)
class Pages:
    """A table, the pages' owners, and lengths of sequences with pages for `nodes` rows behind them."""

    table: torch.Tensor
    owner: torch.Tensor
    length: torch.Tensor
    nodes: int
    page: int

    def pool(self, *row: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Random pages [P,page,*row]."""
        generator = torch.Generator().manual_seed(seed)
        made = torch.randn(len(self.owner), self.page, *row, generator=generator, dtype=torch.float64)
        return made.to(dtype)

    def caches(self, pool: torch.Tensor) -> torch.Tensor:
        """What the table names [B,blocks*page,*row]: a copy."""
        return pool[self.table.long()].flatten(1, 2)

    def untouched(self, pool: torch.Tensor) -> torch.Tensor:
        """The rows of a pool that no sequence holds, but for nobody's page."""
        free = self.owner == 0
        free[0] = False
        return pool[free]


@st.composite
def pages(draw: st.DrawFn, sizes: tuple[int, ...] = (1, 2, 3, 5, 8)) -> Pages:
    """Sequences that grew in turns, so that their pages lie in any order."""
    batch, nodes, page = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.sampled_from(sizes))
    longest = nodes + draw(st.integers(0, 3 * page))
    blocks = -(-longest // page)
    table = torch.zeros(batch, blocks, dtype=torch.int32)
    owner = torch.zeros(batch * (blocks + 1), dtype=torch.int32)
    length = torch.zeros(batch, dtype=torch.int64)
    for _ in range(draw(st.integers(1, 3))):
        more = torch.tensor([draw(st.integers(0, longest - nodes - int(have))) for have in length])
        ops.take_pages_(table, owner, length, more, 0, page)
        length = length + more
    ops.take_pages_(table, owner, length, None, nodes, page)
    return Pages(table, owner, length, nodes, page)


def well_formed(table: torch.Tensor, owner: torch.Tensor) -> None:
    """Every page is free or held once, by its owner; a sequence's entries are a prefix of its line."""
    held = [int(number) for line in table for number in line if number > 0]
    free = [number for number in range(1, len(owner)) if int(owner[number]) == 0]
    assert sorted(held + free) == list(range(1, len(owner)))
    assert int(owner[0]) == 0
    for row, line in enumerate(table):
        mine = [int(number) for number in line if number > 0]
        assert line[: len(mine)].tolist() == mine
        assert owner[mine].tolist() == [row + 1] * len(mine)


def check_taking(case: Pages, take: Any, data: st.DataObject) -> None:
    """Pages for drawn numbers of further rows: as many as are lacking, the lowest, and none is taken away."""
    room = case.table.shape[1] * case.page - case.length
    count = torch.tensor([data.draw(st.integers(0, int(most))) for most in room])
    fixed = data.draw(st.booleans())
    rows = min(int(room.min()), 4)
    table, owner = case.table.clone(), case.owner.clone()
    take(table, owner, case.length, None if fixed else count, rows, case.page)
    well_formed(table, owner)
    wanted = case.length + (rows if fixed else count)
    for row, line in enumerate(table):
        old = case.table[row][case.table[row] > 0]
        assert torch.equal(line[: len(old)], old)
        assert int((line > 0).sum()) == max(len(old), -(-int(wanted[row]) // case.page))
    free = torch.nonzero(case.owner[1:] == 0).flatten() + 1
    new = sorted(set(table.flatten().tolist()) - set(case.table.flatten().tolist()))
    assert new == free[: len(new)].tolist()


def check_moving(case: Pages, functions: Mapping[str, Any], data: st.DataObject, dtype: torch.dtype) -> None:
    """Rows appended and moved through the table are those of the caches that it names, and of nobody else's."""
    pool = case.pool(2, 3, dtype=dtype)
    rows = case.pool(2, 3, seed=1, dtype=dtype)[0, :1].expand(len(case.table), case.nodes, 2, 3).clone()
    rows += torch.arange(case.nodes, dtype=dtype).reshape(1, -1, 1, 1)
    count = torch.tensor([data.draw(st.integers(0, case.nodes)) for _ in case.table])
    caches = case.caches(pool)
    expected, made = caches.clone(), pool.clone()
    given = () if data.draw(st.booleans()) else (count,)
    ops.append_rows_(expected, rows, case.length, *given)
    functions["append_pages_"](made, case.table, rows, case.length, *given)
    held = case.table > 0
    shown = held.repeat_interleave(case.page, 1)
    assert torch.equal(case.caches(made)[shown], expected[shown])
    assert torch.equal(case.untouched(made), case.untouched(pool))
    path = torch.zeros(len(case.table), case.nodes, dtype=torch.int64)
    for row, kept in enumerate(count.tolist()):
        path[row, :kept] = torch.tensor(sorted(data.draw(st.permutations(range(case.nodes)))[:kept]))
    fast = data.draw(st.booleans())
    ops.commit_path_(expected, path, case.length, count, fast)
    functions["commit_pages_"](made, case.table, path, case.length, count, fast)
    assert torch.equal(case.caches(made)[shown], expected[shown])
    assert torch.equal(case.untouched(made), case.untouched(pool))
