"""All linear layers of a model in one CUDA graph: their time, and the configurations with which it is least."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from specc.backends.triton.ops.linear import LinearConfig, composed, launch_linear
from specc.bench.gpu_timing import FAILURES, RATE, Row, failed, timed
from specc.bench.linear_cases import BOUNDS, EPS, Gemm, Model, candidates, chosen, errors

Linear = Callable[[Gemm, Tensor, Tensor, Tensor | None, Tensor | None], Tensor]

FEW, MANY = (1, 16), (128,)
"""Rows that the two tables of configurations are chosen for."""
Table = Mapping[Gemm, LinearConfig]


def own(
    table: Table, dependent: bool, gemm: Gemm, x: Tensor, weight: Tensor, norm: Tensor | None, residual: Tensor | None
) -> Tensor:
    """One layer of the chain by the kernel, with the table's configuration or another one."""
    config = table[gemm] if gemm in table else chosen(gemm, x.shape[0])
    if config is None:
        return by_torch(gemm, x, weight, norm, residual)
    y = torch.empty(x.shape[0], gemm.features, device=x.device, dtype=x.dtype)
    launch_linear(x, weight, None, norm, EPS, gemm.gated, residual, y, config, dependent)
    return y


def by_torch(gemm: Gemm, x: Tensor, weight: Tensor, norm: Tensor | None, residual: Tensor | None) -> Tensor:
    """One layer of the chain by torch's kernels."""
    return composed(x, weight, None, norm, EPS, "silu_mul" if gemm.gated else "none", residual)


def product_only(gemm: Gemm, x: Tensor, weight: Tensor, norm: Tensor | None, residual: Tensor | None) -> Tensor:
    """Only the product, by torch; of a gated layer only as much as the next one reads."""
    return torch.nn.functional.linear(x, weight)[:, : gemm.features]


def chain(owner: Model, linear: Linear, x: Tensor, layers: Sequence[Sequence[Tensor]], head: Tensor) -> Tensor:
    """All linear layers of a model; what stands between mixer and o is left out (o reads the mixer's first columns)."""
    norm = torch.ones(x.shape[1], device=x.device, dtype=x.dtype)
    mixer, o, gate_up, down = owner.gemms
    for weight in layers:
        mixed = linear(mixer, x, weight[0], norm, None)[:, : o.hidden]
        x = linear(o, mixed, weight[1], None, x)
        x = linear(down, linear(gate_up, x, weight[2], norm, None), weight[3], None, x)
    return linear(owner.head, x, head, norm, None)


CHAINS: Mapping[str, Linear] = {
    "dependent launches": partial(own, {}, True),
    "plain launches": partial(own, {}, False),
    "torch": by_torch,
    "torch, products only": product_only,
}


def model_weights(owner: Model) -> tuple[list[list[Tensor]], Tensor]:
    """Random weights of all layers, and of the head."""
    made = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> Tensor:
        return (torch.randn(*shape, device="cuda", generator=made) * shape[-1] ** -0.5).bfloat16()

    return [[random(*gemm.shape) for gemm in owner.gemms] for _ in range(owner.layers)], random(*owner.head.shape)


def chain_part(models: Sequence[Model], some: Sequence[int] | None = None) -> Iterator[Row]:
    """Times with the table's configurations, with and without programmatic dependent launch, beside torch."""
    for owner in models:
        layers, head = model_weights(owner)
        for rows in some or (1, 4, 16, 32, 64, 128, 256):
            x = torch.randn(rows, owner.gemms[0].hidden, device="cuda").bfloat16()
            expected = chain(owner, by_torch, x, layers, head).double()
            for name, linear in CHAINS.items():
                run = partial(chain, owner, linear, x, layers, head)
                row: Row = {"model": owner.name, "rows": rows, "chain": name}
                row["read_us"] = round(owner.bytes / RATE * 1e6, 1)
                if name != "torch, products only":
                    row["from_torch"] = float((run().double() - expected).norm() / expected.norm())
                    row["wrong"] = not row["from_torch"] < 0.05
                yield row if row.get("wrong") else row | timed([run]).row()


def tuned_chain(owner: Model, counts: Sequence[int] = FEW, rounds: int = 2) -> Iterator[Row]:
    """Layer by layer the configuration with the least time of the whole chain for `counts` of rows together.

    A row per configuration tried, at last one with the table found. Wrong configurations are not timed.
    """
    layers, head = model_weights(owner)
    inputs = [torch.randn(rows, owner.gemms[0].hidden, device="cuda").bfloat16() for rows in counts]

    def times(table: Table) -> list[float]:
        return [timed([partial(chain, owner, partial(own, table, True), x, layers, head)], 7).us for x in inputs]

    table: dict[Gemm, LinearConfig] = {}
    best = times(table)
    slots = (*owner.gemms, owner.head)
    right = {gemm: list(candidates(gemm, counts[-1])) for gemm in slots}
    for turn in range(rounds):
        for place, gemm in enumerate(slots):
            weight = head if gemm is owner.head else layers[0][place]
            seen = list[tuple[float, LinearConfig]]()
            for config in right[gemm]:
                row: Row = {"gemm": gemm.name, "config": repr(config), "round": turn}
                try:
                    row["errors"] = errors(gemm, config, weight, counts[-1], False) if turn == 0 else {}
                    row["wrong"] = not all(value <= BOUNDS[name] for name, value in row["errors"].items())
                    if not row["wrong"]:
                        found = times(table | {gemm: config})
                        row["chain_us"] = [round(us, 1) for us in found]
                        seen.append((sum(found), config))
                        if sum(found) < sum(best):
                            best, table = found, table | {gemm: config}
                except FAILURES as failure:
                    row |= failed(failure)
                yield row
            right[gemm] = [config for _, config in sorted(seen, key=lambda pair: pair[0])[:4]]
    yield {
        "chain_us": [round(us, 1) for us in best],
        "table": {gemm.name: repr(table[gemm] if gemm in table else chosen(gemm, counts[-1])) for gemm in slots},
    }
