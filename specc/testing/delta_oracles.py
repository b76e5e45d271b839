"""The gated delta rule, its convolution and its experts by definition: one token of one path at a time, in float64.

Written from the formulas (Yang et al., 2024, eq. 10) with NumPy, apart from the compiler's own implementations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Token:
    """One token of one sequence: raw q, k [H,K], v [HV,V], g, beta [HV]."""

    q: Array
    k: Array
    v: Array
    g: Array
    beta: Array


def path_to(node: int, parent_row: Sequence[int]) -> list[int]:
    """Nodes from the committed context down to `node`; `parent_row`: 0 is the context, node i is i + 1."""
    above = parent_row[node]
    return [*(path_to(above - 1, parent_row) if above > 0 else []), node]


def l2norm(x: Array) -> Array:
    """x [..,K] / sqrt(sum x^2 + 1e-6)."""
    length: Array = np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    return x / length


def delta_step(state: Array, token: Token) -> tuple[Array, Array, Array]:
    """(o [HV,V], u [HV,V], state') after one token on state [HV,V,K]."""
    after = np.empty_like(state)
    o, u = np.empty_like(token.v), np.empty_like(token.v)
    value_heads, _, width = state.shape
    group = value_heads // token.k.shape[0]
    for head in range(value_heads):
        q, k = l2norm(token.q[head // group]) / np.sqrt(width), l2norm(token.k[head // group])
        decayed = np.exp(token.g[head]) * state[head]
        u[head] = token.beta[head] * (token.v[head] - decayed @ k)
        after[head] = decayed + np.outer(u[head], k)
        o[head] = after[head] @ q
    return o, u, after


def delta_path(state: Array, tokens: Sequence[Token]) -> tuple[Array, Array, Array]:
    """(o, u of the last token, state') after all tokens, at least one."""
    for token in tokens:
        o, u, state = delta_step(state, token)
    return o, u, state


def path_inputs(window: Array, x: Array, node: int, parent_row: Sequence[int], taps: int) -> Array:
    """[taps,C]: the last inputs of the node's path, oldest first; before it, those of window [taps-1,C]."""
    inputs = [*window, *(x[i] for i in path_to(node, parent_row))]
    return np.stack(inputs[len(inputs) - taps :])


def conv_silu(inputs: Array, weight: Array, bias: Array | None) -> Array:
    """silu(sum_w weight[:,0,w] inputs[w] + bias) of inputs [W,C]."""
    total: Array = (inputs * weight[:, 0].T).sum(0) + (0.0 if bias is None else bias)
    return total / (1.0 + np.exp(-total))


def expert_mixture(
    x: Array, router: Array, gate_up: Array, down: Array, experts_per_token: int, renormalise: bool
) -> Array:
    """One token x [hid] through its most probable experts; router [E,hid], gate_up [E,2I,hid], down [E,hid,I]."""
    scores = router @ x
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    chosen = sorted(range(len(scores)), key=lambda expert: -probabilities[expert])[:experts_per_token]
    total = sum(probabilities[expert] for expert in chosen) if renormalise else 1.0
    out = np.zeros_like(x)
    for expert in chosen:
        gate, up = np.split(gate_up[expert] @ x, 2)
        out += probabilities[expert] / total * (down[expert] @ (gate / (1.0 + np.exp(-gate)) * up))
    return out
