"""What people write as a model's config, made ready for the config models: Hugging Face habits and defaults.

Keys of config.json that do not change the program are dropped, the two styles of rope settings become one,
and settings that the families do not have are refused instead of being ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specc.diagnostics import Diagnostic, error
from specc.models.families import FAMILIES
from specc.models.geometry import fla_intermediate_size, qwen3_next_layer_types
from specc.spec.config import BigramConfig, EagleConfig, GatedDeltaNetConfig, Qwen3NextConfig, TransformerConfig
from specc.spec.names import TRANSFORMER_FAMILIES
from specc.spec.source import Path, SourceMap

TargetModel = type[TransformerConfig] | type[GatedDeltaNetConfig] | type[Qwen3NextConfig]
ConfigModel = TargetModel | type[EagleConfig] | type[BigramConfig]

# Keys of published config.json files without effect on the program (training, generation, book-keeping).
IGNORED_KEYS: frozenset[str] = frozenset(
    [
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "head_dtype",
        "hidden_dropout",
        "initializer_range",
        "is_llama_config",
        "max_window_layers",
        "model_type",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "router_aux_loss_coef",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "use_cache",
        "fuse_cross_entropy",
        "fuse_linear_cross_entropy",
        "fuse_norm",
        "fuse_swiglu",
        "attn_mode",
        "elementwise_affine",
        "use_l2warp",
        "norm_first",
    ]
)

# Keys that must have one of these values, because the families have no other form.
_ONLY: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "use_sliding_window": (False,),
    "sliding_window": (),
    "quantization_config": (),
    "rope_interleaved": (False,),
    "attn": (),
    "attnres_block_size": (),
    "output_gate_activation": ("swish", "silu"),
    "use_bias": (False,),
}

_TABLES = "give the folder that `specc train draft` wrote, or leave `checkpoint` out"
MODEL_TYPES: Mapping[str, tuple[str, ...]] = {name: family.model_types for name, family in FAMILIES.items()}


class Preparation:
    """One config being prepared: the remaining values, and what was found wrong with the rest.

    `where` says in whose words findings speak: the spec's own keys, or those of a checkpoint's config.json.
    """

    def __init__(self, raw: Mapping[str, Any], path: Path, source: SourceMap, from_file: bool) -> None:
        self.raw = raw
        self.path = path
        self.source = source
        self.from_file = from_file
        self.values: dict[str, Any] = {}
        self.findings: list[Diagnostic] = []
        self.handled: set[str] = set()

    def refuse(self, key: str, message: str, help: str) -> None:
        """SPC103 about `key`."""
        span = self.source.span(*self.path) if self.from_file else self.source.span(*self.path, key)
        place = "config.json" if self.from_file else "the config"
        finding = error("SPC103", f"{place}: {message}", span, label="not supported", help=help)
        self.findings.append(finding)

    def finish(self, model: ConfigModel, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Values for `model`: what is left, then defaults; a file's unknown keys are dropped."""
        for key, value in self.raw.items():
            if key in self.handled or value is None:
                continue
            if self.from_file and key not in model.model_fields:
                continue
            self.values.setdefault(key, value)
        for key, value in defaults.items():
            self.values.setdefault(key, value)
        return self.values


def prepare_target(
    family: str, raw: Mapping[str, Any], path: Path, source: SourceMap, from_file: bool
) -> tuple[TargetModel, dict[str, Any], list[Diagnostic]]:
    """The config model of `family` and the values to validate with it."""
    work = Preparation(raw, path, source, from_file)
    _common(work, family)
    if family in TRANSFORMER_FAMILIES:
        return TransformerConfig, work.finish(TransformerConfig, _transformer_defaults(family, raw)), work.findings
    if family == "gated_deltanet":
        return GatedDeltaNetConfig, work.finish(GatedDeltaNetConfig, _deltanet_defaults(work)), work.findings
    return Qwen3NextConfig, work.finish(Qwen3NextConfig, _hybrid_defaults(raw)), work.findings


def prepare_eagle(
    target: object, raw: Mapping[str, Any], path: Path, source: SourceMap, from_file: bool
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """The values of an EAGLE-3 head's config; what it does not say is the target's."""
    work = Preparation(raw, path, source, from_file)
    _common(work, "")
    work.handled |= {
        "vocab_size",
        "num_hidden_layers",
        "target_hidden_size",
        "tie_word_embeddings",
        "aux_hidden_state_layer_ids",
    }
    for key, expected in (
        ("num_hidden_layers", 1),
        ("vocab_size", getattr(target, "vocab_size", None)),
        ("target_hidden_size", getattr(target, "hidden_size", None)),
    ):
        value = raw.get(key)
        if value is not None and expected is not None and value != expected:
            wanted = f"an EAGLE-3 head of this target has {key} {expected}, not {value}"
            work.refuse(key, wanted, f"write {expected}, or give the head that was trained for this target")
    defaults: dict[str, Any] = {}
    for key in ("hidden_size", "intermediate_size", "max_position_embeddings", "rms_norm_eps"):
        defaults[key] = getattr(target, key, None)
    if isinstance(target, TransformerConfig | Qwen3NextConfig):
        same_width = raw.get("hidden_size") in (None, target.hidden_size)
        if same_width:
            defaults |= {
                "num_attention_heads": target.num_attention_heads,
                "num_key_value_heads": target.num_key_value_heads,
                "head_dim": target.head_dim,
            }
        defaults["rope_theta"] = target.rope_theta
    if isinstance(target, TransformerConfig) and target.rope_scaling is not None and not _has_rope(raw):
        defaults["rope_scaling"] = target.rope_scaling.model_dump()
    defaults["draft_vocab_size"] = getattr(target, "vocab_size", None)
    if _size(raw, "num_attention_heads"):
        defaults |= _transformer_defaults("llama", raw)
        defaults.pop("attention_bias")
    return work.finish(EagleConfig, {key: value for key, value in defaults.items() if value is not None}), work.findings


def prepare_bigram(
    target: object, raw: Mapping[str, Any], path: Path, source: SourceMap, from_file: bool
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """The values of a bigram drafter's config; the vocabulary is the target's."""
    work = Preparation(raw, path, source, from_file)
    work.handled.add("model_type")
    kind = raw.get("model_type", "bigram" if not from_file else None)
    if kind != "bigram":
        work.refuse("model_type", f"a bigram drafter has model_type bigram, not {kind}", _TABLES)
    return work.finish(BigramConfig, {"vocab_size": getattr(target, "vocab_size", None)}), work.findings


def _common(work: Preparation, family: str) -> None:
    """Drop what has no effect, refuse what has another meaning, unify the rope settings."""
    work.handled |= IGNORED_KEYS
    model_type = work.raw.get("model_type")
    if work.from_file and family and isinstance(model_type, str) and model_type not in MODEL_TYPES[family]:
        owner = next((name for name, types in MODEL_TYPES.items() if model_type in types), None)
        hint = f"write `family: {owner}`" if owner else f"supported families: {', '.join(MODEL_TYPES)}"
        work.refuse("model_type", f"model_type `{model_type}` is not of family {family}", hint)
    for key, allowed in _ONLY.items():
        if key not in work.raw:
            continue
        work.handled.add(key)
        value = work.raw[key]
        inactive = key == "sliding_window" and work.raw.get("use_sliding_window") is False
        if value is not None and not inactive and not any(value is item or value == item for item in allowed):
            shown = value if isinstance(value, str | int | float) else "set"
            work.refuse(key, f"`{key}` is {shown}, which is not supported", _only_hint(key, allowed))
    partial = work.raw.get("partial_rotary_factor")
    if family in TRANSFORMER_FAMILIES:
        work.handled.add("partial_rotary_factor")
        if partial not in (None, 1):
            work.refuse("partial_rotary_factor", f"family {family} rotates the whole head", "leave the key out")
    _layer_types(work, family)
    if family == "pangu" and "bias" in work.raw:
        work.handled.add("bias")
        work.values["attention_bias"] = work.raw["bias"]
    _rope(work, hybrid=family == "qwen3_next")


def _only_hint(key: str, allowed: tuple[object, ...]) -> str:
    if not allowed:
        return f"leave `{key}` out: this compiler has no form for it"
    return "the families have " + " or ".join(str(item).lower() for item in allowed) + " only"


def _layer_types(work: Preparation, family: str) -> None:
    kinds = work.raw.get("layer_types")
    if not isinstance(kinds, list | tuple) or family == "":
        return
    known = {"full_attention", "linear_attention"} if family == "qwen3_next" else {"full_attention"}
    if any(not isinstance(kind, str) or kind not in known for kind in kinds):
        work.handled.add("layer_types")
        listed = " and ".join(sorted(known))
        work.refuse("layer_types", f"layers other than {listed} are not supported", f"list {listed} only")
    elif family != "qwen3_next":
        work.handled.add("layer_types")


def _has_rope(raw: Mapping[str, Any]) -> bool:
    return raw.get("rope_scaling") is not None or raw.get("rope_parameters") is not None


def _rope(work: Preparation, hybrid: bool) -> None:
    """`rope_scaling` (older files, `type` or `rope_type`) and `rope_parameters` (newer ones) become one."""
    if "rope_parameters" in work.raw and isinstance(work.raw["rope_parameters"], Mapping | None):
        work.handled.add("rope_parameters")
    for key in ("rope_scaling", "rope_parameters"):
        value = work.raw.get(key)
        if not isinstance(value, Mapping):
            continue
        work.handled.add(key)
        settings = dict(value)
        theta = settings.pop("rope_theta", None)
        if theta is not None:
            work.values["rope_theta"] = theta
        legacy = settings.pop("type", None)
        kind = settings.get("rope_type", legacy if legacy is not None else "default")
        partial = settings.pop("partial_rotary_factor", None)
        if partial is not None and hybrid:
            work.values["partial_rotary_factor"] = partial
        elif partial not in (None, 1):
            work.refuse(
                key, "`partial_rotary_factor` is not supported here", "only qwen3_next rotates a part of a head"
            )
        if kind == "default":
            continue
        if kind != "llama3" or hybrid:
            known = "only the default is" if hybrid else "default and llama3 are"
            work.refuse(key, f"rope type {_brief(kind)} is not supported", known)
            continue
        work.values["rope_scaling"] = {**settings, "rope_type": "llama3"}


def _brief(value: object) -> str:
    return f"`{value}`" if isinstance(value, str) and len(value) < 40 else "of this form"


def _size(raw: Mapping[str, Any], key: str) -> int | None:
    """A positive whole number of `raw`, or None."""
    value = raw.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _transformer_defaults(family: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    heads, hidden = _size(raw, "num_attention_heads"), _size(raw, "hidden_size")
    head_dim = 128 if family == "qwen3" else min(4096, max(2, (hidden or 2) // (heads or 1)))
    # Without heads the config is wrong anyway; a stand-in keeps derived keys out of the list of missing ones.
    return {"attention_bias": family == "pangu", "num_key_value_heads": heads or 1, "head_dim": head_dim}


def _deltanet_defaults(work: Preparation) -> dict[str, Any]:
    """flash-linear-attention's: value heads = heads, an MLP of 2/3 * hidden_ratio * hidden_size rounded up to 256s."""
    heads, hidden, ratio = _size(work.raw, "num_heads"), _size(work.raw, "hidden_size"), work.raw.get("hidden_ratio")
    work.handled.add("hidden_ratio")
    if ratio is not None and (isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1024):
        remedy = "leave it out for 4, or give intermediate_size"
        work.refuse("hidden_ratio", "`hidden_ratio` is not a number between 0 and 1024", remedy)
        ratio = None
    width = hidden if hidden and hidden <= 1 << 20 else 1
    return {"num_v_heads": heads or 1, "intermediate_size": fla_intermediate_size(width, ratio)}


def _hybrid_defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Qwen3-Next's: attention in the last layer of every `full_attention_interval` layers."""
    layers, interval = _size(raw, "num_hidden_layers"), _size(raw, "full_attention_interval")
    # Without a number of layers the config is wrong anyway; a stand-in keeps layer_types out of the missing keys.
    return {"layer_types": qwen3_next_layer_types(min(layers or 1, 4096), interval or 4)}
