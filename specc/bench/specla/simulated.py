"""Decoding with drafts of a given quality through a module's own verify, accept and commit, each step timed.

Nothing is drafted: the drafts are made on the host from the text that the same module decodes plainly, with errors
planted in them (`planted`), and lie on the device before a step is timed. A step is verify + accept + commit as one
CUDA graph and the reading of its result; on the CPU the same functions run one by one. States move on as in decoding,
so that a deferred commit folds what the step before has left.

The target's weights are random, with a head that lets the next token follow from the last one: otherwise the logits of
random weights lie so close that rounding changes one token in twenty between a step of one node and one of sixteen.
What a step computes and reads is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from specc.bench.specla.planted import planted
from specc.bench.step_stand import captured, prefilled, take_over
from specc.spec import LoadedSpec
from specc.testing.tensors import tree_tensors

STEP = 7919
"""The next token is this much further on; prime, so that a text visits every token of most vocabularies."""
LOUD = 30.0
"""Factor on the embeddings, so that the last token is heard through all layers."""


def predictable(logical: dict[str, Any]) -> None:
    """Make the target's head (not a tied one) say that token t is followed by t + STEP."""
    embedding = logical["embed_tokens"]
    signs = torch.sign(logical["norm"].float())
    logical["lm_head"] = ((embedding.float() * signs).roll(STEP, 0) / embedding.shape[1] ** 0.5).to(embedding.dtype)
    logical["embed_tokens"] = embedding * LOUD


@dataclass(slots=True)
class Run:
    """Counted steps with their times in microseconds."""

    step_us: list[float] = field(default_factory=list)
    tokens: int = 0
    differences: int = 0

    @property
    def acceptance_length(self) -> float:
        """Tokens per step, the bonus counted."""
        return self.tokens / max(len(self.step_us), 1)

    @property
    def mean_us(self) -> float:
        """Of a step."""
        return sum(self.step_us) / max(len(self.step_us), 1)

    @property
    def us_per_token(self) -> float:
        """Of decoding."""
        return sum(self.step_us) / max(self.tokens, 1)


@dataclass(slots=True)
class Simulated:
    """One row with a context. `text` holds the root token after the prompt and what plain decoding goes on with."""

    loaded: LoadedSpec
    module: Any
    weights: Any
    state: Any
    device: torch.device
    context: int = 0
    kept: list[Tensor] = field(default_factory=list)
    text: list[int] = field(default_factory=list)
    draft: Any = None
    _steps: dict[str, Callable[[], Tensor]] = field(default_factory=dict)

    def verify_step(self) -> Tensor:
        """Verify the draft that lies there, accept, commit; int64 [1,2]: accepted nodes, bonus."""
        draft = self.draft
        above = None if self.loaded.spec.is_chain else draft.parent
        state, verified = self.module.run_verify(self.weights, self.state, draft.tokens, above, draft.valid)
        state, accepted = self.module.run_accept(state, verified, draft)
        take_over(self.state, self.module.run_commit(state, verified, accepted))
        return torch.stack((accepted.accept_length, accepted.bonus), 1)

    def plain_step(self) -> Tensor:
        """One token, as the module's own decoder does it; int64 [1]: that token."""
        if hasattr(self.module, "run_plain_step"):
            record: Tensor = self.module.run_plain_step(self.weights, self.state).record
            return record[:, 1]
        take_over(self.state, self.module.run_decode(self.weights, self.state)[0])
        token: Tensor = self.state.root_token
        return token

    def restart(self) -> None:
        """Back to the end of the prompt."""
        for slot, value in zip(self.state, self.kept, strict=True):
            slot.copy_(value)

    def _step(self, name: str) -> Callable[[], Tensor]:
        """The step of this name: a replay on CUDA devices."""
        if name not in self._steps:
            function = self.verify_step if name == "verify" else self.plain_step
            self._steps[name] = function if self.device.type != "cuda" else _replaying(function)
            self.restart()
        return self._steps[name]

    def _timed(self, name: str) -> tuple[list[int], float]:
        """A step's result and its microseconds until that is on the host."""
        step = self._step(name)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        found = step().cpu()
        spent = (time.perf_counter() - began) * 1e6
        return found.flatten().tolist(), spent

    def plain(self, tokens: int) -> Run:
        """Decode plainly from the prompt on; the tokens are the text of the drafts from then on."""
        run = Run()
        self._step("plain")
        self.restart()
        self.text = [int(self.state.root_token[0])]
        for _ in range(tokens):
            found, spent = self._timed("plain")
            self.text.append(found[0])
            run.step_us.append(spent)
            run.tokens += 1
        return run

    def speculative(self, parent: Sequence[int], p: float, steps: int, seed: int = 0) -> Run:
        """So many steps along the text with drafts of this shape and quality; at its end it begins again.

        A bonus that is not the text's token is counted as a difference; the next draft's root is the text's token.
        """
        run, rng, at = Run(), Random(seed), 0
        longest, vocabulary = self.loaded.spec.depth + 1, int(self.module.VOCAB_SIZE)
        self._place(parent, self.text[:longest], vocabulary, p, rng)
        self._step("verify")
        self.restart()
        while len(run.step_us) < steps:
            if at + longest >= len(self.text):
                self.restart()
                at = 0
            self._place(parent, self.text[at : at + longest], vocabulary, p, rng)
            (accepted, bonus), spent = self._timed("verify")
            at += accepted + 1
            run.step_us.append(spent)
            run.tokens += accepted + 1
            run.differences += bonus != self.text[at]
        return run

    def _place(self, parent: Sequence[int], text: Sequence[int], vocabulary: int, p: float, rng: Random) -> None:
        """Put a draft on the device, where the captured step reads it."""
        tensors = tree_tensors([planted(parent, text, vocabulary, p, rng)], self.device)
        values = dict(zip(("tokens", "parent", "valid"), tensors, strict=True))
        if self.draft is None:
            self.draft = self.module.Draft(**{name: values[name] for name in self.module.Draft._fields})
        for slot, name in zip(self.draft, self.draft._fields, strict=True):
            slot.copy_(values[name])


def _replaying(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The function as a graph. What it returned while it was captured holds the results of every replay."""
    made: list[Tensor] = []

    def once() -> None:
        made[:] = [function()]

    graph = captured(once)

    def replay() -> Tensor:
        graph.replay()
        return made[0]

    return replay


def simulated(loaded: LoadedSpec, module: Any, weights: Any, prompt: Sequence[int], device: torch.device) -> Simulated:
    """A row after its prompt, without limits on what it decodes."""
    state = prefilled(module, weights, [list(prompt)], device)
    state.remaining.fill_(int(module.MAX_SEQUENCE_LENGTH))
    state.finished.fill_(False)
    made = Simulated(loaded, module, weights, state, device, len(prompt))
    made.kept = [slot.clone() for slot in state]
    return made
