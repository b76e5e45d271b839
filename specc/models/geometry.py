"""The resolved geometry of a target, independent of where it was read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

LayerType = Literal["attention", "delta"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama-3 frequency scaling (Hugging Face `rope_scaling` with `rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class DeltaGeometry:
    """Sizes and switches of a Gated DeltaNet layer (Yang et al., 2024).

    `num_key_heads` H, `num_value_heads` HV (a multiple of H), `key_dim` K and `value_dim` V per head; the recurrent
    state is [HV,V,K]. The causal depthwise convolution has `conv_size` W taps (0: none, SiLU only) over
    `conv_channels` channels, in the order q, k, v. `use_gate`: the output norm is multiplied by silu(gate).
    `allow_neg_eigval`: beta in (0, 2). `grouped`: q, k, v, gate come from one projection interleaved per key head, and
    b, a from another (qwen3_next); otherwise every one has its own projection (flash-linear-attention).
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_size: int
    use_gate: bool
    allow_neg_eigval: bool
    norm_eps: float
    grouped: bool
    conv_bias: bool = False

    @property
    def conv_channels(self) -> int:
        """C = 2 H K + HV V."""
        return 2 * self.num_key_heads * self.key_dim + self.readout_size

    @property
    def readout_size(self) -> int:
        """HV V: what a layer reads out of its state, after head norm and gate; the input of its output projection."""
        return self.num_value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class MoeGeometry:
    """A mixture of experts with a shared expert (qwen3_next). Router: softmax over all, then the top
    `num_experts_per_tok`, renormalised where `norm_topk_prob`."""

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    shared_intermediate_size: int
    norm_topk_prob: bool


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes and switches of a decoder. Names follow Hugging Face `config.json`.

    `qkv_bias`, `o_bias`, `mlp_bias` say which linear layers carry a bias; `qk_norm` says that q and k are
    RMS-normalised per head before rope (qwen3, qwen3_next). `layer_types` and `moe_layers` have one entry per layer;
    empty: attention everywhere, a dense MLP everywhere. `rotary_dim` leading dims of each head are rotated (0: all).
    `gated_attention`: q_proj also makes a gate per head, and o_proj reads attended * sigmoid(gate).
    `norm_offset` is added to the weights of all RMSNorms but the delta rule's output norm (1 in qwen3_next).
    A model without attention layers has 0 attention heads.
    """

    family: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    rms_norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    layer_types: tuple[LayerType, ...] = ()
    delta: DeltaGeometry | None = None
    moe: MoeGeometry | None = None
    moe_layers: tuple[bool, ...] = ()
    rotary_dim: int = 0
    gated_attention: bool = False
    norm_offset: float = 0.0

    @property
    def recurrent(self) -> bool:
        """Whether some layer has a recurrent state."""
        return "delta" in self.layer_types

    def feature_size(self, of: str) -> int:
        """Width of one layer's feature for a drafter: `of` "readout" or a hidden state. Raises ValueError for the
        readout of a stack without recurrent layers."""
        if of != "readout":
            return self.hidden_size
        if self.delta is None:
            raise ValueError(f"family {self.family} has no recurrent layers to read out")
        return self.delta.readout_size

    @property
    def layers(self) -> tuple[Layer, ...]:
        """What each layer is made of."""
        count = self.num_hidden_layers
        usual: LayerType = "attention"
        types, sparse = self.layer_types or (usual,) * count, self.moe_layers or (False,) * count
        return tuple(Layer(kind, moe) for kind, moe in zip(types, sparse, strict=True))

    @property
    def period(self) -> int:
        """The smallest P such that the stack is L / P repetitions of its first P layers (P = L: unrolled)."""
        layers = self.layers
        sizes = (size for size in range(1, len(layers) + 1) if len(layers) % size == 0)
        return next(size for size in sizes if layers == layers[:size] * (len(layers) // size))


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's token mixer, and whether its MLP is a mixture of experts."""

    mixer: LayerType
    moe: bool


@dataclass(frozen=True, slots=True)
class AuxFeature:
    """What one layer of the target (0-based) shows a drafter: `of` "output" or "input", the residual stream behind or
    before it, or "readout", what a recurrent layer reads out of its state."""

    layer: int
    of: str


@dataclass(frozen=True, slots=True)
class EagleGeometry:
    """Sizes of an EAGLE-3 head (arXiv:2503.01840): fc over target features, then one decoder layer.

    `fc` maps the features, `features_width` side by side, to hidden_size; q, k and v read 2 * hidden_size (the token
    embedding beside the feature); lm_head has draft_vocab_size rows, of vocab_size target tokens. `feature_sizes` are
    what the target's aux layers give, in order: target_hidden_size, or the width of a recurrent layer's readout.
    """

    target_hidden_size: int
    feature_sizes: tuple[int, ...]
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    rms_norm_eps: float
    attention_bias: bool
    mlp_bias: bool

    @property
    def features_width(self) -> int:
        """Columns that fc reads: the sizes of all aux features."""
        return sum(self.feature_sizes)


def _scaling(config: Mapping[str, Any]) -> RopeScaling | None:
    raw = config.get("rope_scaling") or config.get("rope_parameters")
    if not raw:
        return None
    kind = raw.get("rope_type", raw.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rope_scaling type {kind!r} is not supported (default and llama3 are)")
    return RopeScaling(
        factor=float(raw["factor"]),
        low_freq_factor=float(raw["low_freq_factor"]),
        high_freq_factor=float(raw["high_freq_factor"]),
        original_max_position_embeddings=int(raw["original_max_position_embeddings"]),
    )


def transformer_geometry(family: str, config: Mapping[str, Any]) -> Geometry:
    """Geometry from a Hugging Face style config mapping of family `llama`, `qwen3` or `pangu`.

    Raises KeyError for a missing size and ValueError for a value that the family does not support.
    """
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    parameters = config.get("rope_parameters") or {}
    bias = bool(config.get("attention_bias", config.get("bias", family == "pangu")))
    return Geometry(
        family=family,
        num_hidden_layers=int(config["num_hidden_layers"]),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or (128 if family == "qwen3" else hidden // heads)),
        intermediate_size=int(config["intermediate_size"]),
        vocab_size=int(config["vocab_size"]),
        max_position_embeddings=int(config.get("max_position_embeddings", 2048)),
        rope_theta=float(config.get("rope_theta") or parameters.get("rope_theta") or 10000.0),
        rope_scaling=_scaling(config),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
    )


def fla_intermediate_size(hidden_size: int, hidden_ratio: float | None = None) -> int:
    """The MLP width of flash-linear-attention: 2/3 * hidden_ratio * hidden_size, up to the next multiple of 256."""
    width = int(hidden_size * (4 if hidden_ratio is None else hidden_ratio) * 2 / 3)
    return -(-width // 256) * 256


def gated_deltanet_geometry(config: Mapping[str, Any]) -> Geometry:
    """Geometry from flash-linear-attention's config keys (GatedDeltaNetConfig); null stands for the default.

    Raises KeyError for a missing size and ValueError for sizes that do not fit each other.
    """
    given = {key: value for key, value in config.items() if value is not None}
    hidden, heads, key_dim = int(given["hidden_size"]), int(given["num_heads"]), int(given["head_dim"])
    value_dim, value_heads = key_dim * float(given.get("expand_v", 2.0)), int(given.get("num_v_heads", heads))
    if value_dim != int(value_dim):
        raise ValueError(f"head_dim x expand_v = {value_dim} is not a whole number")
    if value_heads % heads:
        raise ValueError(f"num_v_heads {value_heads} is not a multiple of num_heads {heads}")
    epsilon = float(given.get("norm_eps", 1e-6))
    conv_size = int(given.get("conv_size", 4)) if given.get("use_short_conv", True) else 0
    width = given.get("intermediate_size") or fla_intermediate_size(hidden, given.get("hidden_ratio"))
    layers = int(given["num_hidden_layers"])
    mixer: LayerType = "delta"
    return Geometry(
        family="gated_deltanet",
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=0,
        num_key_value_heads=0,
        head_dim=0,
        intermediate_size=int(width),
        vocab_size=int(given["vocab_size"]),
        max_position_embeddings=int(given.get("max_position_embeddings", 2048)),
        rope_theta=10000.0,
        rope_scaling=None,
        rms_norm_eps=epsilon,
        tie_word_embeddings=bool(given.get("tie_word_embeddings", False)),
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        layer_types=(mixer,) * layers,
        delta=DeltaGeometry(
            num_key_heads=heads,
            num_value_heads=value_heads,
            key_dim=key_dim,
            value_dim=int(value_dim),
            conv_size=conv_size,
            use_gate=bool(given.get("use_gate", True)),
            allow_neg_eigval=bool(given.get("allow_neg_eigval", False)),
            norm_eps=epsilon,
            grouped=False,
            conv_bias=conv_size > 0 and bool(given.get("conv_bias", False)),
        ),
    )


def qwen3_next_layer_types(num_layers: int, interval: int) -> tuple[str, ...]:
    """`layer_types` where only `full_attention_interval` is known: the last layer of every interval attends."""
    return tuple("linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(num_layers))


def _qwen3_next_moe(given: Mapping[str, Any], layers: int) -> tuple[MoeGeometry | None, tuple[bool, ...]]:
    """The mixture of experts, and which layers have one; None and () where no layer has."""
    experts, step = int(given.get("num_experts", 512)), int(given.get("decoder_sparse_step", 1))
    dense: Sequence[int] = given.get("mlp_only_layers", ())
    sparse = tuple(experts > 0 and (layer + 1) % step == 0 and layer not in dense for layer in range(layers))
    if not any(sparse):
        return None, ()
    chosen = int(given.get("num_experts_per_tok", 10))
    if not 0 < chosen <= experts:
        raise ValueError(f"num_experts_per_tok {chosen} is not between 1 and num_experts {experts}")
    moe = MoeGeometry(
        num_experts=experts,
        num_experts_per_tok=chosen,
        intermediate_size=int(given.get("moe_intermediate_size", 512)),
        shared_intermediate_size=int(given.get("shared_expert_intermediate_size", 512)),
        norm_topk_prob=bool(given.get("norm_topk_prob", True)),
    )
    return moe, sparse


def _qwen3_next_delta(given: Mapping[str, Any], epsilon: float) -> DeltaGeometry:
    key_heads, value_heads = int(given.get("linear_num_key_heads", 16)), int(given.get("linear_num_value_heads", 32))
    if value_heads % key_heads:
        raise ValueError(f"linear_num_value_heads {value_heads} is not a multiple of linear_num_key_heads {key_heads}")
    return DeltaGeometry(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_dim=int(given.get("linear_key_head_dim", 128)),
        value_dim=int(given.get("linear_value_head_dim", 128)),
        conv_size=int(given.get("linear_conv_kernel_dim", 4)),
        use_gate=True,
        allow_neg_eigval=False,
        norm_eps=epsilon,
        grouped=True,
    )


def qwen3_next_geometry(config: Mapping[str, Any]) -> Geometry:
    """Geometry from transformers' config keys (Qwen3NextConfig), rope settings in the old or the new place.

    Raises KeyError for a missing size and ValueError for sizes that do not fit each other.
    """
    given: dict[str, Any] = {key: value for key, value in config.items() if value is not None}
    rope: dict[str, Any] = dict(given.get("rope_parameters", {}))
    if _scaling({"rope_scaling": given.get("rope_scaling") or rope}) is not None:
        raise ValueError("qwen3_next has no rope scaling here")
    layers, heads = int(given["num_hidden_layers"]), int(given["num_attention_heads"])
    kinds = given.get("layer_types") or qwen3_next_layer_types(layers, int(given.get("full_attention_interval", 4)))
    if len(kinds) != layers or not set(kinds) <= {"linear_attention", "full_attention"}:
        raise ValueError(f"layer_types must say linear_attention or full_attention for each of {layers} layers")
    head_dim = int(given.get("head_dim", 256))
    rotated = {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, **rope, **given}
    rotary_dim = int(head_dim * float(rotated["partial_rotary_factor"]))
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"partial_rotary_factor leaves {rotary_dim} rotated values of {head_dim} (must be even)")
    epsilon, bias = float(given.get("rms_norm_eps", 1e-6)), bool(given.get("attention_bias", False))
    moe, moe_layers = _qwen3_next_moe(given, layers)
    return Geometry(
        family="qwen3_next",
        num_hidden_layers=layers,
        hidden_size=int(given["hidden_size"]),
        num_attention_heads=heads,
        num_key_value_heads=int(given.get("num_key_value_heads", 2)),
        head_dim=head_dim,
        intermediate_size=int(given["intermediate_size"]),
        vocab_size=int(given["vocab_size"]),
        max_position_embeddings=int(given.get("max_position_embeddings", 32768)),
        rope_theta=float(rotated["rope_theta"]),
        rope_scaling=None,
        rms_norm_eps=epsilon,
        tie_word_embeddings=bool(given.get("tie_word_embeddings", False)),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=False,
        qk_norm=True,
        layer_types=tuple("delta" if kind == "linear_attention" else "attention" for kind in kinds),
        delta=_qwen3_next_delta(given, epsilon),
        moe=moe,
        moe_layers=moe_layers,
        rotary_dim=rotary_dim,
        gated_attention=True,
        norm_offset=1.0,
    )


def geometry_of_config(family: str, config: Mapping[str, Any]) -> Geometry:
    """Geometry of a config of any family. Raises KeyError and ValueError as the functions above do."""
    if family == "gated_deltanet":
        return gated_deltanet_geometry(config)
    return qwen3_next_geometry(config) if family == "qwen3_next" else transformer_geometry(family, config)
