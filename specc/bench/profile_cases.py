"""What `specc bench profile` looks at: the kernels behind each bar that is missed, and some that meet theirs.

A case is made once, on the inputs of the other benchmarks, and called a few times. Inputs need not rotate here: the
profiler empties the caches before every launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from specc.backends.triton.ops.delta_launch import heavy_light, launch_rank_n
from specc.backends.triton.ops.delta_verify import table_of
from specc.bench.delta_inputs import GDN, QWEN, Geometry, inputs, pending_of, random_tree, tree_of
from specc.bench.delta_schedules import SHAPES
from specc.bench.delta_tree_cases import table_config, tree_calls
from specc.bench.delta_walk_cases import PATH, plain_calls, walk_calls
from specc.bench.gpu_timing import Call, Row
from specc.bench.kernels_attention_cases import QWEN as QWEN_HEADS
from specc.bench.kernels_attention_cases import SMOL as SMOL_HEADS
from specc.bench.kernels_attention_cases import Point, call
from specc.bench.kernels_attention_cases import inputs as attention_inputs
from specc.bench.linear_cases import MODELS, Gemm, chosen, operands, weights

Make = Callable[[], Call]


@dataclass(frozen=True, slots=True)
class Profiled:
    """`make` puts the inputs on the device and returns the call; `bar` says in microseconds what the time of the whole
    call may be (graph replay), where there is a bar for this call alone; `missed`: whether it is."""

    name: str
    make: Make
    bar: float | None = None
    missed: bool = True
    about: Row = field(default_factory=dict)

    @property
    def label(self) -> Row:
        """What its rows begin with."""
        label: Row = {"case": self.name, "missed": self.missed} | self.about
        return label if self.bar is None else label | {"bar_us": self.bar}


def chain(geometry: Geometry, batch: int) -> Call:
    """The walk over 16 tokens in a row; no state is written."""
    return walk_calls([inputs(geometry, batch, 16)])[0]


def token(geometry: Geometry, batch: int) -> Call:
    """The walk's single token of plain decoding: the state is read and written."""
    return plain_calls([inputs(geometry, batch, 1)])[0]


def tree(geometry: Geometry, nodes: int, batch: int) -> Call:
    """Both phases of a tree's verify."""
    one, mask = inputs(geometry, batch, nodes), random_tree(batch, nodes)[1]
    return tree_calls([one], mask, [None], table_config(geometry, nodes, batch, False))[0]


def deferred(geometry: Geometry, batch: int) -> Call:
    """A verify that folds 8 factors into the state first."""
    one, mask = inputs(geometry, batch, 16), random_tree(batch, 16)[1]
    behind = pending_of(geometry, one, 8, 1)
    return tree_calls([one], mask, [behind], table_config(geometry, 16, batch, True))[0]


def hybrid(geometry: Geometry, batch: int, shape: str) -> Call:
    """The walk in heavy-light order over one shape of tree."""
    parents = SHAPES[shape]
    one, (parent_row, mask) = inputs(geometry, batch, len(parents)), tree_of([parents] * batch)
    order = heavy_light(parent_row, mask)
    extra = {"order": order, "parent_row": parent_row, "table": table_of(one.state, parent_row)}
    return walk_calls([one], None, **extra)[0]


def commit(geometry: Geometry, batch: int) -> Call:
    """Five accepted nodes of every layer folded into the states in place."""
    flat = inputs(geometry, geometry.layers * batch, 16)
    path = torch.tensor(PATH, device="cuda").expand(batch, -1).contiguous()
    count = torch.full((batch,), 5, device="cuda")
    k, u, g = (x.view(geometry.layers, batch, *x.shape[1:])
               for x in (flat.rows.k, torch.randn(flat.rows.v.shape, device="cuda"), flat.rows.g))  # fmt: skip
    state = flat.state.view(geometry.layers, batch, *flat.state.shape[1:])
    return partial(launch_rank_n, state, state, k, u, g, path, count)


def product(geometry: Geometry, batch: int) -> Call:
    """What `commit` has to move at least, by torch: the same states multiplied in place."""
    state = inputs(geometry, geometry.layers * batch, 1).state
    return partial(state.mul_, 1.0)


def attention(point: Point) -> Call:
    """Attention of new rows to a cache, with the table's configuration."""
    return call(attention_inputs(point, 0), None)


def linear(gemm: Gemm, rows: int) -> Call:
    """One linear layer. Raises ValueError where it goes to torch."""
    config = chosen(gemm, rows)
    if config is None:
        raise ValueError(f"{gemm.name} with {rows} rows goes to torch")
    one = operands(gemm, rows, weights(gemm)[0])
    return partial(one.launch, gemm, config)


def delta(name: str, make: Callable[..., Call], geometry: Geometry, batch: int, *more: int | str,
          bar: float | None = None, missed: bool = True) -> Profiled:  # fmt: skip
    """A case of the rule."""
    arguments = (*more, batch) if make is tree else (batch, *more)
    about: Row = {"geometry": geometry.name, "batch": batch}
    return Profiled(name, partial(make, geometry, *arguments), bar, missed, about)


def point(name: str, at: Point, missed: bool = True) -> Profiled:
    """A case of attention, with the point's own bar."""
    bar = None if at.bar_us is None else round(at.bar_us, 1)
    return Profiled(name, partial(attention, at), bar, missed, at.label)


def _linear_cases() -> list[Profiled]:
    """The layers of GDN-1.3B for one row, and one of them for 16."""
    owner = MODELS["gdn-1.3b"]
    one = [(gemm, 1) for gemm in (*owner.gemms, owner.head)]
    return [
        Profiled(f"linear-{gemm.name}-r{rows}", partial(linear, gemm, rows), None, False,
                 {"model": owner.name, "rows": rows})
        for gemm, rows in [*one, (owner.gemms[2], 16)]
    ]  # fmt: skip


CASES: Mapping[str, Profiled] = {
    case.name: case
    for case in (
        delta("serial-16-b8", chain, GDN, 8, bar=22.0, missed=False),
        delta("serial-16-b32", chain, GDN, 32, bar=60.0),
        delta("serial-16-b32-qwen", chain, QWEN, 32, bar=60.0),
        delta("tree-16-b32-qwen", tree, QWEN, 32, 16, bar=32.0, missed=False),
        delta("deferred-b8", deferred, GDN, 8, missed=False),
        delta("deferred-b8-qwen", deferred, QWEN, 8, missed=False),
        delta("deferred-b32-qwen", deferred, QWEN, 32, missed=False),
        point("attention-64-b1", Point(*QWEN_HEADS, 64, 1, 1024)),
        point("attention-64-smol-b8", Point(*SMOL_HEADS, 64, 8, 32768)),
        point("attention-16-b1-pages-of-16", Point(*QWEN_HEADS, 16, 1, 32768, 16), missed=False),
        point("attention-16-b1-pages-of-64", Point(*QWEN_HEADS, 16, 1, 32768, 64), missed=False),
        delta("hybrid-top2-depth12", hybrid, GDN, 1, "top 2, depth 12, 16 nodes", missed=False),
        delta("hybrid-top2-depth12-b8", hybrid, GDN, 8, "top 2, depth 12, 16 nodes"),
        delta("tree-16-b32-gdn", tree, GDN, 32, 16, bar=32.0, missed=False),
        delta("tree-16-b8-gdn", tree, GDN, 8, 16, bar=13.0, missed=False),
        delta("tree-32-b1", tree, GDN, 1, 32, bar=10.0, missed=False),
        delta("deferred-b32", deferred, GDN, 32, missed=False),
        delta("commit-24-layers", commit, GDN, 1, bar=30.0),
        delta("states-in-place", product, GDN, 1, missed=False),
        delta("serial-16-b1", chain, GDN, 1, bar=12.0, missed=False),
        delta("token-b1", token, GDN, 1, missed=False),
        delta("token-b32", token, GDN, 32, missed=False),
        point("attention-64-smol-b1", Point(*SMOL_HEADS, 64, 1, 1024), missed=False),
        point("attention-16-b8", Point(*QWEN_HEADS, 16, 8, 32768), missed=False),
        *_linear_cases(),
    )
}
