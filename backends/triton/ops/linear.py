"""`fused_linear` by kernels that stream the weight, with two tables of configurations; for very many rows by torch.

Roundings: what the op's reference rounds on the way (the normalised x times the norm's weight, gate and up, the product
before the residual) stays in float32 here; the result is rounded once. The norm's weight meets x before the product and
1 / rms after it, so a bfloat16 x * norm_weight is rounded once, as in torch. A row's bits do not depend on the other
rows, nor on how many there are, up to `MOST_ROWS`; between there and `MANY_ROWS` they are others, but again the same
for any number. Those of torch depend on the number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-untyped]

from specc.backends.triton.kernels.linear import linear
from specc.backends.triton.kernels.linear_norm import normed_rows
from specc.backends.triton.launch.core import interpreted, power_of_two
from specc.backends.triton.ops.linear_once import LEAST_ROWS, Left, launch_once

Tensor = torch.Tensor

MOST_ROWS = 64
"""Rows up to which `LINEAR` is used: the weight is what takes time, and each program normalises x on the way."""
MANY_ROWS = 128
"""Rows up to which `MANY` is used. Above, cuBLAS is faster: chains of 256 rows take 0.85x and 0.95x of the kernel's
time at GDN-1.3B and Llama-3.2-1B, but 1.22x at SmolLM2."""
SMALL_ROWS = 256
"""As `MANY_ROWS`, for layers of up to `SMALL` weights."""
SMALL = 1 << 21
SHARED = 200_000
"""Bytes of shared memory that a program's stages may take."""
BULK = 16
"""Bytes of which bulk copies want addresses and strides to be multiples."""
COUNTERS = 1 << 16
"""Tiles times blocks of rows that can wait for programs to arrive: 4096 rows of a layer with 64 features per tile."""


@dataclass(frozen=True, slots=True)
class LinearConfig:
    """`bf` features per program (as many gate and up rows each), `bk` columns per step cut into `kw` pieces (one per
    warp), `split` programs per tile, `ahead` columns of the weight asked for before anything else.

    `stages` 0: all columns (at most `bk`) in one step, in an even number of pieces; a tile in shared memory.
    `late`: the next kernel may start when the weight has been read, not at once; what it asks for ahead then comes
    while this one ends.
    `block`: rows of x that a program takes at most; more are further programs, which find the weight in the L2 cache.
    A row's bits do not depend on it. `apart`: x is normalised by a launch of its own. `early`: the weight's first
    stages are on their way before x is there, in boxes (bulk copies) where the hardware can.
    """

    bf: int
    bk: int
    kw: int
    split: int
    warps: int
    stages: int
    ahead: int = 0
    late: bool = False
    block: int = 32
    apart: bool = False
    early: bool = False

    def once(self, hidden: int) -> bool:
        """Whether a layer is one step: its tile of the weight is then with the program before x is there."""
        return self.stages == 0 and hidden <= self.bk


FLOAT32 = LinearConfig(bf=32, bk=32, kw=1, split=1, warps=4, stages=3)
STREAMED = LinearConfig(bf=64, bk=256, kw=1, split=1, warps=4, stages=4, early=True)
PAIRS = LinearConfig(bf=32, bk=256, kw=1, split=1, warps=4, stages=3, block=16, early=True)
HEAD = LinearConfig(bf=64, bk=128, kw=1, split=1, warps=4, stages=5, block=64)
WIDE_HEAD = LinearConfig(bf=128, bk=128, kw=1, split=1, warps=8, stages=3, early=True)
NARROW = LinearConfig(bf=16, bk=256, kw=4, split=1, warps=4, stages=4, ahead=2048, block=64)
ONCE = LinearConfig(bf=16, bk=1024, kw=4, split=1, warps=4, stages=0)
LINEAR: Mapping[tuple[int, int, bool], LinearConfig] = {
    (576, 576, False): ONCE,
    (576, 960, False): ONCE,
    (576, 1536, True): ONCE,
    (1536, 576, False): replace(ONCE, bk=1536),
    (576, 49152, False): HEAD,
    (2048, 2048, False): LinearConfig(bf=16, bk=512, kw=4, split=1, warps=4, stages=4, block=16),
    (2048, 3072, False): LinearConfig(bf=64, bk=256, kw=1, split=2, warps=4, stages=3, block=16, early=True),
    (2048, 8208, False): STREAMED,
    (2048, 32000, False): WIDE_HEAD,
    (2048, 128256, False): WIDE_HEAD,
    (5632, 2048, False): LinearConfig(bf=64, bk=256, kw=1, split=4, warps=4, stages=5, early=True),
    (8192, 2048, False): LinearConfig(bf=64, bk=64, kw=1, split=4, warps=4, stages=8, late=True),
    (2048, 5632, True): PAIRS,
    (2048, 8192, True): PAIRS,
}
"""By (H, F, gated): never by the number of rows, on which a row's bits may not depend.

Chosen on an H200 by the time of all linear layers of a model in one graph, for 1 and 16 rows together
(`specc bench tune --family linear`); those of 2048 columns and more by whole steps, plain ones and verifies of 16
nodes: what stands between two layers decides how early the second may start. A step of 16 rows must give each thread 8
columns at least: with less, sums of squares are split between threads in another way for 16 than for 32 rows (seen with
64 columns and 8 warps).
"""


def many(bf: int, block: int, bk: int, warps: int, stages: int, split: int = 1) -> LinearConfig:
    """A configuration for more than `MOST_ROWS` rows: x is normalised in front, products are one after the other."""
    return LinearConfig(bf, bk, 1, split, warps, stages, late=True, block=block, apart=True)


MANY: Mapping[tuple[int, int, bool], LinearConfig] = {
    (576, 576, False): many(64, 16, 64, 4, 9),
    (576, 960, False): many(64, 32, 64, 4, 9),
    (576, 1536, True): many(32, 64, 64, 4, 9),
    (1536, 576, False): many(64, 16, 128, 4, 8),
    (2048, 2048, False): many(64, 32, 128, 4, 6),
    (2048, 3072, False): many(64, 64, 64, 4, 8),
    (2048, 8208, False): many(64, 128, 128, 4, 4),
    (5632, 2048, False): many(64, 64, 128, 4, 5, split=2),
    (8192, 2048, False): many(64, 128, 64, 8, 6, split=4),
    (2048, 5632, True): many(64, 128, 64, 8, 6),
    (2048, 8192, True): many(64, 128, 64, 8, 6),
}
"""As `LINEAR`, for more than `MOST_ROWS` rows; chosen for 128. Heads are as fast through cuBLAS."""
NEAR = 1 << 22
"""Weights of a layer up to which it takes the nearest configuration of `MANY`; of layers with gates, which save two
launches, all do. Measured at the sizes of Qwen3-0.6B and 8B and of Llama-3.2-3B: 1.34x, 1.06x and 1.15x of torch."""


def nearest(
    table: Mapping[tuple[int, int, bool], LinearConfig], hidden: int, features: int, gated: bool
) -> LinearConfig:
    """The configuration of a geometry; that of the nearest (by the ratio of sizes) where it is not in the table."""

    def distance(known: tuple[int, int, bool]) -> float:
        ratios = (max(a / b, b / a) for a, b in zip(known[:2], (hidden, features), strict=True))
        return sum(ratios) + 1000 * (known[2] != gated)

    found = table.get((hidden, features, gated))
    return table[min(table, key=distance)] if found is None else found


def linear_config(hidden: int, features: int, gated: bool, dtype: torch.dtype) -> LinearConfig:
    """The configuration for up to `MOST_ROWS` rows; another one where a layer is too wide for its one step."""
    if dtype == torch.float32:
        return FLOAT32
    found = nearest(LINEAR, hidden, features, gated)
    if found.stages == 0 and not found.once(hidden):
        return PAIRS if gated else NARROW if features < hidden else STREAMED
    return found


def many_config(hidden: int, features: int, gated: bool, dtype: torch.dtype, rows: int) -> LinearConfig | None:
    """The configuration for more rows; None: the layer goes to torch."""
    weights = hidden * features * (1 + gated)
    if dtype not in (torch.bfloat16, torch.float16) or rows > (SMALL_ROWS if weights <= SMALL else MANY_ROWS):
        return None
    if gated or weights <= NEAR or (hidden, features, gated) in MANY:
        return nearest(MANY, hidden, features, gated)
    return None


_ARRIVED: dict[torch.device, Tensor] = {}


def arrived(device: torch.device) -> Tensor:
    """Counters of the programs that have arrived: zero before and after every launch, one set per device.

    Launches of one device must not run beside each other (they are on one stream).
    """
    if device not in _ARRIVED:
        _ARRIVED[device] = torch.zeros(COUNTERS, dtype=torch.int32, device=device)
    return _ARRIVED[device]


def normed(x: Tensor, norm_weight: Tensor, eps: float, beside: bool) -> Tensor:
    """RMS norm of x [rows,H] (unit stride in its last dim), a program per row; `beside` the kernel in front of it."""
    rows, hidden = x.shape
    y = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    columns = power_of_two(hidden, 32)
    options: dict[str, Any] = {"launch_pdl": True} if beside else {}
    warps = min(8, max(1, columns // 256))
    normed_rows[(rows,)](
        x, norm_weight, y, hidden, x.stride(0), eps, COLUMNS=columns, DEPENDENT=beside, num_warps=warps, **options
    )
    return y


def in_pairs(config: LinearConfig, x: Tensor) -> bool:
    """Whether the wait for x is within the product, which then reads x in pairs of neighbours."""
    return config.early and x.element_size() == 2 and (x.storage_offset() | x.stride(0) | x.shape[1]) % 2 == 0


def stages(config: LinearConfig, owned: int, bm: int, x: Tensor) -> int:
    """Steps whose weight (`owned` rows) and x (`bm` rows; in pairs it has one place beside them) fit in."""
    column = config.bk * x.element_size()
    beside = bm if in_pairs(config, x) else 0
    return max(1, min(config.stages, (SHARED - beside * column) // ((owned + bm - beside) * column)))


def boxed(weight: Tensor, features: int, config: LinearConfig) -> TensorDescriptor | None:
    """A descriptor of the weight in boxes of a program's rows and a step's columns, gates and ups apart; None if it
    can't be one: columns in pieces, addresses that bulk copies can't take."""
    rows, hidden = weight.shape
    ends = (weight.data_ptr() | hidden * weight.element_size()) % BULK == 0
    if not config.early or config.kw > 1 or not ends:
        return None
    box = [config.bf, config.bk]
    if rows > features:
        return TensorDescriptor(weight, [2, features, hidden], [features * hidden, hidden, 1], [2, *box])
    return TensorDescriptor(weight, [rows, hidden], [hidden, 1], box)


def launch_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor | None,
    eps: float,
    gated: bool,
    residual: Tensor | None,
    y: Tensor,
    config: LinearConfig,
    dependent: bool = True,
    left: Left | None = None,
) -> None:
    """The kernel on x [rows,H] and residual [rows,F] (unit stride in their last dim) into y [rows,F].

    `dependent`: it may start while the kernel in front of it still runs (never in the interpreter). `left`: x holds the
    parts of its one row; only for a layer of one step.
    """
    (rows, features), hidden = y.shape, weight.shape[1]
    beside = dependent and not interpreted()
    if config.apart and norm_weight is not None:
        x, norm_weight = normed(x, norm_weight, eps, beside), None
    bm = min(config.block, power_of_two(rows, LEAST_ROWS))
    blocks, tiles, owned = -(-rows // bm), -(-features // config.bf), config.bf * (1 + gated)
    operands = (
        x,
        weight,
        weight if bias is None else bias,
        weight if norm_weight is None else norm_weight,
        x if residual is None else residual,
        y,
    )
    sizes = (rows, features, hidden, x.stride(0), 0 if residual is None else residual.stride(0), eps)
    options: dict[str, Any] = {
        "BF": config.bf,
        "BM": bm,
        "KW": config.kw,
        "BIAS": bias is not None,
        "NORM": norm_weight is not None,
        "GATED": gated,
        "RESIDUAL": residual is not None,
        "DEPENDENT": beside,
        "num_warps": config.warps,
        **({"launch_pdl": True} if beside else {}),
    }
    if config.once(hidden):
        launch_once(operands, sizes, tiles, options, left)
        return
    boxes = boxed(weight, features, config) if in_pairs(config, x) else None
    parts = blocks * tiles * config.split if config.split > 1 else 0
    linear[(blocks, tiles, config.split)](
        *operands[:2], boxes or weight, *operands[2:],
        torch.empty(parts * (owned + 1) * bm, dtype=torch.float32, device=x.device) if parts else y,
        arrived(x.device) if parts else y,
        *sizes[:4], x.stride(0) // 2, *sizes[4:],
        BK=config.bk, SPLIT=config.split, AHEAD=0 if interpreted() or hidden % 8 else config.ahead,
        EARLY=in_pairs(config, x), BOXES=boxes is not None, THREADS=32 * config.warps, EVEN=hidden % config.bk == 0,
        LATE=config.late, num_stages=stages(config, owned, bm, x), **options,
    )  # fmt: skip


def composed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor | None,
    eps: float,
    activation: str,
    residual: Tensor | None,
) -> Tensor:
    """The op by torch's own kernels."""
    if norm_weight is not None:
        x = torch.rms_norm(x, norm_weight.shape, norm_weight, eps)
    y = torch.nn.functional.linear(x, weight, bias)
    if activation == "silu_mul":
        gate, up = y.chunk(2, dim=-1)
        y = torch.nn.functional.silu(gate) * up
    return y if residual is None else residual + y


def flat_rows(x: Tensor) -> Tensor:
    """[rows, last dim] of [..., last dim], copied only where it must be."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(-1) == 1 else flat.contiguous()


def fused_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor | None,
    eps: float,
    activation: str,
    residual: Tensor | None,
) -> Tensor:
    """See `specc.ir.ops.fused_linear`."""
    gated = activation == "silu_mul"
    hidden, features = x.shape[-1], weight.shape[0] // (2 if gated else 1)
    rows = x.numel() // hidden
    if rows <= MOST_ROWS and x.dtype != torch.float64:
        config: LinearConfig | None = linear_config(hidden, features, gated, x.dtype)
    else:
        config = many_config(hidden, features, gated, x.dtype, rows)
    if config is None:
        return composed(x, weight, bias, norm_weight, eps, activation, residual)
    if x.dtype == torch.float16 and norm_weight is not None:  # x * norm_weight could overflow before 1 / rms is applied
        x, norm_weight = torch.rms_norm(x, norm_weight.shape, norm_weight, eps), None
    y = torch.empty((*x.shape[:-1], features), dtype=x.dtype, device=x.device)
    if rows:
        beside = None if residual is None else flat_rows(residual)
        launch_linear(flat_rows(x), weight, bias, norm_weight, eps, gated, beside, y.view(-1, features), config)
    return y
