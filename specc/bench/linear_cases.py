"""What `kernels_linear` measures: the linear layers of three models, operands, configurations to try, errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from specc.backends.triton.ops.linear import (
    MOST_ROWS,
    LinearConfig,
    composed,
    launch_linear,
    linear_config,
    many,
    many_config,
)
from specc.bench.gpu_timing import Call, error, poison, sets_for

EPS = 1e-6
BOUNDS = {"y": 6e-3, "row": 0.0}
"""Relative error of y: bfloat16 roundings of y and of x * norm_weight, at worst one large channel in a single row.
`row`: rows whose bits differ."""
ROWS = (1, 4, 16, 32, 64, 128, 256)
INVARIANT = (1, 2, 7, 16, 17, 32, 33, 64, 65, 128, 200, 256)
"""Numbers of rows whose first rows must have the same bits."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """y [M,features] of x [M,hidden]; `gated`: twice as many rows of the weight."""

    name: str
    hidden: int
    features: int
    norm: bool = False
    gated: bool = False
    residual: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weight."""
        return self.features * (2 if self.gated else 1), self.hidden

    @property
    def bytes(self) -> int:
        """Of the weight in bfloat16."""
        return 2 * self.shape[0] * self.shape[1]


@dataclass(frozen=True, slots=True)
class Model:
    """The linear layers of one layer, in order, how many layers, and the head."""

    name: str
    layers: int
    gemms: tuple[Gemm, Gemm, Gemm, Gemm]
    head: Gemm

    @property
    def bytes(self) -> int:
        """Of all weights."""
        return self.layers * sum(gemm.bytes for gemm in self.gemms) + self.head.bytes


def model(name: str, layers: int, hidden: int, mixer: int, out: int, middle: int, vocabulary: int) -> Model:
    """`mixer`: rows of the projection in front of attention or recurrence; `out`: columns of the one behind it."""
    gemms = (
        Gemm("mixer", hidden, mixer, norm=True),
        Gemm("o", out, hidden, residual=True),
        Gemm("gate_up", hidden, middle, norm=True, gated=True),
        Gemm("down", middle, hidden, residual=True),
    )
    return Model(name, layers, gemms, Gemm("head", hidden, vocabulary, norm=True))


MODELS: Mapping[str, Model] = {
    made.name: made
    for made in (
        model("gdn-1.3b", 24, 2048, 8208, 2048, 5632, 32000),
        model("llama-3.2-1b", 16, 2048, 3072, 2048, 8192, 128256),
        model("smollm2", 30, 576, 960, 576, 1536, 49152),
    )
}


@dataclass(frozen=True, slots=True)
class Operands:
    """Of one call; residual and norm None where the layer has none."""

    x: Tensor
    weight: Tensor
    norm: Tensor | None
    residual: Tensor | None
    y: Tensor

    def launch(self, gemm: Gemm, config: LinearConfig, rows: slice = slice(None), dependent: bool = True) -> None:
        """The kernel on some rows."""
        residual = None if self.residual is None else self.residual[rows]
        x, y = self.x[rows], self.y[rows]
        launch_linear(x, self.weight, None, self.norm, EPS, gemm.gated, residual, y, config, dependent)

    def torch(self, gemm: Gemm) -> Tensor:
        """The same by torch's kernels."""
        activation = "silu_mul" if gemm.gated else "none"
        return composed(self.x, self.weight, None, self.norm, EPS, activation, self.residual)

    def product(self) -> Tensor:
        """Only the product, by torch."""
        return torch.nn.functional.linear(self.x, self.weight)


def operands(gemm: Gemm, rows: int, weight: Tensor, seed: int = 0) -> Operands:
    """Random rows for a weight; activations as residual streams have them (a few large channels)."""
    made = torch.Generator("cuda").manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=made)

    loud = 1 + 20 * (torch.rand(gemm.hidden, device="cuda", generator=made) < 0.005)
    x = (random(rows, gemm.hidden) * loud).bfloat16()
    norm = (1 + 0.3 * random(gemm.hidden)).bfloat16() if gemm.norm else None
    residual = random(rows, gemm.features).bfloat16() if gemm.residual else None
    return Operands(x, weight, norm, residual, torch.empty(rows, gemm.features, device="cuda", dtype=torch.bfloat16))


def weights(gemm: Gemm, seed: int = 0) -> list[Tensor]:
    """As many weights as exceed the cache together."""
    made = torch.Generator("cuda").manual_seed(seed)
    scale = gemm.hidden**-0.5
    return [
        (torch.randn(gemm.shape, device="cuda", generator=made) * scale).bfloat16()
        for _ in range(sets_for(gemm.bytes, most=300))
    ]


def errors(gemm: Gemm, config: LinearConfig, weight: Tensor, rows: int, invariant: bool) -> dict[str, float]:
    """Relative error of y against float64, and with `invariant` how many rows' bits depend on the number of rows."""
    one = operands(gemm, rows, weight)
    poison(one.y)
    one.launch(gemm, config)
    wide = (None if t is None else t.double() for t in (one.x, one.weight, one.norm, one.residual))
    x, w, norm, residual = wide
    assert x is not None
    assert w is not None
    expected = composed(x, w, None, norm, EPS, "silu_mul" if gemm.gated else "none", residual)
    found = {"y": error(one.y, expected)}
    if invariant:
        found["row"] = float(different_rows(gemm, config, weight, MOST_ROWS if rows <= MOST_ROWS else INVARIANT[-1]))
    return found


def different_rows(gemm: Gemm, config: LinearConfig, weight: Tensor, most: int) -> int:
    """Rows among `most` whose bits are others alone, in the middle, or among fewer."""
    whole = operands(gemm, most, weight, seed=1)
    whole.launch(gemm, config)
    kept, wrong = whole.y.clone(), 0
    parts = [slice(0, count) for count in INVARIANT if count <= most] + [slice(3, 4), slice(11, 14), slice(40, 64)]
    for part in parts:
        poison(whole.y)
        whole.launch(gemm, config, part)
        wrong += int((whole.y[part].view(torch.int16) != kept[part].view(torch.int16)).any(dim=1).sum())
    return wrong


def calls(gemm: Gemm, config: LinearConfig, many: Sequence[Tensor], rows: int) -> list[Call]:
    """One call per weight."""
    each = operands(gemm, rows, many[0])
    return [
        partial(Operands(each.x, weight, each.norm, each.residual, torch.empty_like(each.y)).launch, gemm, config)
        for weight in many
    ]


def chosen(gemm: Gemm, rows: int = 1) -> LinearConfig | None:
    """The table's configuration; None: the layer goes to torch."""
    if rows <= MOST_ROWS:
        return linear_config(gemm.hidden, gemm.features, gemm.gated, torch.bfloat16)
    return many_config(gemm.hidden, gemm.features, gemm.gated, torch.bfloat16, rows)


def config(bf: int, bk: int, kw: int, split: int, warps: int, stages: int) -> LinearConfig:
    """Without anything ahead."""
    return LinearConfig(bf, bk, kw, split, warps, stages)


TILES: Mapping[str, tuple[LinearConfig, ...]] = {
    "normed": (
        config(64, 256, 1, 1, 4, 4),
        config(64, 256, 1, 1, 4, 3),
        config(64, 128, 1, 1, 4, 5),
        config(32, 256, 4, 1, 4, 4),
    ),
    "gated": (
        config(64, 128, 1, 1, 8, 4),
        config(64, 128, 1, 1, 8, 3),
        config(32, 128, 1, 1, 4, 5),
        config(32, 256, 1, 1, 4, 2),
    ),
    "plain": (
        config(16, 256, 4, 1, 4, 8),
        config(16, 256, 4, 1, 4, 5),
        config(16, 512, 4, 1, 4, 4),
        config(16, 512, 4, 1, 4, 3),
        config(64, 128, 1, 4, 4, 5),
        config(64, 64, 1, 4, 4, 8),
        config(64, 64, 1, 4, 4, 5),
        config(16, 2048, 8, 1, 8, 0),
    ),
    "head": (
        config(64, 256, 1, 1, 4, 4),
        config(64, 128, 1, 1, 4, 5),
        config(64, 128, 1, 1, 8, 5),
    ),
    "small": (
        config(16, 256, 4, 1, 4, 4),
        config(16, 128, 2, 1, 2, 6),
        config(8, 256, 4, 1, 4, 4),
        config(8, 128, 2, 1, 2, 6),
        config(16, 2048, 4, 1, 4, 0),
        config(16, 2048, 8, 1, 8, 0),
        config(8, 2048, 4, 1, 4, 0),
        config(8, 2048, 8, 1, 8, 0),
    ),
}
"""Tiles worth trying. Layers with a norm work on x in each step, so they want many weight rows per program; narrow
layers want many programs."""


MANY_TILES: Mapping[str, tuple[LinearConfig, ...]] = {
    "normed": (
        many(64, 128, 128, 4, 4),
        many(64, 128, 64, 8, 6),
        many(64, 64, 64, 4, 8),
        many(128, 64, 64, 4, 6),
    ),
    "gated": (many(64, 128, 64, 8, 6), many(32, 128, 64, 4, 4), many(64, 64, 64, 4, 4)),
    "plain": (
        many(64, 32, 128, 4, 6),
        many(64, 64, 128, 4, 5),
        many(64, 64, 128, 4, 5, split=2),
        many(64, 128, 64, 8, 6, split=4),
    ),
    "small": (
        many(64, 32, 64, 4, 9),
        many(64, 16, 64, 4, 9),
        many(32, 64, 64, 4, 9),
        many(64, 16, 128, 4, 8),
    ),
}
"""As `TILES`, for more than `MOST_ROWS` rows."""


def candidates(gemm: Gemm, rows: int = 1) -> tuple[LinearConfig, ...]:
    """Tiles for a layer; of those for few rows each with and without asking ahead, and letting the next kernel start at
    once or late."""
    if rows > MOST_ROWS:
        return MANY_TILES[
            "small" if gemm.bytes < 8e6 else "gated" if gemm.gated else "normed" if gemm.norm else "plain"
        ]
    aheads: tuple[int, ...]
    if gemm.bytes < 8e6:
        kind, aheads = "small", (2048,)
    elif gemm.features > 16000:
        kind, aheads = "head", (0, 512)
    elif gemm.gated:
        kind, aheads = "gated", (0, 512)
    elif gemm.norm:
        kind, aheads = "normed", (0, 512)
    else:
        kind, aheads = "plain", (0, 2048 if gemm.hidden <= 2048 else 512)
    found = (
        replace(tile, ahead=ahead, late=late)
        for tile in TILES[kind]
        for ahead in (aheads if tile.stages else (0,))
        for late in ((False, True) if tile.stages else (False,))
    )
    return tuple(config for config in found if config.stages or config.once(gemm.hidden))
