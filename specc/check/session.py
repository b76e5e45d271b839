"""Runs one example: prompts, then speculative steps, on the leader and its followers, checked against plain decoding.

The host keeps every row's text (its last token is the root). What each step must do follows from the text alone: the
logits of every node (plain decoding after its path), the accepted path (the rules in plain Python), the rows committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from specc.check import acceptance, actions, step_checks
from specc.check.crew import Crew, first_tree
from specc.check.drafts import as_bag, own, planted
from specc.check.example import ACTIONS, AGAINST, OWN, Example, StepPlan
from specc.check.findings import Checks
from specc.check.machines import Results, copied
from specc.check.subject import Subject
from specc.check.tally import Tally
from specc.check.view import view
from specc.testing.draft_tree import DraftTree
from specc.testing.tensors import trees_of

STREAM = 0x5DEECE66D
"""Rows' stream keys are multiples of this, so that they differ in high and low bits, and in sign."""


class Session:
    """One example under way. `texts[b]` is row b's text with the root, empty for a row without a request."""

    def __init__(self, subject: Subject, example: Example, checks: Checks, tally: Tally) -> None:
        self.subject, self.example, self.checks, self.tally = subject, example, checks, tally
        rows = len(example.prompts)
        self.keys = [(row + 1) * STREAM * (-1) ** row * 977 for row in range(rows)]
        self.crew = Crew.gather(subject, checks, AGAINST[example.against], rows, self.keys)
        self.texts: list[list[int]] = [[] for _ in range(rows)]
        self.prompt_sizes = [0] * rows

    @property
    def eagle(self) -> bool:
        """Whether the drafter is a head."""
        return self.subject.spec.draft.method == "eagle3"

    def run(self) -> None:
        """The whole example. Raises CheckFailure."""
        self.crew.where = "prefill"
        self.prefill(list(self.example.prompts))
        for number, plan in enumerate(self.example.steps, 1):
            self.crew.where = f"step {number}"
            action = ACTIONS[plan.action]
            actions.before(self, action, plan)
            if not bool(self.crew.live.any()):
                self.tally.idle(len(self.texts))
                break
            self.step(plan, action)
        self.crew.where = "the end"
        actions.at_end(self)
        if AGAINST[self.example.against] == "stages":
            for stage in self.subject.stages[1:]:
                self.checks.passes[stage.name] = self.checks.passes.get(stage.name, 0) + 1

    # Prompts.

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Prefill rows with a non-empty prompt in chunks, then set the token limit."""
        before = view(self.crew.leader, self.crew.state, self.eagle)
        total = torch.tensor([len(prompt) for prompt in prompts])
        width = max(1, int(total.max()))
        ids = torch.zeros((len(prompts), width), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(list(prompt), dtype=torch.int64)
        logits = torch.zeros((len(prompts), self.subject.vocabulary), dtype=torch.float64)
        for start in range(0, width, self.example.chunk):
            part = ids[:, start : start + self.example.chunk]
            count = (total - start).clamp(0, part.shape[1])
            got = self.crew.step("prefill", {"input_ids": part, "lengths": count}, count > 0)["logits"]
            logits = torch.where((count > 0)[:, None], got, logits)
        fresh = total > 0
        left = torch.tensor(self.example.limits) - 1
        remaining = torch.where(fresh, left, self.crew.state["remaining"])
        self.crew.set(remaining=remaining, finished=self.crew.state["finished"] | (fresh & (left <= 0)))
        for row, prompt in enumerate(prompts):
            if prompt:
                self._started(row, list(prompt), logits[row])
        step_checks.rows_untouched(self, before, ~fresh, "a row with lengths 0")

    def _started(self, row: int, prompt: list[int], logits: Tensor) -> None:
        """Row `row` has a new text: its logits are those of plain decoding, its root is what the law gives."""
        where = f"prefill of row {row}"
        step_checks.values_agree(
            self, "I22", where, "the last token's logits", logits, self.subject.plain.logits(prompt)
        )
        expected = self.subject.expected.pick(logits.tolist(), self.keys[row], len(prompt))
        root = int(self.crew.state["root_token"][row])
        text = None if root == expected else f"the root token is {root}, not {expected}"
        self.checks.require("I22", where, text)
        self.texts[row] = [*prompt, root]
        self.prompt_sizes[row] = len(prompt)
        step_checks.started(self, row)

    # Steps.

    def draft(self, plan: StepPlan) -> dict[str, Tensor | None]:
        """The module drafts (which keeps its drafter up to date); planted trees may take the drafts' place."""
        live = self.crew.live
        made = own(self.crew.step("draft", {}))
        trees = trees_of(*_three(made))
        for row, tree in enumerate(trees):
            if bool(live[row]):
                step_checks.drafted(self, row, tree)
        if self._uses_own(plan):
            if self.example.against:
                step_checks.drafted_as_described(self, trees, [row for row in range(len(trees)) if bool(live[row])])
            return made
        bag = as_bag(self.subject, planted(self.subject, self.texts, plan.seed, plan.budget), plan.seed)
        return {**bag, "log_probs": made.get("log_probs")}

    def _uses_own(self, plan: StepPlan) -> bool:
        """A random head or table is almost never right, so most of its steps are planted all the same."""
        method = self.subject.spec.draft.method
        rarely = method in ("eagle3", "bigram")
        return plan.drafts == OWN and method != "none" and (not rarely or plan.seed % 3 == 0)

    def step(self, plan: StepPlan, action: str) -> None:
        """Draft, verify, accept, commit, with the checks of each."""
        crew, live = self.crew, self.crew.live
        bag = self.draft(plan)
        trees = trees_of(*_three(bag))
        actions.before_verify(self, action, plan, bag)
        before = view(crew.leader, crew.state, self.eagle)
        window = self.subject.spec.commit.window or 0
        if window > 1 and "pending_factors" in crew.state:
            self.tally.pending(crew.state["pending_factors"][live].tolist(), window)
        bag |= crew.step("verify", bag)
        step_checks.verified(self, before, trees, bag)
        actions.after_verify(self, action, plan, bag, trees)
        bag |= crew.step("accept", bag)
        accepted = acceptance.accepted(self, trees, bag, live)
        acceptance.synthetic(self, trees, plan.seed)
        rows = step_checks.candidate_rows(self)
        crew.step("commit", bag, live)
        for row, outcome in enumerate(accepted):
            if outcome is None:
                self.tally.idle(1)
                continue
            self.tally.step(self.subject, trees[row], outcome)
            self.texts[row] += outcome.emitted(trees[row])
        step_checks.committed(self, before, rows, bag, accepted)

    def committed_texts(self) -> list[list[int]]:
        """Every row's text without its root: the tokens whose rows are committed."""
        return [text[:-1] for text in self.texts]

    def new_prompt(self, seed: int) -> list[int]:
        """A prompt for a row that is given to another request."""
        rng = Random(seed)
        return [rng.randrange(self.subject.vocabulary) for _ in range(1 + seed % 4)]

    def fork(self) -> dict[str, Tensor]:
        """A copy of the leader's state."""
        return copied(self.crew.state)

    def tree(self, bag: dict[str, Tensor | None], row: int) -> DraftTree | None:
        """The tree of a row."""
        return first_tree(bag, row)


def _three(bag: dict[str, Tensor | None]) -> tuple[Tensor, Tensor | None, Tensor]:
    tokens, valid = bag["tokens"], bag["valid"]
    assert tokens is not None
    assert valid is not None
    return tokens, bag.get("parent"), valid


__all__ = ["Results", "Session"]
