"""What is done over a whole vocabulary in one go: argmax, the best log-probabilities, the rejection walk.

The Triton backend finds these in the graphs and has one kernel for each; the naive programs hold their parts.
"""

from __future__ import annotations

import torch

from specc.ir.op import op
from specc.ir.ops.draft import stable_topk
from specc.ir.ops.sampling import counter_uniform, sample_index, sampling_probs


@op(
    "vocabulary_argmax(Tensor x) -> Tensor",
    fake=lambda x: x.new_empty(x.shape[:-1], dtype=torch.int64),
    rows=("x",),
)
def vocabulary_argmax(x: torch.Tensor) -> torch.Tensor:
    """int64 [...]: the first index of the maximum over the last dim of x [...,V]; NaN counts as the maximum."""
    return x.argmax(-1)


def _parts_fake(x: torch.Tensor, span: int) -> torch.Tensor:
    return x.new_empty((x.shape[0], -(-x.shape[2] // span), x.shape[1]), dtype=torch.int64)


@op("argmax_parts(Tensor x, int span) -> Tensor", fake=_parts_fake)
def argmax_parts(x: torch.Tensor, span: int) -> torch.Tensor:
    """Parts of `vocabulary_argmax` of x [B,N,V]: int64 [B,P,N], each `span` columns' largest value and its column.

    One number: the value in the upper half, in the order of floats (NaN above all), and 2^31 - 1 minus the column in
    the lower one. The greatest of them tells the argmax (see `greedy_tree`).
    """
    wide = torch.where(x == 0.0, torch.zeros_like(x), x).float()
    bits = wide.view(torch.int32).long()
    bits = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    bits = torch.where(wide.isnan(), torch.full_like(bits, 0x7FFFFFFF), bits)
    keys = (bits << 32) + (0x7FFFFFFF - torch.arange(x.shape[2], device=x.device))
    return torch.stack([part.amax(-1) for part in keys.split(span, dim=2)], dim=1)


def _greedy_fake(
    parts: torch.Tensor, tokens: torch.Tensor, parent: torch.Tensor | None, valid: torch.Tensor, longest: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    count, current, bonus = (tokens.new_empty(tokens.shape[:1]) for _ in range(3))
    return tokens.new_empty(tokens.shape[0], longest), count, current, bonus


@op(
    "greedy_tree(Tensor parts, Tensor tokens, Tensor? parent, Tensor valid, int longest) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    fake=_greedy_fake,
)
def greedy_tree(
    parts: torch.Tensor, tokens: torch.Tensor, parent: torch.Tensor | None, valid: torch.Tensor, longest: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Greedy acceptance of a tree: path [B,longest], accepted nodes [B], the last of them [B], the next token [B].

    parts int64 [B,P,N]: `argmax_parts` of the logits; tokens, parent [B,N] (None: a chain), valid bool [B,N]. A node is
    accepted if its parent is the last accepted one and its token the argmax there.
    """
    choice = 0x7FFFFFFF - (parts.amax(1) & 0xFFFFFFFF)
    current = tokens.new_zeros(tokens.shape[0])
    count, path = torch.zeros_like(current), tokens.new_zeros(tokens.shape[0], longest)
    for node in range(1, tokens.shape[1]):
        wanted = choice.gather(1, current.unsqueeze(1)).squeeze(1)
        accepted = valid[:, node] & (current == (node - 1 if parent is None else parent[:, node]))
        accepted = accepted & (tokens[:, node] == wanted)
        count = count + accepted
        at_end = torch.arange(longest, device=path.device) == count.unsqueeze(1)
        path = torch.where(at_end & accepted.unsqueeze(1), torch.full_like(path, node), path)
        current = torch.where(accepted, torch.full_like(current, node), current)
    return path, count, current, choice.gather(1, current.unsqueeze(1)).squeeze(1)


def _best_fake(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (*logits.shape[:-1], k)
    wide = torch.promote_types(logits.dtype, torch.float32)
    return logits.new_empty(shape, dtype=wide), logits.new_empty(shape, dtype=torch.int64)


@op("topk_log_probs(Tensor logits, int k) -> (Tensor, Tensor)", fake=_best_fake, rows=("logits",))
def topk_log_probs(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best tokens of logits [...,V]: min(log_softmax, 0) of them in float32 at least, and their indices.

    In the order of `stable_topk` of the log-probabilities.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    values, indices = stable_topk(logits.to(wide).log_softmax(-1).clamp_max(0.0), k)
    return values, indices


def _walk_fake(
    law: torch.Tensor, q_law: torch.Tensor | None, tokens: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    longest = rest[4]
    assert isinstance(longest, int)
    count, current, bonus = (tokens.new_empty(tokens.shape[:1]) for _ in range(3))
    return tokens.new_empty(tokens.shape[0], longest), count, current, bonus


@op(
    "reject_tree(Tensor law, Tensor? q_law, Tensor tokens, Tensor? parent, Tensor valid, Tensor rng, Tensor length, "
    "int longest, float temperature, int top_k) -> (Tensor, Tensor, Tensor, Tensor)",
    fake=_walk_fake,
)
def reject_tree(
    law: torch.Tensor,
    q_law: torch.Tensor | None,
    tokens: torch.Tensor,
    parent: torch.Tensor | None,
    valid: torch.Tensor,
    rng: torch.Tensor,
    length: torch.Tensor,
    longest: int,
    temperature: float,
    top_k: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lossless acceptance of a tree: path [B,longest], accepted nodes [B], the last of them [B], the next token [B].

    law [B,N,V]: logits, of which `sampling_probs` with this temperature and top_k is the law; or with temperature 0 the
    law itself. q_law [B,N,V]: the law that a node's children were drawn from (rule true_q; None: target_only). tokens,
    parent [B,N] (None: a chain), valid bool [B,N]; rng, length [B]. Node i at depth d is judged by
    counter_uniform(rng, length + d, i + 1), the next token at depth d + 1 drawn by counter_uniform(rng, length + d + 1,
    0); see `specc.lower.accept_rules` for the rules. The path is padded with 0 behind the accepted nodes.
    """
    wide = torch.promote_types(law.dtype, torch.float32)
    probs = law if temperature == 0.0 else sampling_probs(law, temperature, top_k, 1.0, wide)
    current, count = torch.zeros_like(length), torch.zeros_like(length)
    path = tokens.new_zeros(tokens.shape[0], longest)
    residual, rest = probs[:, 0], probs[:, 0] if q_law is None else q_law[:, 0]
    for node in range(1, tokens.shape[1]):
        token = tokens[:, node : node + 1]
        looked = valid[:, node] & (current == (node - 1 if parent is None else parent[:, node]))
        uniform = counter_uniform(rng, length + count + 1, node + 1)
        struck = torch.arange(probs.shape[-1], device=probs.device) == token
        p, q = residual.gather(1, token).squeeze(1), rest.gather(1, token).squeeze(1)
        accepted = looked & ((uniform if q_law is None else uniform * q) < p)
        left = residual.masked_fill(struck, 0.0) if q_law is None else (residual - rest).clamp_min(0.0)
        residual = torch.where(looked.unsqueeze(1), _scaled(left), residual)
        residual = torch.where(accepted.unsqueeze(1), probs[:, node], residual)
        if q_law is not None:
            rest = torch.where(looked.unsqueeze(1), _scaled(rest.masked_fill(struck, 0.0)), rest)
            rest = torch.where(accepted.unsqueeze(1), q_law[:, node], rest)
        count = count + accepted
        at_end = torch.arange(longest, device=path.device) == count.unsqueeze(1)
        path = torch.where(at_end & accepted.unsqueeze(1), torch.full_like(path, node), path)
        current = torch.where(accepted, torch.full_like(current, node), current)
    drawn = sample_index(residual, counter_uniform(rng, length + count + 1, 0))
    own = probs[torch.arange(probs.shape[0], device=probs.device), current].argmax(-1)
    return path, count, current, torch.where(residual.sum(-1) > 0.0, drawn, own)


def _scaled(weights: torch.Tensor) -> torch.Tensor:
    """To sum 1 along the last dim; unchanged where there is no mass."""
    mass = weights.sum(-1, keepdim=True)
    return weights / torch.where(mass > 0.0, mass, torch.ones_like(mass))
