"""Random numbers, laws and draws, and the rejection walk over a drafted tree."""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.acceptance import judge_rows, leave_parts
from specc.backends.triton.kernels.sampling import law_rows, uniform_rows, uniforms
from specc.backends.triton.kernels.sampling_tree import reject_nodes, sample_rows
from specc.backends.triton.launch.core import as_bytes, beside, interpreted, power_of_two
from specc.backends.triton.ops.vocab import arrivals, flat_last, lanes, mailboxes

Tensor = torch.Tensor

UNIFORM_BLOCK = 1024
SPAN = 2048
"""Elements of a row that one program of a group has."""
SPAN_WARPS = 4
JUDGED_SPAN = 2048
"""Elements of a row that one program sums up by itself."""
BOXES = 32
"""Words that a program has for its exchanges: twice 16."""
LEFT_WARPS = 4
JUDGED_WARPS = 8
JUDGED_REGISTERS = 128
"""As many as are needed: left alone the assembler takes 64 or 80, and spills a few."""
SEARCHED_REGISTERS = 168
"""With a search for the k-th largest among more than 32 parts."""
HELD = 4096
"""The largest numbers of a row that one program holds."""


def divided(size: int) -> tuple[int, int]:
    """(elements per program, programs per row); in the interpreter programs can't wait for one another."""
    span = power_of_two(size) if interpreted() else min(SPAN, power_of_two(size))
    return span, -(-size // span)


def counter_uniform(rng: Tensor, position: Tensor, draw: int) -> Tensor:
    """float64 [B] uniform in [0, 1), a function of (rng[b], position[b], draw) alone."""
    out = torch.empty(rng.shape, dtype=torch.float64, device=rng.device)
    size = rng.numel()
    block = min(256, power_of_two(size))
    uniforms[(-(-size // block),)](rng.contiguous(), position.contiguous(), out, draw, size, BLOCK=block, num_warps=1)
    return out


def counter_uniform_rows(rng: Tensor, position: Tensor, draw: Tensor, size: int) -> Tensor:
    """float64 [B,M,size] uniform in [0, 1): column j from (rng[b], position[b,m], draw[b,m], j) alone."""
    out = torch.empty((*position.shape, size), dtype=torch.float64, device=rng.device)
    block = min(UNIFORM_BLOCK, power_of_two(size))
    uniform_rows[(-(-size // block), position.numel())](
        rng.contiguous(),
        position.contiguous(),
        draw.contiguous(),
        out,
        position.shape[1],
        size,
        BLOCK=block,
        num_warps=4,
    )
    return out


def key_bits(dtype: torch.dtype) -> int:
    """The upper bits of a float32 that numbers of a dtype differ in."""
    return 16 if dtype == torch.bfloat16 else 32


def sampling_probs(logits: Tensor, temperature: float, top_k: int, top_p: float, dtype: torch.dtype) -> Tensor:
    """The law that a standard sampler draws from, over the last dim of logits [B,M,V]: same shape, in `dtype`.

    Temperature and top_k in one launch, float32; of tokens that the division by the temperature makes equal, only those
    whose logits are equal tie. top_p < 1 sorts.
    """
    rows = flat_last(logits)
    count, size = rows.shape
    probs = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    span, parts = divided(size)
    warps = SPAN_WARPS if logits.dtype == torch.bfloat16 else 2 * SPAN_WARPS  # four spill in float32
    law_rows[(parts, count)](
        rows,
        probs,
        *mailboxes(logits.device, count, BOXES * parts),
        size,
        rows.stride(0),
        parts,
        float(temperature),
        top_k,
        TOP_K=0 < top_k < size,
        BITS=key_bits(logits.dtype),
        PARTS=lanes(parts, warps),
        SPAN=span,
        num_warps=warps,
        maxnreg=JUDGED_REGISTERS,
        **beside(),
    )
    if top_p < 1.0:
        ordered, order = torch.sort(probs, dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        before[..., 0] = 0.0
        kept = torch.where((before < top_p) | (before == 0.0), ordered, torch.zeros_like(ordered))
        probs = torch.zeros_like(probs).scatter(-1, order, kept)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs.to(dtype)


def sample_index(weights: Tensor, uniform: Tensor) -> Tensor:
    """int64 [B]: the token at which the running sum of weights [B,V] first exceeds uniform[b] * total."""
    rows = flat_last(weights)
    count, size = rows.shape
    out = torch.empty(uniform.shape, dtype=torch.int64, device=weights.device)
    span, parts = divided(size)
    sample_rows[(parts, count)](
        rows,
        uniform,
        out,
        *mailboxes(weights.device, count, BOXES * parts),
        size,
        rows.stride(0),
        parts,
        PARTS=lanes(parts, SPAN_WARPS),
        SPAN=span,
        num_warps=SPAN_WARPS,
        **beside(),
    )
    return out


def reject_tree(
    law: Tensor,
    q_law: Tensor | None,
    tokens: Tensor,
    parent: Tensor | None,
    valid: Tensor,
    rng: Tensor,
    length: Tensor,
    longest: int,
    temperature: float,
    top_k: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The accepted path [B,longest], its length without the root [B], its last node [B] and the token after it [B].

    Sums over the vocabulary are in another order than torch's.
    """
    if q_law is None and kept_keys(top_k, law.shape[2]) * 16 <= HELD:
        return judge_tree(law, tokens, parent, valid, rng, length, longest, temperature, top_k)
    batch, nodes, size = law.shape
    law, device = law.contiguous(), law.device
    path = torch.empty((batch, longest), dtype=torch.int64, device=device)
    count, current, bonus = torch.empty((3, batch), dtype=torch.int64, device=device).unbind(0)
    chosen, picked = torch.empty((2, batch, nodes), dtype=torch.int32, device=device).unbind(0)
    span, parts = divided(size)
    reject_nodes[(parts, nodes, batch)](
        law,
        law if q_law is None else q_law.contiguous(),
        tokens.contiguous(),
        tokens if parent is None else parent.contiguous(),
        as_bytes(valid, valid),
        rng,
        length,
        *mailboxes(device, batch * nodes, BOXES * parts),
        chosen,
        picked,
        arrivals(device, batch),
        path,
        count,
        current,
        bonus,
        nodes,
        size,
        longest,
        parts,
        float(temperature or 1.0),
        top_k,
        SOFT=temperature > 0.0,
        TOP_K=0 < top_k < size,
        USE_Q=q_law is not None,
        TREE=parent is not None,
        NB=power_of_two(nodes),
        PP=power_of_two(longest),
        BITS=key_bits(law.dtype),
        PARTS=lanes(parts, SPAN_WARPS),
        SPAN=span,
        num_warps=SPAN_WARPS,
        maxnreg=registers(top_k, size, parts),
        **beside(),
    )
    return path, count, current, bonus


def registers(top_k: int, size: int, parts: int) -> int:
    """The most registers of a thread that judges a node."""
    return SEARCHED_REGISTERS if 0 < top_k < size and parts > 32 else JUDGED_REGISTERS


def kept_keys(top_k: int, size: int) -> int:
    """How many of its largest numbers a part of a row leaves: some more than k, for those that tie; 1 without top_k."""
    return power_of_two(top_k + top_k // 4) if 0 < top_k < size else 1


def judge_tree(
    law: Tensor,
    tokens: Tensor,
    parent: Tensor | None,
    valid: Tensor,
    rng: Tensor,
    length: Tensor,
    longest: int,
    temperature: float,
    top_k: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`reject_tree` where drafts have no law of their own: two launches, whose programs do not wait for one another."""
    batch, nodes, size = law.shape
    law, tokens, counted = law.contiguous(), tokens.contiguous(), as_bytes(valid, valid)
    above = tokens if parent is None else parent.contiguous()
    sums, held = left_parts(law, tokens, parent, counted, temperature, top_k)
    path = torch.empty((batch, longest), dtype=torch.int64, device=law.device)
    count, current, bonus = torch.empty((3, batch), dtype=torch.int64, device=law.device).unbind(0)
    chosen, picked = torch.empty((2, batch, nodes), dtype=torch.int32, device=law.device).unbind(0)
    parts, kept = sums.shape[3], kept_keys(top_k, size)
    judge_rows[(nodes, batch)](
        law,
        tokens,
        above,
        counted,
        rng,
        length,
        sums,
        held[0],
        held[1],
        chosen,
        picked,
        arrivals(law.device, batch),
        path,
        count,
        current,
        bonus,
        nodes,
        size,
        longest,
        parts,
        batch,
        float(temperature or 1.0),
        top_k,
        SOFT=temperature > 0.0,
        TOP_K=0 < top_k < size,
        TREE=parent is not None,
        NB=power_of_two(nodes),
        PP=power_of_two(longest),
        BITS=key_bits(law.dtype),
        KEPT=kept,
        PARTS=power_of_two(parts),
        SPAN=part_of_law(size, kept),
        num_warps=JUDGED_WARPS,
        maxnreg=registers(top_k, size, parts),
        **beside(),
    )
    return path, count, current, bonus


def part_of_law(size: int, kept: int) -> int:
    """Elements of a row that one program sums up: so many that the parts leave no more numbers than one can hold."""
    return max(min(JUDGED_SPAN, power_of_two(size)), power_of_two(-(-size * kept // HELD)))


def left_parts(
    law: Tensor, tokens: Tensor, parent: Tensor | None, counted: Tensor, temperature: float, top_k: int
) -> tuple[Tensor, Tensor]:
    """What the parts of rows leave: sums [B,N,2,parts] and with top_k keys and columns [2,B,N,parts,kept]."""
    batch, nodes, size = law.shape
    kept = kept_keys(top_k, size)
    span = part_of_law(size, kept)
    parts = -(-size // span)
    sums = torch.empty((batch, nodes, 2, parts), dtype=torch.float64, device=law.device)
    held = torch.empty((2, batch, nodes, parts, kept), dtype=torch.int32, device=law.device)
    leave_parts[(parts, nodes, batch)](
        law,
        tokens,
        tokens if parent is None else parent.contiguous(),
        counted,
        sums,
        held[0],
        held[1],
        nodes,
        size,
        parts,
        float(temperature or 1.0),
        top_k,
        SOFT=temperature > 0.0,
        TOP_K=0 < top_k < size,
        TREE=parent is not None,
        NB=power_of_two(nodes),
        BITS=key_bits(law.dtype),
        KEPT=kept,
        SPAN=span,
        num_warps=LEFT_WARPS if span <= JUDGED_SPAN else 2 * LEFT_WARPS,
        **beside(),
    )
    return sums, held
