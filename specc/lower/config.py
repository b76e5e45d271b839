"""What the lowering needs of a spec's `draft`, `accept` and `sampling` sections, as plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specc.models.bigram import BigramGeometry
from specc.models.geometry import EagleGeometry, Geometry

DraftMethod = Literal["none", "prompt_lookup", "bigram", "draft_model", "eagle3"]
TreeShape = Literal["chain", "static", "dynamic"]
AcceptMethod = Literal["greedy", "rejection", "typical"]
RejectionRule = Literal["target_only", "true_q"]


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """How drafts are made (design 01, `draft`).

    `num_speculative_tokens` excludes the root. `choices` are rank paths of a static tree, parents first. `margin`
    and `min_log_prob` prune by cumulative log-probability (None: off). `window` limits the drafter's context (0:
    all). `draws`: children are drawn from the drafter at `temperature` instead of taken by rank, and their law is
    a result (`q_probs`); that is what the rejection rule `true_q` needs, and it excludes pruning and dynamic trees.
    `geometry` is the draft model's, `eagle` the EAGLE-3 head's, `bigram` the sizes of a bigram drafter's tables.
    """

    method: DraftMethod = "none"
    tree: TreeShape = "chain"
    num_speculative_tokens: int = 0
    num_steps: int = 0
    top_k: int = 1
    choices: tuple[tuple[int, ...], ...] = ()
    ngram_min: int = 1
    ngram_max: int = 4
    margin: float | None = None
    min_log_prob: float | None = None
    window: int = 0
    draws: bool = False
    temperature: float = 1.0
    geometry: Geometry | None = None
    eagle: EagleGeometry | None = None
    bigram: BigramGeometry | None = None

    def __post_init__(self) -> None:
        pruned = self.margin is not None or self.min_log_prob is not None
        if self.draws and (self.tree == "dynamic" or pruned):
            # Choosing nodes by the probability of what was drawn changes the law they were drawn from.
            raise ValueError("drawn drafts (rule true_q) allow neither dynamic trees nor pruning")

    @property
    def has_weights(self) -> bool:
        """Whether drafting runs a network, which then has a KV cache and recent tokens."""
        return self.method in ("draft_model", "eagle3")


@dataclass(frozen=True, slots=True)
class AcceptConfig:
    """How drafts are accepted and tokens sampled (design 01, `accept` and `sampling`)."""

    method: AcceptMethod = "greedy"
    rule: RejectionRule = "target_only"
    epsilon: float = 0.3
    alpha: float = 0.09
    stop_tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def walk(self) -> AcceptMethod:
        """The rule in effect: at temperature 0 the target's law is one-hot and rejection is the greedy walk."""
        return "greedy" if self.method == "rejection" and self.temperature == 0.0 else self.method

    @property
    def uses_draft_law(self) -> bool:
        """Whether drafts must be drawn (`DraftConfig.draws`) and `accept` reads `q_probs`."""
        return self.walk == "rejection" and self.rule == "true_q"
