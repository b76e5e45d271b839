"""The fast forms that generated modules carry equal the ops' reference implementations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from specc.backends.reference.kernels import KERNELS
from specc.ir import ops
from specc.ir.op import REGISTRY

CAPACITY = 24
REFERENCES = {declared.name: declared.reference for declared in REGISTRY.values()}


@st.composite
def attention_case(draw: st.DrawFn) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    batch, rows, group, shared = draw(st.tuples(*[st.integers(1, 3)] * 4))
    rows = draw(st.sampled_from([1, rows, 6]))
    length = torch.tensor(draw(st.lists(st.integers(0, CAPACITY - 8), min_size=batch, max_size=batch)))

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    mask = torch.rand(batch, rows, rows, generator=generator) < 0.5
    mask = mask | torch.eye(rows, dtype=torch.bool)
    return {
        "q": rand(batch, rows, group * shared, 4),
        "k_cache": rand(batch, CAPACITY, shared, 4),
        "v_cache": rand(batch, CAPACITY, shared, 4),
        "length": length,
        "k_new": rand(batch, rows, shared, 4),
        "v_new": rand(batch, rows, shared, 4),
        "mask": mask.tril(),
        "positions": length.unsqueeze(1) + torch.arange(rows),
        "scale": 0.5,
        "window": draw(st.sampled_from([0, 0, 1, 3, 100])),
        "fused": draw(st.booleans()),
    }


def written(case: dict[str, Any]) -> dict[str, Any]:
    """The case with its new rows in the cache's tail."""
    caches = {name: case[name].clone() for name in ("k_cache", "v_cache")}
    for which in ("k", "v"):
        KERNELS["append_rows_"](caches[f"{which}_cache"], case[f"{which}_new"], case["length"])
    return {name: value for name, value in case.items() if name not in ("k_new", "v_new")} | caches


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@given(attention_case())
def test_tree_attention_forms_agree(case: dict[str, Any]) -> None:
    wanted = REFERENCES["tree_attention"](**case)
    close(KERNELS["tree_attention"](**case), wanted)
    close(REFERENCES["tree_attention_cached"](**written(case)), wanted)
    close(KERNELS["tree_attention_cached"](**written(case)), wanted)


@given(attention_case(), st.integers(0, 2))
def test_causal_attention_forms_agree(case: dict[str, Any], offset: int) -> None:
    case = {name: value for name, value in case.items() if name != "mask"}
    case["offset"] = 0
    wanted = REFERENCES["causal_attention"](**case)
    close(KERNELS["causal_attention"](**case), wanted)
    close(REFERENCES["causal_attention_cached"](**written(case)), wanted)
    close(KERNELS["causal_attention_cached"](**written(case)), wanted)
    later = written(case)
    first = min(offset, later["q"].shape[1] - 1)
    part = later | {"q": later["q"][:, first:], "positions": later["positions"][:, first:], "offset": first}
    close(KERNELS["causal_attention_cached"](**part), wanted[:, first:])


@pytest.mark.parametrize("fused", [True, False])
def test_only_fused_attention_is_pytorchs_fused_one(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are equal but for rounding, so what runs has to be seen."""
    calls: list[str] = []
    plain = F.scaled_dot_product_attention

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append("fused")
        return plain(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    row, cache, mask = torch.ones(1, 2, 2, 4), torch.ones(1, 8, 2, 4), torch.ones(1, 2, 2, dtype=torch.bool).tril()
    length, positions = torch.tensor([3]), torch.tensor([[3, 4]])
    for forms in (REFERENCES, KERNELS):
        forms["tree_attention_cached"](row, cache, cache, length, mask, positions, 0.5, 0, fused)
        forms["tree_attention"](row, cache, cache, length, row, row, mask, positions, 0.5, 0, fused)
        assert calls == ["fused", "fused"] * fused
        calls.clear()


@st.composite
def path_case(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    batch, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    paths, counts = [], []
    for _ in range(batch):
        rest = draw(st.sets(st.integers(1, nodes - 1), max_size=nodes - 1)) if nodes > 1 else set()
        path = [0, *sorted(rest)]
        counts.append(draw(st.integers(0, len(path))))
        paths.append(path + [0] * (nodes - len(path)))
    start = draw(st.lists(st.integers(0, CAPACITY - nodes), min_size=batch, max_size=batch))
    cache = torch.arange(batch * CAPACITY * 2, dtype=torch.float64).reshape(batch, CAPACITY, 2)
    return {"cache": cache, "path": torch.tensor(paths), "start": torch.tensor(start), "count": torch.tensor(counts)}


@given(path_case(), st.booleans())
def test_commit_in_place_is_a_gather(case: dict[str, torch.Tensor], fast: bool) -> None:
    """I8, also where source and destination overlap; rows outside [start, start + count) are untouched."""
    nodes = case["path"].shape[1]
    rows = case["start"].unsqueeze(1) + torch.arange(nodes)
    candidate = case["cache"][torch.arange(len(rows)).unsqueeze(1), rows]
    wanted = ops.commit_path(case["cache"], candidate, case["path"], case["start"], case["count"], fast)
    assert torch.equal(
        KERNELS["commit_path"](case["cache"], candidate, case["path"], case["start"], case["count"], fast), wanted
    )
    for form in (REFERENCES["commit_path_"], KERNELS["commit_path_"]):
        cache = case["cache"].clone()
        form(cache, case["path"], case["start"], case["count"], fast)
        assert torch.equal(cache, wanted)


@given(path_case())
def test_append_forms_agree(case: dict[str, torch.Tensor]) -> None:
    rows = -torch.ones(*case["path"].shape, 2, dtype=torch.float64)
    wanted = ops.append_rows(case["cache"], rows, case["start"], case["count"])
    assert torch.equal(KERNELS["append_rows"](case["cache"], rows, case["start"], case["count"]), wanted)
    for form in (REFERENCES["append_rows_"], KERNELS["append_rows_"]):
        cache = case["cache"].clone()
        form(cache, rows, case["start"], case["count"])
        assert torch.equal(cache, wanted)


def test_buffer_ops_pass_opcheck() -> None:
    cache, rows = torch.zeros(2, 9, 3, 4), torch.ones(2, 2, 3, 4)
    start, count = torch.tensor([1, 3]), torch.tensor([2, 0])
    path = torch.tensor([[0, 1], [0, 2]])
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.append_rows_, (cache, rows, start, count), test_utils=checks)
    torch.library.opcheck(ops.commit_path_, (cache, path, start, count, True), test_utils=checks)
    q, positions = torch.ones(2, 2, 3, 4), start.unsqueeze(1) + torch.arange(2)
    mask = torch.ones(2, 2, 2, dtype=torch.bool).tril()
    arguments = (q, cache, cache, start, mask, positions, 0.5, 0)
    torch.library.opcheck(ops.tree_attention_cached, arguments, test_utils=checks)
    arguments = (q, cache, cache, start, positions, 0, 0.5, 0)
    torch.library.opcheck(ops.causal_attention_cached, arguments, test_utils=checks)
