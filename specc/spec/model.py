"""The typed spec: one frozen model per section, mirroring the keys of the language exactly.

A loaded `Spec` is resolved: every default is filled in and a checkpoint's geometry is read. Defaults that
depend on other keys are in `specc.spec.defaults`; what keys mean together is checked in `specc.spec.checks`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from specc.models.bigram import BigramGeometry
from specc.models.geometry import AuxFeature, EagleGeometry, Geometry
from specc.spec.base import FolderPath, Section
from specc.spec.config import BigramConfig, EagleConfig, ModelConfig, TransformerConfig
from specc.spec.names import Family

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=64)]
Token = Annotated[int, Field(ge=0, lt=1 << 24)]
Rank = Annotated[int, Field(ge=0, lt=1024)]
LogProb = Annotated[float, Field(ge=-1e6, le=0)]
RankPath = Annotated[tuple[Rank, ...], Field(min_length=1, max_length=256)]
FeatureKind = Literal["output", "input", "readout"]


def _word_or_list(value: object) -> str:
    return "<list>" if isinstance(value, list | tuple) else "<word>"


FeatureKinds = Annotated[
    Annotated[FeatureKind, Tag("<word>")]
    | Annotated[tuple[FeatureKind, ...], Field(min_length=1, max_length=8), Tag("<list>")],
    Discriminator(_word_or_list),
]
"""A kind for all layers, or one per layer. The value decides which of the two is read, so that an error names what was
meant; tags in angle brackets are no part of a place in the spec (`specc.spec.structure.build`)."""


class Target(Section):
    """The model whose text is produced. Exactly one of `config` and `checkpoint` is written."""

    family: Family
    config: ModelConfig | None = Field(default=None, description="the geometry, by Hugging Face config names")
    checkpoint: FolderPath | None = Field(
        default=None, description="a model folder, relative to the spec; its config.json gives the geometry"
    )

    @property
    def geometry(self) -> Geometry:
        """The geometry. Raises ValueError while the config is not resolved."""
        if self.config is None:
            raise ValueError("the target's sizes are not known")
        return self.config.geometry(self.family)


class Ngram(Section):
    """Lengths of the suffix n-grams that prompt lookup matches, longest first."""

    min: Annotated[int, Field(ge=1, le=64)] = 1
    max: Annotated[int, Field(ge=1, le=64)] = 4


class Prune(Section):
    """Confidence-guided pruning; a null threshold is off."""

    path_log_prob_margin: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        default=None, description="drop nodes whose cumulative log-prob is below best - margin (nats)"
    )
    min_path_log_prob: LogProb | None = Field(
        default=None, description="drop nodes whose cumulative log-prob is below this (nats)"
    )


class Draft(Section):
    """How drafts are made."""

    method: Literal["eagle3", "draft_model", "bigram", "prompt_lookup", "none"] = "none"
    tree: Literal["chain", "static", "dynamic"] = Field(
        default="chain", description="chain and top_k 1 compile to a plain chain"
    )
    num_speculative_tokens: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=0, description="drafted nodes, without the root"
    )
    num_steps: Annotated[int, Field(ge=0, le=256)] = Field(default=0, description="levels below the root")
    top_k: Annotated[int, Field(ge=1, le=1024)] = Field(default=1, description="children per expanded node")
    checkpoint: FolderPath | None = Field(default=None, description="the drafter's folder, or given at run time")
    family: Family | None = Field(default=None, description="draft_model: its family; default: the target's")
    config: TransformerConfig | EagleConfig | BigramConfig | None = Field(
        default=None, description="the drafter's geometry (eagle3, bigram: defaults are the target's)"
    )
    aux_hidden_state_layer_ids: tuple[Annotated[int, Field(ge=0, lt=4096)], ...] = Field(
        default=(), max_length=8, description="eagle3: target layers whose hidden states feed the head"
    )
    aux_hidden_state_of: FeatureKinds | None = Field(
        default=None,
        description="eagle3: the output or the input of those layers (projects differ by one), or, of recurrent "
        "layers, what they read out of their state; a list has one of them per layer",
    )
    window: Annotated[int, Field(ge=0, le=1 << 24)] = Field(
        default=0, description="context window of the drafter in tokens, 0: all"
    )
    choices: Annotated[tuple[RankPath, ...], Field(min_length=1, max_length=1024)] | None = Field(
        default=None, description="static trees: rank paths, sorted by length, then by rank"
    )
    ngram: Ngram | None = Field(default=None, description="prompt_lookup: n-gram lengths to match")
    prune: Prune | None = Field(default=None, description="drop improbable nodes; shapes stay static")

    @property
    def aux_features(self) -> tuple[AuxFeature, ...]:
        """What feeds an EAGLE-3 head, in order; one word of `aux_hidden_state_of` holds for all layers."""
        ids, of = self.aux_hidden_state_layer_ids, self.aux_hidden_state_of or "output"
        kinds = (of,) * len(ids) if isinstance(of, str) else of
        return tuple(AuxFeature(layer, kind) for layer, kind in zip(ids, kinds, strict=True))


class Verify(Section):
    """How the target checks the drafted nodes."""

    attention: Literal["fused", "eager"] = "fused"
    recurrence: Literal["auto", "replay", "serial", "hybrid", "tree"] | None = Field(
        default=None, description="recurrent layers: the verify schedule; default: auto"
    )


class Typical(Section):
    """Typical acceptance: accept when p > min(epsilon, alpha * exp(-entropy))."""

    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.3
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.09


class Accept(Section):
    """Which drafted tokens are kept."""

    method: Literal["greedy", "rejection", "typical"] = "greedy"
    rule: Literal["target_only", "true_q"] | None = Field(
        default=None, description="rejection: the acceptance rule; default: target_only"
    )
    typical: Typical | None = None
    lossless: bool = Field(default=True, description="the output law must be the target's")
    stop_tokens: Annotated[tuple[Token, ...], Field(max_length=64)] = ()


class Commit(Section):
    """How accepted tokens reach the committed state."""

    kv: Literal["length", "path_index"] | None = Field(
        default=None, description="KV layers; default: length for immediate chains, else path_index"
    )
    fast_reorder: bool = Field(default=True, description="skip rows that are already in place")
    state: Literal["snapshots", "replay", "factors"] | None = Field(
        default=None, description="recurrent layers; default: factors"
    )
    update: Literal["immediate", "deferred"] = "immediate"
    window: Annotated[int, Field(ge=0, le=1024)] | None = Field(
        default=None, description="recurrent, deferred: fold when this many factors are pending; default: 1"
    )


class Sampling(Section):
    """The target's sampling law."""

    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_k: Annotated[int, Field(ge=0, lt=1 << 24)] = Field(default=0, description="0: off")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(default=1.0, description="1.0: off")
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0


class Runtime(Section):
    """Sizes and types of the generated module."""

    max_batch_size: Annotated[int, Field(ge=1, le=4096)] = 1
    max_sequence_length: Annotated[int, Field(ge=2, le=1 << 27)] = Field(
        default=4096, description="committed tokens; default: 4096, or what the positions allow"
    )
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    state_dtype: Literal["float32", "float64", "bfloat16"] = Field(
        default="float32", description="type of recurrent states; default: float32, float64 where dtype is float64"
    )
    kv_layout: Literal["contiguous", "paged"] = Field(
        default="contiguous", description="paged: the target's K and V rows in pages that all rows of a batch share"
    )
    kv_block_size: Annotated[int, Field(ge=1, le=4096)] = Field(default=128, description="rows of a page")


class Triton(Section):
    """Options of the triton backend."""

    arch: Annotated[str, Field(pattern=r"^sm_[0-9]{2,3}[af]?$")] = "sm_90"


class Ascend(Section):
    """Options of the ascend backend."""

    soc: Annotated[str, Field(pattern=r"^Ascend[0-9]{3}[0-9A-Za-z_]{0,12}$")] = "Ascend910B3"
    mode: Literal["max-autotune", "reduce-overhead"] = "max-autotune"


class Backend(Section):
    """Options per backend; the backend itself is chosen by `--target`."""

    triton: Triton = Triton()
    ascend: Ascend = Ascend()


PassScalar = bool | int | float | str | None
PassOption = PassScalar | tuple[PassScalar, ...]


class PassEntry(Section):
    """One pass of an explicit pipeline."""

    name: Name
    options: dict[str, PassOption] = Field(default_factory=dict)


class Spec(Section):
    """A whole, resolved decoding spec."""

    specc: Literal[1]
    name: Name
    description: Annotated[str, Field(max_length=4000)] = ""
    target: Target
    draft: Draft = Draft()
    verify: Verify = Verify()
    accept: Accept = Accept()
    commit: Commit = Commit()
    sampling: Sampling = Sampling()
    numerics: Literal["exact", "fast"] = "exact"
    runtime: Runtime = Runtime()
    backend: Backend = Backend()
    passes: Literal["default"] | tuple[PassEntry, ...] = "default"
    invariants: Literal["all"] | tuple[str, ...] = "all"

    @property
    def num_nodes(self) -> int:
        """N: drafted nodes and the root."""
        return self.draft.num_speculative_tokens + 1

    @property
    def is_chain(self) -> bool:
        """Whether the program is a plain chain, without tree tensors."""
        return is_chain(self.draft)

    @property
    def depth(self) -> int:
        """Levels below the root: the most drafted tokens that one step can accept."""
        return self.draft.num_speculative_tokens if self.is_chain else self.draft.num_steps

    @property
    def max_path(self) -> int:
        """Rows of the longest accepted path, the root included: depth + 1."""
        return self.depth + 1

    @property
    def draft_geometry(self) -> Geometry | None:
        """The draft model's geometry; None for the other methods."""
        if self.draft.method != "draft_model" or not isinstance(self.draft.config, TransformerConfig):
            return None
        return self.draft.config.geometry(self.draft.family or self.target.family)

    @property
    def bigram_geometry(self) -> BigramGeometry | None:
        """The sizes of a bigram drafter's tables; None for the other methods."""
        return self.draft.config.geometry() if isinstance(self.draft.config, BigramConfig) else None

    @property
    def eagle_geometry(self) -> EagleGeometry | None:
        """The EAGLE-3 head's geometry; None for the other methods."""
        if not isinstance(self.draft.config, EagleConfig) or self.target.config is None:
            return None
        return self.draft.config.geometry(
            self.target.config.hidden_size,
            self.target.config.vocab_size,
            tuple(self.target.geometry.feature_size(feature.of) for feature in self.draft.aux_features),
        )


def is_chain(draft: Draft) -> bool:
    """No drafts, `tree: chain`, `top_k: 1`, or static choices that have no branch."""
    if draft.method == "none" or draft.tree == "chain" or draft.num_speculative_tokens <= 1:
        return True
    if draft.tree == "dynamic":
        return draft.top_k == 1
    return len({len(path) for path in draft.choices or ()}) == len(draft.choices or ())


def to_mapping(spec: Spec) -> dict[str, Any]:
    """The spec as plain values that load to an equal spec: checkpoints give way to the resolved config."""
    mapping = spec.model_dump(mode="json", exclude_none=True)
    mapping["target"].pop("checkpoint", None)
    if isinstance(spec.passes, tuple):
        mapping["passes"] = [
            {entry.name: dict(entry.options)} if entry.options else entry.name for entry in spec.passes
        ]
    return mapping
