"""The delta rule along chains by the device's recurrent operator, on a pool of states that it updates in place.

A pool comes as [B,R,HV,V,K] or, as in a graph, with batch and rows in one dim: the operator numbers all rows, and only
an input that no view stands before is updated where it lies.
"""

from __future__ import annotations

import torch

from specc.backends.ascend.ops.delta_math import unit_rows


def npu_chain_slots(row: torch.Tensor, rows: int, tokens: int) -> torch.Tensor:
    """int32 [B*tokens]: rows row[b], row[b] + 1, … of sequence b's ring of `rows` rows in a pool, no row twice."""
    batch = row.shape[0]
    place = torch.arange(tokens, device=row.device) + row.unsqueeze(1)
    place = torch.where(place < rows, place, place - rows)
    first = torch.arange(batch, device=row.device).unsqueeze(1) * rows
    return (place + first).to(torch.int32).reshape(-1)


def npu_pool_read(pool: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """A state [B,HV,V,K] of every sequence: row[b] of its rows in the pool."""
    batch, states = row.shape[0], pool.reshape(-1, *pool.shape[-3:])
    first = torch.arange(batch, device=row.device) * (states.shape[0] // batch)
    return states.index_select(0, row + first)


def npu_pool_fill(pool: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A pool of this shape with state [B,HV,V,K] in all of a sequence's rows."""
    batch, sizes = state.shape[0], pool.shape[-3:]
    rows = pool.reshape(batch, -1, *sizes).shape[1]
    return state.unsqueeze(1).expand(batch, rows, *sizes).reshape(pool.shape)


def npu_recurrent_chain(
    pool: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    slots: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """N tokens one after the other from the state in a sequence's first slot: (o [B,N,HV,V], the pool).

    q, k [B,N,H,K] raw, v [B,N,HV,V] bfloat16; g, beta [B,N,HV]; slots int32, N or N + 1 a sequence. With N + 1 a token
    that changes nothing (g = beta = 0) stands in front, which leaves the first slot as it is.
    """
    batch, nodes, heads, dim = k.shape
    tokens = slots.shape[0] // batch
    parts = [q, k]
    if tokens > nodes:
        none = torch.zeros((batch, 1, heads, dim), dtype=k.dtype, device=k.device)
        parts = [none, q, none, k]
        value = torch.zeros((batch, 1, *v.shape[2:]), dtype=v.dtype, device=v.device)
        rate = torch.zeros((batch, 1, v.shape[2]), dtype=g.dtype, device=g.device)
        v, g, beta = torch.cat((value, v), 1), torch.cat((rate, g), 1), torch.cat((rate, beta), 1)
    normed = unit_rows(torch.cat(parts, 1), torch.float32, heads, 0).to(v.dtype)
    query, key = torch.split(normed, [tokens, tokens], 1)
    o, after = torch.ops.npu.npu_recurrent_gated_delta_rule_functional(
        query.reshape(-1, heads, dim),
        key.reshape(-1, heads, dim),
        v.reshape(-1, *v.shape[2:]),
        pool.reshape(-1, *pool.shape[-3:]),
        beta=beta.to(v.dtype).reshape(-1, v.shape[2]),
        scale=float(dim) ** -0.5,
        actual_seq_lengths=torch.full((batch,), tokens, dtype=torch.int32, device=v.device),
        ssm_state_indices=slots,
        g=g.reshape(-1, v.shape[2]),
    )
    o = o.reshape(batch, tokens, *v.shape[2:]).narrow(1, tokens - nodes, nodes)
    return o, after.reshape(pool.shape)
