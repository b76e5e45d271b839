"""States whose caches are pages of pools: as caches, to be compared; and I10, whose every page is.

`block_table` [B,blocks] names the pages of every row in order (0: none), `page_owner` [P] says whose a page is: row +
1, or 0 for a free one. Pools are [L,P,page,…], which is read here as caches [L,B,blocks*page,…].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specc.check import slots
from specc.check.findings import Checks
from specc.testing import invariants as static

State = dict[str, Tensor]
TABLE, OWNER = "block_table", "page_owner"


def is_pool(name: str, state: State) -> bool:
    """Whether all rows share a slot in this state; a drafter's caches have rows of their own."""
    return TABLE in state and slots.role(name) in slots.CACHES


def contiguous(state: State) -> State:
    """The state with caches [L,B,C,…] in place of pools, and without table and owners; others are as they are."""
    if TABLE not in state:
        return state
    table = state[TABLE].long()
    made = {name: value[:, table].flatten(2, 3) if is_pool(name, state) else value for name, value in state.items()}
    return {name: value for name, value in made.items() if name not in (TABLE, OWNER)}


def release(state: State, rows: Sequence[int]) -> None:
    """Take these rows' pages away, in place."""
    for row in rows:
        state[OWNER][state[TABLE][row].long()] = 0
        state[TABLE][row] = 0


def repeated(state: State, rows: int, fresh: State) -> State:
    """The one row of a state `rows` times over, in the pools of the `fresh` state of that many rows."""
    held = state[TABLE][0][state[TABLE][0] > 0].long()
    pages = 1 + torch.arange(rows * len(held)).reshape(rows, len(held))
    made = {name: value.clone() for name, value in fresh.items() if is_pool(name, fresh) or name in (TABLE, OWNER)}
    made[TABLE][:, : len(held)] = pages.to(made[TABLE].dtype)
    made[OWNER][pages] = (1 + torch.arange(rows)).to(made[OWNER].dtype)[:, None]
    for name, value in state.items():
        if is_pool(name, state):
            made[name][:, pages] = value[:, held][:, None]
    return made


def unread(state: State, first: Tensor, pool: Tensor) -> Tensor:
    """bool [P,page]: rows of a pool at or beyond first [B] of their row of the batch, or of no row at all."""
    pages, page = pool.shape[1:3]
    made = torch.ones(pages, page, dtype=torch.bool)
    for row, table in enumerate(state[TABLE].long()):
        place = torch.arange(len(table) * page).reshape(len(table), page)
        made[table] &= place >= first[row]
    made[0] = True
    return made


def check_pages(checks: Checks, where: str, state: State) -> None:
    """I10: every page is free or held once, by the row that owns it, and rows hold pages for what is committed."""
    if TABLE not in state or not checks.wants("I10"):
        return
    table, owner = state[TABLE], state[OWNER]
    page = next(value.shape[2] for name, value in state.items() if is_pool(name, state))
    held = [[int(number) for number in row if number > 0] for row in table]
    with checks.check("I10", where):
        free = (torch.nonzero(owner[1:] == 0).flatten() + 1).tolist()
        static.check_blocks(range(1, len(owner)), [number for row in held for number in row], free)
    wrong = None if int(owner[0]) == 0 else "page 0 is owned"
    for row, pages in enumerate(held):
        if table[row, : len(pages)].tolist() != pages:
            wrong = f"row {row} holds {table[row].tolist()}, with gaps"
        elif any(int(owner[number]) != row + 1 for number in pages):
            wrong = f"row {row} holds {pages}, which {owner[pages].tolist()} own"
        elif len(pages) * page < int(state["length"][row]):
            wrong = f"row {row} holds {len(pages)} pages of {page} for {int(state['length'][row])} rows"
    checks.require("I10", where, wrong)
