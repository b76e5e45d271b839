"""The delta rule along chains as an NPU's recurrent operator computes it, on states that lie in a pool.

The operator writes the state after every token into a row of a pool that its caller names, and starts from the row
that it will write first. So a chain's states need no copies: a sequence has one row more than a step has nodes, the
committed state stays in its row, the nodes' states go to the rows behind it (in a ring), and a commit moves the number
of the committed row on.
"""

from __future__ import annotations

import torch

from specc.ir.op import IndexOperand, op
from specc.ir.ops.delta_math import rows_of, step, unit, widened
from specc.ir.ops.npu import VALUE

NARROW = torch.bfloat16
"""The type of the operator's states, queries, keys, values and rates; decays are float32."""


@op(
    "npu_chain_slots(Tensor row, int rows, int tokens) -> Tensor",
    fake=lambda row, rows, tokens: row.new_empty((row.shape[0] * tokens,), dtype=torch.int32),
    levels=VALUE,
)
def npu_chain_slots(row: torch.Tensor, rows: int, tokens: int) -> torch.Tensor:
    """int32 [B*tokens]: rows row[b], row[b] + 1, … of sequence b's ring of `rows` rows in a pool, no row twice.

    row int64 [B]. Raises ValueError for more tokens than rows, IndexError for a row outside the ring.
    """
    if not 1 <= tokens <= rows:
        raise ValueError(f"{tokens} tokens do not fit a ring of {rows} rows")
    if bool((row < 0).any()) or bool((row >= rows).any()):
        raise IndexError(f"a row lies outside the ring of {rows}")
    place = (row.unsqueeze(1) + torch.arange(tokens, device=row.device)) % rows
    first = torch.arange(row.shape[0], device=row.device).unsqueeze(1) * rows
    return (first + place).to(torch.int32).flatten()


@op(
    "npu_pool_read(Tensor pool, Tensor row) -> Tensor",
    fake=lambda pool, row: pool.new_empty((pool.shape[0], *pool.shape[2:])),
    levels=VALUE,
    indices=(IndexOperand("row", "pool", 1),),
)
def npu_pool_read(pool: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """pool[b, row[b]]: a state [B,HV,V,K] of every sequence; pool [B,R,HV,V,K], row int64 [B].

    Raises IndexError for a row outside the pool.
    """
    if bool((row < 0).any()) or bool((row >= pool.shape[1]).any()):
        raise IndexError(f"a row lies outside the {pool.shape[1]} of the pool")
    return pool[torch.arange(len(row), device=row.device), row]


@op(
    "npu_pool_fill(Tensor pool, Tensor state) -> Tensor",
    fake=lambda pool, state: torch.empty_like(pool, memory_format=torch.contiguous_format),
    levels=VALUE,
)
def npu_pool_fill(pool: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A pool of pool's shape [B,R,HV,V,K] with state [B,HV,V,K] in all rows: whichever is the committed one, it is."""
    return state.to(pool.dtype).unsqueeze(1).expand(pool.shape).contiguous()


def _chain_fake(pool: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object) -> object:
    return v.new_empty(v.shape), torch.empty_like(pool, memory_format=torch.contiguous_format)


@op(
    "npu_recurrent_chain(Tensor pool, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor slots)"
    " -> (Tensor, Tensor)",
    fake=_chain_fake,
    levels=VALUE,
)
def npu_recurrent_chain(
    pool: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    slots: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """N tokens one after the other: (o [B,N,HV,V] in v's dtype, pool').

    pool bfloat16 [B,R,HV,V,K] (or [B,HV,V,K] with R = 1); q, k [B,N,H,K] raw, v [B,N,HV,V] bfloat16, g and beta
    [B,N,HV]; slots int32 of `npu_chain_slots`, N or N + 1 a sequence: the chain starts from the state in the first.
    With N + 1 that state stays there (the operator is given a token with g = beta = 0 in front) and the tokens' states
    go to the others. Within the chain the state is float32; stored, it is rounded. Unlike in `delta_rule`, what the
    operator takes is rounded: normed queries and keys, and rates. Raises ValueError for what it does not take.
    """
    if pool.dtype != NARROW or v.dtype != NARROW:
        raise ValueError(f"the operator takes bfloat16 states and values, not {pool.dtype} and {v.dtype}")
    batch, nodes = v.shape[:2]
    places = slots.to(torch.int64).reshape(batch, -1)
    carried = places.shape[1] - nodes
    if carried not in (0, 1):
        raise ValueError(f"{places.shape[1]} rows of a pool for {nodes} tokens")
    after = pool.reshape(-1, *pool.shape[-3:]).clone()
    rows = rows_of(after, q, k, v, g, beta)
    normed = unit(q.to(NARROW), torch.float32, v.shape[2]), unit(k.to(NARROW), torch.float32, v.shape[2])
    queries, keys = (x.to(NARROW).float() for x in normed)
    queries, rates = queries * float(q.shape[-1]) ** -0.5, beta.to(NARROW).float()
    tile, outputs = widened(after[places[:, 0]]), []
    for t in range(nodes):
        o, _, tile = step(tile, queries[:, t], keys[:, t], rows.v[:, t], rows.g[:, t], rates[:, t])
        outputs.append(o)
        after[places[:, t + carried]] = tile.to(NARROW)
    return torch.stack(outputs, dim=1).to(v.dtype), after.reshape(pool.shape)
