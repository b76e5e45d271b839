"""Ops on pages, in their reference form and in the reference backend's, against the same ops on contiguous caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.backends.reference import kernels
from specc.ir import ops
from specc.ir.op import REGISTRY
from tests.paged import Pages, check_moving, check_taking, pages, well_formed

NAMES = ("take_pages_", "append_pages_", "commit_pages_", "tree_attention_paged", "causal_attention_paged")
OPS = {info.name: info.reference for info in REGISTRY.values() if info.name in NAMES}
KERNELS = {name: kernels.KERNELS[name] for name in NAMES}
BOTH = pytest.mark.parametrize("functions", [OPS, KERNELS], ids=["ops", "kernels"])


@BOTH
@given(case=pages(), data=st.data())
def test_pages_are_taken_as_far_as_they_are_lacking(
    functions: Mapping[str, Any], case: Pages, data: st.DataObject
) -> None:
    well_formed(case.table, case.owner)
    check_taking(case, functions["take_pages_"], data)


@BOTH
@given(case=pages(), data=st.data())
def test_rows_move_as_in_the_caches_that_the_table_names(
    functions: Mapping[str, Any], case: Pages, data: st.DataObject
) -> None:
    check_moving(case, functions, data, torch.float64)


@BOTH
@given(case=pages(), seed=st.integers(0, 99), window=st.sampled_from([0, 2]), fused=st.booleans())
def test_attention_sees_what_the_table_names(
    functions: Mapping[str, Any], case: Pages, seed: int, window: int, fused: bool
) -> None:
    keys, values = case.pool(2, 4, seed=seed), case.pool(2, 4, seed=seed + 1)
    batch, nodes = len(case.table), case.nodes
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, nodes, 4, 4, generator=generator, dtype=torch.float64)
    mask = (torch.rand(batch, nodes, nodes, generator=generator) < 0.5) | torch.eye(nodes, dtype=torch.bool)
    positions = case.length[:, None] + torch.arange(nodes)
    rest = (positions, 0.3, window, fused)
    for name, own in (("tree", (mask,)), ("causal", ())):
        ends = (*own, *rest) if own else (positions, 0, *rest[1:])
        cached = getattr(ops, f"{name}_attention_cached")
        expected = cached(q, case.caches(keys), case.caches(values), case.length, *ends)
        paged = functions[f"{name}_attention_paged"]
        made = paged(q, keys, values, case.table, case.length, *ends)
        torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
        # Rows of no sequence, and those of others, are not seen: whatever stands there changes no bit.
        other = [torch.full_like(pool, 1e30) for pool in (keys, values)]
        for row in range(batch):
            mine = case.table[row][case.table[row] > 0].long()
            for pool, poisoned in zip((keys, values), other, strict=True):
                poisoned.fill_(1e30)
                poisoned[mine] = pool[mine]
            alone = paged(q, *other, case.table, case.length, *ends)
            assert torch.equal(alone[row], made[row])


@BOTH
def test_a_pool_that_has_no_page_left_says_so(functions: Mapping[str, Any]) -> None:
    table, owner = torch.zeros(2, 2, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    functions["take_pages_"](table, owner, torch.tensor([4, 2]), None, 0, 2)
    well_formed(table, owner)
    with pytest.raises(RuntimeError, match=r"no page is free for (row|sequence) 1, which holds 1"):
        functions["take_pages_"](table, owner, torch.tensor([4, 2]), torch.tensor([0, 1]), 0, 2)
