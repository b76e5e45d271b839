"""What is decoded end to end: the set-up itself, and what differs from it by changed keys of the spec.

Every variant is the spec of weights/gdn-15m with the keys named here set as `--set` would set them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from specc.bench.lossless_matrix import COMMITS

SPECS = Path(__file__).resolve().parents[2] / "specs"
Drafter = Literal["aligned", "generic", "readouts", "bigram", "none"]
"""`aligned`: a head fed with what recurrent layers read out of their states, beside hidden states; `generic`: with the
same hidden states alone; `readouts`: with those readouts alone; `bigram`: a table; `none`: a method without weights."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One module. `table`: which ablation it is a row of."""

    name: str
    table: str
    overrides: tuple[str, ...] = ()
    drafter: Drafter = "aligned"
    spec: Path = field(default=SPECS / "gdn-15m-eagle.yaml")

    @property
    def other_type(self) -> bool:
        """Whether it computes in another dtype than the set-up, whose numerical bound then says nothing of it."""
        return any(text.startswith("runtime.dtype=") for text in self.overrides)

    @property
    def change(self) -> str:
        """The changed keys, as they are given to `--set`."""
        other = [] if self.spec.name == "gdn-15m-eagle.yaml" else [self.spec.name]
        return " ".join([*other, *self.overrides]) or "-"


SET_UP = Variant("as shipped", "set-up")
GENERIC = Variant(
    "generic hidden states", "drafter",
    ("draft.aux_hidden_state_layer_ids=[2, 8, 15]", "draft.aux_hidden_state_of=output"), "generic",
)  # fmt: skip
READOUTS = Variant(
    "readouts alone", "drafter",
    ("draft.aux_hidden_state_layer_ids=[4, 9, 14]", "draft.aux_hidden_state_of=readout"), "readouts",
)  # fmt: skip
LOOKUP_SPEC = SPECS / "gdn-15m-tree.yaml"
BIGRAM = (
    "draft.method=bigram",
    "draft.ngram=null",
    "draft.top_k=4",
    "draft.num_steps=6",
    "draft.num_speculative_tokens=15",
)
CHAIN_OF_8 = (
    "draft.tree=chain",
    "draft.top_k=1",
    "draft.num_steps=8",
    "draft.num_speculative_tokens=8",
)
STATES: Mapping[str, str] = {
    "snapshots": "state of every node kept",
    "replay": "accepted tokens replayed",
    "factors-immediate": "factors, a commit of its own",
    "factors-deferred": "factors, folded by the next verify",
}
"""The set-up itself folds factors when 8 are pending."""

ABLATIONS: tuple[Variant, ...] = (
    SET_UP,
    GENERIC,
    READOUTS,
    Variant("prompt lookup", "drafter", (), "none", LOOKUP_SPEC),
    Variant("bigram table", "drafter", BIGRAM, "bigram", LOOKUP_SPEC),
    Variant("chain of 8", "tree", CHAIN_OF_8),
    Variant("paths within 3 nats of the best", "tree", ("draft.prune.path_log_prob_margin=3.0",)),
    *(Variant(f"{name} verify", "verify", (f"verify.recurrence={name}",))
      for name in ("serial", "hybrid", "tree", "replay")),
    *(Variant(STATES[name], "state", COMMITS[name]) for name in STATES),
    Variant("bfloat16", "type", ("runtime.dtype=bfloat16",)),
)  # fmt: skip
"""In the order of their importance; the first is what the others are compared with."""
