"""npu_recurrent_gated_delta_rule: the gated delta rule token by token, chains of at most 8 tokens, bf16 state.

S <- e^g S; u = beta (v - S k); S <- S + u k^T; o = S (scale q), as documented for torch_npu 2.13.0 (Gated DeltaNet,
arXiv 2412.06464, equation 10). The state of every token is written to that token's slot, rounded to bf16; within a
chain it stays in float32.
"""

from __future__ import annotations

import torch

MAX_TOKENS = 8
MAX_SIZE = 256


def recurrent_gated_delta_rule_(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor | None,
    gate: torch.Tensor | None,
) -> torch.Tensor:
    """[T, Nv, Dv] in bf16; `state` [slots, Nv, Dv, Dk] changes in place.

    query, key [T, Nk, Dk], value [T, Nv, Dv], beta [T, Nv] bf16; gate float32 [T, Nv] or None (no decay); lengths
    int32 [B], slots int32 [T]: where each token's state is written. A chain starts from the state in the slot of its
    token accepted[b] - 1 (the first without `accepted`). Undefined: slots outside, or shared by two tokens.
    """
    _check(query, key, value, state, beta, gate)
    counts = _checked_lengths(lengths, len(query))
    places = _checked_slots(slots, len(query), len(state))
    group = value.shape[1] // query.shape[1]
    q, k = (tensor.float().repeat_interleave(group, 1) for tensor in (query, key))
    output = torch.empty(value.shape, dtype=torch.float32)
    start = 0
    for sequence, count in enumerate(counts):
        first = 0 if accepted is None else int(accepted[sequence]) - 1
        if not 0 <= first < count:
            raise IndexError(f"num_accepted_tokens {first + 1} of a chain of {count}: undefined")
        current = state[places[start + first]].float()
        for token in range(start, start + count):
            if gate is not None:
                current = current * gate[token].exp()[:, None, None]
            error = value[token].float() - (current @ k[token][:, :, None])[..., 0]
            update = beta[token].float()[:, None] * error
            current = current + update[:, :, None] * k[token][:, None, :]
            output[token] = (current @ (q[token] * scale)[:, :, None])[..., 0]
            state[places[token]] = current.to(state.dtype)
        start += count
    return output.to(value.dtype)


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    beta: torch.Tensor,
    gate: torch.Tensor | None,
) -> None:
    if any(tensor.dtype != torch.bfloat16 for tensor in (query, key, value, state, beta)):
        raise ValueError("npu_recurrent_gated_delta_rule needs bfloat16 query, key, value, state and beta")
    if gate is not None and gate.dtype != torch.float32:
        raise ValueError(f"npu_recurrent_gated_delta_rule needs float32 g, got {gate.dtype}")
    tokens, heads, size = value.shape
    if query.shape != key.shape or query.shape[0] != tokens or heads % query.shape[1]:
        raise ValueError(f"queries {list(query.shape)}, keys {list(key.shape)}, values {list(value.shape)}")
    if state.shape[1:] != (heads, size, key.shape[2]) or beta.shape != (tokens, heads):
        raise ValueError(f"state {list(state.shape)}, beta {list(beta.shape)} for values {list(value.shape)}")
    if max(query.shape[1], heads, size, key.shape[2]) > MAX_SIZE:
        raise ValueError("npu_recurrent_gated_delta_rule takes at most 256 heads and head sizes")


def _checked_lengths(lengths: torch.Tensor, tokens: int) -> list[int]:
    counts = [int(count) for count in lengths.tolist()]
    if lengths.dtype != torch.int32 or sum(counts) != tokens or min(counts, default=1) < 1:
        raise ValueError(f"chains of {counts} ({lengths.dtype}) for {tokens} tokens")
    if max(counts, default=0) > MAX_TOKENS:
        raise ValueError(f"a chain of {max(counts)} tokens: at most {MAX_TOKENS}")
    return counts


def _checked_slots(slots: torch.Tensor, tokens: int, size: int) -> list[int]:
    places = [int(place) for place in slots.tolist()]
    if slots.dtype != torch.int32 or len(places) != tokens:
        raise ValueError(f"ssm_state_indices of {slots.dtype} {list(slots.shape)} for {tokens} tokens")
    if any(not 0 <= place < size for place in places):
        raise IndexError(f"a state slot outside 0 to {size - 1}: undefined")
    if len(set(places)) != len(places):
        raise IndexError("two tokens share a state slot: undefined")
    return places
