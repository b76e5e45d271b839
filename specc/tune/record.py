"""Recording what a drafter would propose at every position of the target's own text.

Two modules of one spec run side by side. One has the generous tree; only its `draft` runs, for the candidates. The
other advances the text by one token a step: it verifies the root alone, a step without drafts, and what it commits is
handed to the first. So every position is drafted from, not only those at which some tree's steps happen to begin.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specc.runtime.generate import Request, batches, decode_batch
from specc.runtime.session import Session
from specc.tune.evidence import Recorded, TextSpan
from specc.tune.lookup import Decoded, Looked

Say = Callable[[str], None]
COMMITTED = ("length", "root_token", "finished", "recent_tokens", "recent_count", "recent_features", "history")
"""The slots of committed text and of what the target made of it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When recording ends: new tokens per text, and positions in all; or the time (of time.monotonic), if there are
    `fewest` positions."""

    max_new_tokens: int
    positions: int
    deadline: float
    fewest: int = 0

    def over(self, count: int) -> bool:
        """Whether `count` positions have to do."""
        return count >= self.positions or (count >= self.fewest and time.monotonic() > self.deadline)


@dataclass(slots=True)
class _Row:
    """A text under way: its tokens, and the candidates (token, parent, own log-probability) behind each of them."""

    request: Request
    tokens: list[int]
    drafts: list[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]] = field(default_factory=list)


def record(session: Session, drafting: Any, requests: Sequence[Request], limits: Limits, say: Say) -> list[_Row]:
    """The texts of the requests with candidates at every position; `drafting` is the module of the generous tree.

    `session` has a tree of the same num_steps, so that all slots that drafting reads have the same shape.
    """
    rows: list[_Row] = []
    weights = drafting.Weights(*session.decoder.weights)
    for group in batches(requests, session.module.MAX_BATCH_SIZE):
        count = sum(len(row.drafts) for row in rows)
        if limits.over(count):
            break
        rows += _group(session, drafting, weights, group, limits, count)
        say(f"recorded {sum(len(row.drafts) for row in rows)} positions of {len(rows)} texts")
    return [row for row in rows if row.drafts]


def _group(
    session: Session, drafting: Any, weights: Any, group: Sequence[Request], limits: Limits, count: int
) -> list[_Row]:
    """One batch, token by token."""
    module: Any = session.module
    prompts, numbers = [list(request.ids) for request in group], [request.number for request in group]
    states = []
    for one, its_weights in ((module, session.decoder.weights), (drafting, weights)):
        decoder = _stage_by_stage(one, its_weights)
        first = decoder.start(prompts, limits.max_new_tokens, seed=session.identity.seed, requests=numbers)
        states.append(decoder.state)
    rows = [_Row(request, [token]) for request, token in zip(group, first, strict=True)]
    (state, own), nothing = states, None
    with torch.no_grad():
        while not limits.over(count):
            finished = state.finished.tolist()
            if all(finished):
                break
            own, drafted = drafting.run_draft(weights, own._replace(**_committed(state, own)))
            parts = [_array(part)[:, 1:] for part in (drafted.tokens, _parents(drafted), drafted.log_probs)]
            nothing = _root_only(module, state, nothing)
            parent = getattr(nothing, "parent", None)
            state, verified = module.run_verify(session.decoder.weights, state, nothing.tokens, parent, nothing.valid)
            state, taken = module.run_accept(state, verified, nothing)
            tokens = taken.emitted_tokens[:, 0].tolist()
            state = module.run_commit(state, verified, taken)
            for number, row in enumerate(rows):
                if not finished[number]:
                    row.drafts.append((parts[0][number], parts[1][number] - 1, parts[2][number]))
                    row.tokens.append(tokens[number])
                    count += 1
    return rows


def _stage_by_stage(module: Any, weights: Any) -> Any:
    """A decoder that captures no graphs: only its prefill is used."""
    options = {"eager": True} if "eager" in inspect.signature(module.Decoder.__init__).parameters else {}
    device = (weights[0] if isinstance(weights[0], Tensor) else weights[0][0]).device
    return module.Decoder(weights, device, **options)


def _committed(there: Any, here: Any) -> dict[str, Tensor]:
    """What drafting reads of committed tokens. The drafter's caches stay its own: their capacity depends on the tree,
    and each draft adds the rows of what was committed since the last one."""
    return {name: getattr(there, name) for name in COMMITTED if name in here._fields}


def _parents(drafted: Any) -> Tensor:
    """parent [B,N], also of a chain, which has no such tensor."""
    parent = getattr(drafted, "parent", None)
    if isinstance(parent, Tensor):
        return parent
    number = torch.arange(drafted.tokens.shape[1], device=drafted.tokens.device)
    return (number - 1).expand_as(drafted.tokens)


def _array(value: Tensor) -> npt.NDArray[Any]:
    return value.cpu().numpy()


def _root_only(module: Any, state: Any, made: Any) -> Any:
    """A draft of the root and padding; `made` is that of the step before, whose root is replaced."""
    root = state.root_token
    if made is not None:
        tokens = made.tokens.clone()
        tokens[:, 0] = root
        return made._replace(tokens=tokens)
    nodes = int(module.SPEC["draft"]["num_speculative_tokens"]) + 1
    tokens = torch.zeros((root.shape[0], nodes), dtype=torch.int64, device=root.device)
    valid = torch.zeros_like(tokens, dtype=torch.bool)
    tokens[:, 0], valid[:, 0] = root, True
    fields: dict[str, Tensor] = {"tokens": tokens, "valid": valid}
    if "parent" in module.Draft._fields:
        fields["parent"] = torch.zeros_like(tokens)
        fields["parent"][:, 0] = -1
    if "log_probs" in module.Draft._fields:
        fields["log_probs"] = torch.zeros_like(tokens, dtype=torch.float32)
    return module.Draft(**fields)


def recorded(rows: Sequence[_Row], top_k: int, levels: int) -> Recorded:
    """The evidence of recorded texts. Cumulative scores are added in float32, level by level, as the module does."""
    spans, start = [], 0
    truth = []
    for row in rows:
        spans.append(TextSpan(row.request.name, start, start + len(row.drafts)))
        start += len(row.drafts)
        for place in range(len(row.drafts)):
            ahead = row.tokens[place + 1 : place + 1 + levels]
            truth.append(ahead + [-1] * (levels - len(ahead)))
    token, parent, own = (np.stack([draft[part] for row in rows for draft in row.drafts]) for part in range(3))
    score = own.astype(np.float32)
    width = top_k * top_k
    for first in range(top_k, token.shape[1], width):
        columns = slice(first, first + width)
        score[:, columns] += np.take_along_axis(score, parent[:, columns], 1)
    return Recorded(spans, top_k, levels, token, parent, score, np.array(truth, dtype=np.int64))


def look_up(session: Session, requests: Sequence[Request], limits: Limits, say: Say) -> list[Decoded]:
    """Plain texts of the requests: what prompt lookup needs."""
    texts: list[Decoded] = []
    count = 0
    for group in batches(requests, session.module.MAX_BATCH_SIZE):
        if limits.over(count):
            break
        batch = decode_batch(
            session.decoder, group, limits.max_new_tokens, seed=session.identity.seed, speculative=False
        )
        for result in batch.results:
            texts.append(Decoded(result.request.name, result.request.ids, tuple(result.tokens)))
            count += len(result.tokens) - 1
        say(f"decoded {count} positions of {len(texts)} texts")
    return [text for text in texts if len(text.tokens) > 1]


def looked(texts: Sequence[Decoded], ngram: tuple[int, int], top_k: int, levels: int, nodes: int) -> Looked:
    """Evidence for prompt lookup."""
    return Looked(texts, ngram, top_k, levels, nodes)
