"""Linear layers with fused norm, activation and residual: the kernel in the interpreter against the op's reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops.linear import (
    _ARRIVED,
    FLOAT32,
    LINEAR,
    MANY,
    MANY_ROWS,
    MOST_ROWS,
    SHARED,
    SMALL_ROWS,
    LinearConfig,
    boxed,
    fused_linear,
    in_pairs,
    launch_linear,
    linear_config,
    many,
    many_config,
)
from specc.ir import ops

BOUNDS = {torch.float32: 5e-7, torch.bfloat16: 4e-3, torch.float16: 5e-4}
"""||y - float64|| / ||float64||: float32 products; one rounding of y and one of x * norm_weight in the others."""
CONFIGS = (
    LinearConfig(bf=16, bk=32, kw=1, split=1, warps=4, stages=2),
    LinearConfig(bf=16, bk=64, kw=4, split=1, warps=4, stages=2),
    LinearConfig(bf=32, bk=32, kw=2, split=3, warps=4, stages=2),
    LinearConfig(bf=16, bk=32, kw=1, split=2, warps=4, stages=2),
    LinearConfig(bf=8, bk=256, kw=4, split=1, warps=4, stages=0),
    LinearConfig(bf=16, bk=256, kw=8, split=1, warps=8, stages=0),
    LinearConfig(bf=16, bk=32, kw=1, split=2, warps=4, stages=2, block=64, apart=True),
    LinearConfig(bf=16, bk=32, kw=1, split=1, warps=4, stages=2, early=True),
    LinearConfig(bf=16, bk=64, kw=2, split=1, warps=4, stages=2, early=True),
)


@dataclass(frozen=True, slots=True)
class Case:
    """Operands of one call, rows flattened."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    norm: torch.Tensor | None
    gated: bool
    residual: torch.Tensor | None

    def run(self, config: LinearConfig, rows: slice = slice(None)) -> torch.Tensor:
        """The kernel on some of the rows, into a poisoned result."""
        x, residual = self.x[rows], None if self.residual is None else self.residual[rows]
        y = torch.full((x.shape[0], self.weight.shape[0] // (1 + self.gated)), float("nan"), dtype=x.dtype)
        launch_linear(x, self.weight, self.bias, self.norm, 1e-6, self.gated, residual, y, config)
        return y

    def expected(self) -> torch.Tensor:
        """The op's reference in float64."""
        tensors = (self.x, self.weight, self.bias, self.norm, self.residual)
        x, weight, bias, norm, residual = (None if t is None else t.double() for t in tensors)
        return ops.fused_linear(x, weight, bias, norm, 1e-6, "silu_mul" if self.gated else "none", residual)


@st.composite
def cases(draw: st.DrawFn, dtype: torch.dtype | None = None, most_rows: int = 5) -> Case:
    made = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    kind = dtype or draw(st.sampled_from(list(BOUNDS)))
    rows, hidden, features = draw(st.integers(1, most_rows)), draw(st.integers(1, 150)), draw(st.integers(1, 50))
    gated = draw(st.booleans())
    owned = features * (1 + gated)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=made) * scale).to(kind)

    normed = kind != torch.float16 and draw(st.booleans())
    return Case(
        random(rows, hidden),
        random(owned, hidden, scale=hidden**-0.5),
        random(owned) if draw(st.booleans()) else None,
        random(hidden) if normed else None,
        gated,
        random(rows, features) if draw(st.booleans()) else None,
    )


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative error; NaN (an element that was not written) is never small."""
    return float((found.double() - expected).norm() / expected.norm())


@settings(max_examples=12)
@given(cases(), st.sampled_from(CONFIGS))
def test_every_form_of_the_kernel_agrees_with_the_reference(case: Case, config: LinearConfig) -> None:
    assert distance(case.run(config), case.expected()) <= BOUNDS[case.x.dtype]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_over_many_steps(dtype: torch.dtype, config: LinearConfig) -> None:
    made = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 200, generator=made).to(dtype), torch.randn(24, 200, generator=made).to(dtype)
    case = Case(x, weight, None, torch.randn(200, generator=made).to(dtype), False, None)
    assert distance(case.run(config), case.expected()) <= BOUNDS[dtype]


@pytest.mark.parametrize("split", [1, 4])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_a_weight_in_boxes_gives_the_same_bits(split: int, gated: bool, normed: bool) -> None:
    """Tiles that stand over the weight's end, columns that are no whole number of steps, a part without steps."""
    made = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made).bfloat16()

    case = Case(random(3, 72), random(40 * (1 + gated), 72) / 8, random(40 * (1 + gated)),
                random(72) if normed else None, gated, random(3, 40))  # fmt: skip
    plain = LinearConfig(bf=16, bk=32, kw=1, split=split, warps=4, stages=2)
    early = replace(plain, early=True)
    assert boxed(case.weight, 40, early) is not None
    found = case.run(early)
    assert distance(found, case.expected()) <= BOUNDS[torch.bfloat16]
    assert torch.equal(found, case.run(plain))


def test_which_weights_come_in_boxes_and_which_rows_in_pairs() -> None:
    early = LinearConfig(bf=16, bk=32, kw=1, split=1, warps=4, stages=2, early=True)
    weight, x = torch.empty(16, 64).bfloat16(), torch.empty(2, 64).bfloat16()
    assert boxed(weight, 16, early) is not None
    assert boxed(weight, 16, replace(early, early=False)) is None
    assert boxed(weight, 16, replace(early, kw=2)) is None
    assert boxed(torch.empty(16, 60).bfloat16(), 16, early) is None
    assert boxed(weight.view(-1)[1:961].view(16, 60)[:, :56].contiguous()[1:], 15, early) is not None
    assert boxed(weight.view(-1)[4:964].view(15, 64), 15, early) is None
    assert in_pairs(early, x)
    assert not in_pairs(early, x.float())
    assert not in_pairs(early, torch.empty(2, 63).bfloat16())
    assert not in_pairs(early, torch.empty(2, 65).bfloat16()[:, 1:])
    assert not in_pairs(early, torch.empty(130).bfloat16()[1:129].view(2, 64))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_gates_and_ups_meet_in_every_place_of_a_tile(config: LinearConfig) -> None:
    made = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=made) for shape in ((3, 200), (2 * 37, 200), (2 * 37,)))
    case = Case(x, weight / 14, bias, torch.randn(200, generator=made), True, torch.randn(3, 37, generator=made))
    assert distance(case.run(config), case.expected()) <= BOUNDS[torch.float32]


@settings(max_examples=6)
@given(cases(most_rows=20), st.sampled_from(CONFIGS), st.data())
def test_a_rows_bits_do_not_depend_on_the_others(case: Case, config: LinearConfig, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, case.x.shape[0] - 1))
    assert torch.equal(case.run(config)[row : row + 1], case.run(config, slice(row, row + 1)))


@pytest.mark.parametrize("activation", ["none", "silu_mul"])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (1, 70)], ids=str)
def test_the_op_takes_batches_strides_and_many_rows(
    shape: tuple[int, int], dtype: torch.dtype, activation: str
) -> None:
    made = torch.Generator().manual_seed(0)
    wide = torch.randn(*shape, 80, generator=made).to(dtype)
    x, residual = wide[..., 8:48], wide[..., 50:74]
    weight = (torch.randn(48 if activation == "silu_mul" else 24, 40, generator=made) / 6).to(dtype)
    norm = torch.randn(40, generator=made).to(dtype)
    found = fused_linear(x, weight, None, norm, 1e-5, activation, residual)
    expected = ops.fused_linear(x.double(), weight.double(), None, norm.double(), 1e-5, activation, residual.double())
    assert found.shape == (*shape, 24)
    assert found.dtype == dtype
    assert distance(found, expected) <= BOUNDS[dtype]


@pytest.mark.parametrize("gated", [False, True])
def test_more_rows_take_another_table_and_bits_do_not_depend_on_how_many(
    monkeypatch: pytest.MonkeyPatch, gated: bool
) -> None:
    made = torch.Generator().manual_seed(0)
    rows = MOST_ROWS + 7
    x, residual = (torch.randn(1, rows, width, generator=made).bfloat16() for width in (40, 24))
    weight = (torch.randn(24 * (1 + gated), 40, generator=made) / 6).bfloat16()
    norm = torch.randn(40, generator=made).bfloat16()
    asked = []

    def launched(*operands: Any) -> None:
        asked.append(operands[-1])
        launch_linear(*operands)

    def run(count: int) -> torch.Tensor:
        activation = "silu_mul" if gated else "none"
        return fused_linear(x[:, :count], weight, None, norm, 1e-6, activation, residual[:, :count])

    monkeypatch.setattr("specc.backends.triton.ops.linear.launch_linear", launched)
    monkeypatch.setitem(MANY, (40, 24, gated), many(16, 32, 32, 4, 2, split=2))
    found = run(rows)
    expected = Case(x[0], weight, None, norm, gated, residual[0]).expected()
    assert distance(found[0], expected) <= BOUNDS[torch.bfloat16]
    assert torch.equal(found[:, : MOST_ROWS + 1], run(MOST_ROWS + 1))
    assert asked == [MANY[40, 24, gated]] * 2


def test_float32_and_very_many_rows_go_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("the kernel was launched")

    monkeypatch.setattr("specc.backends.triton.ops.linear.launch_linear", refused)
    for rows, dtype in ((MOST_ROWS + 1, torch.float32), (SMALL_ROWS + 1, torch.bfloat16), (2, torch.float64)):
        x, weight = torch.ones(rows, 40, dtype=dtype), torch.ones(24, 40, dtype=dtype)
        assert torch.equal(fused_linear(x, weight, None, None, 0.0, "none", None), x @ weight.T)


@pytest.mark.parametrize(
    ("geometry", "rows", "taken"),
    [
        ((2048, 8208, False), MOST_ROWS + 1, True),
        ((2048, 8208, False), MANY_ROWS + 1, False),
        ((576, 1536, True), SMALL_ROWS, True),
        ((4096, 12288, True), MANY_ROWS, True),
        ((4096, 6144, False), MANY_ROWS, False),
        ((1024, 4096, False), MANY_ROWS, True),
        ((2048, 128256, False), MANY_ROWS, False),
    ],
    ids=str,
)
def test_which_layers_of_many_rows_the_kernel_takes(geometry: tuple[int, int, bool], rows: int, taken: bool) -> None:
    found = many_config(*geometry, torch.bfloat16, rows)
    assert (found in [config for key, config in MANY.items() if key[2] == geometry[2]]) == taken
    if geometry in MANY and taken:
        assert found is MANY[geometry]


@settings(max_examples=6)
@given(cases(most_rows=40), st.sampled_from([config for config in CONFIGS if config.stages]))
def test_a_rows_bits_do_not_depend_on_the_rows_of_a_program(case: Case, config: LinearConfig) -> None:
    assert torch.equal(case.run(replace(config, block=64)), case.run(replace(config, block=16)))


def test_large_half_precision_rows_do_not_overflow_under_the_norm() -> None:
    x, norm = torch.full((1, 1, 64), 6e4, dtype=torch.float16), torch.full((64,), 8.0, dtype=torch.float16)
    found = fused_linear(x, torch.eye(64, dtype=torch.float16)[:20], None, norm, 1e-6, "none", None)
    assert torch.equal(found, torch.full((1, 1, 20), 8.0, dtype=torch.float16))


def test_no_rows_give_no_rows() -> None:
    empty = torch.empty(0, 4, 40)
    assert fused_linear(empty, torch.ones(24, 40), None, None, 0.0, "none", None).shape == (0, 4, 24)


def test_only_the_last_program_of_a_tile_to_arrive_writes_it() -> None:
    x, weight, y = torch.randn(2, 100), torch.randn(40, 100), torch.full((2, 40), float("nan"))
    counters = _ARRIVED.setdefault(x.device, torch.zeros(1 << 16, dtype=torch.int32))
    counters.fill_(-7)
    launch_linear(x, weight, None, None, 0.0, False, None, y, LinearConfig(16, 32, 1, 3, 4, 2))
    assert bool(y.isnan().all())
    counters.zero_()


def test_counters_are_left_at_zero_for_the_next_launch() -> None:
    """Twice in a row, as a graph's replay does it."""
    x, weight = torch.randn(2, 100), torch.randn(40, 100)
    config = LinearConfig(bf=16, bk=32, kw=1, split=3, warps=4, stages=2)
    results = []
    for _ in range(2):
        y = torch.full((2, 40), float("nan"))
        launch_linear(x, weight, None, None, 0.0, False, None, y, config)
        assert not _ARRIVED[x.device].any()
        results.append(y)
    assert torch.equal(*results)
    assert distance(results[0], x.double() @ weight.double().T) <= BOUNDS[torch.float32]


def test_a_geometry_that_is_not_in_the_table_gets_the_nearest() -> None:
    for (hidden, features, gated), config in LINEAR.items():
        assert linear_config(hidden, features, gated, torch.bfloat16) is config
        near = linear_config(hidden - 8, features + 8, gated, torch.bfloat16)
        assert near in [known for key, known in LINEAR.items() if key[2] == gated]
    assert linear_config(3, 7, False, torch.bfloat16) in LINEAR.values()
    assert linear_config(2048, 2048, False, torch.float32) is FLOAT32


def test_a_layer_that_is_too_wide_for_one_step_takes_several() -> None:
    narrow = {key: config for key, config in LINEAR.items() if config.stages == 0}
    for (_, features, gated), config in narrow.items():
        assert config.once(config.bk)
        assert not config.once(config.bk + 1)
        assert not linear_config(8 * config.bk, features, gated, torch.bfloat16).once(8 * config.bk)
        assert linear_config(8 * config.bk, features, gated, torch.bfloat16).stages > 0


def test_configurations_cover_their_tiles_and_fit() -> None:
    for key, config in [*LINEAR.items(), ((64, 64, False), FLOAT32)]:
        assert config.kw in (1, config.warps), "a piece of the columns per warp"
        assert config.bk % config.kw == 0
        assert config.bk // config.kw >= 16
        if config.stages == 0:
            assert config.once(key[0])
            assert config.kw % 2 == 0, "pieces are added in pairs"
        else:
            assert (config.bf * (1 + key[2]) + config.block) * config.bk * 2 <= SHARED, "one step"
            together = 4 if config is FLOAT32 else 8  # 16 bytes
            assert 16 * config.bk >= together * 32 * config.warps, "else a row's bits depend on the number of rows"
    for key, config in MANY.items():
        assert config.apart
        assert config.kw == 1
        assert config.bf * (1 + key[2]) >= 64, "rows of a warp-group product"
        assert (config.bf * (1 + key[2]) + config.block) * config.bk * 2 * config.stages <= SHARED
