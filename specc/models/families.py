"""The transformer families: which checkpoints belong to each, and config.json read and written.

A new family of the llama layout is one `Family` entry here plus its switches in `geometry.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specc.diagnostics import Diagnostic, DiagnosticError, error
from specc.models.geometry import Geometry, transformer_geometry

MAX_CONFIG_BYTES = 1 << 20
MAX_SIZE = 1 << 31
REQUIRED_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)
OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings")


@dataclass(frozen=True, slots=True)
class Family:
    """A target family: its name in specs, the `model_type`s of its checkpoints, and the class they name.

    The first of `model_types` is the one that is written.
    """

    name: str
    model_types: tuple[str, ...]
    architecture: str


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            Family("llama", ("llama",), "LlamaForCausalLM"),
            Family("qwen3", ("qwen3",), "Qwen3ForCausalLM"),
            Family("pangu", ("PanguEmbedded", "pangu_embedded", "openpangu", "pangu"), "PanguEmbeddedForCausalLM"),
        )
    }
)


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """The JSON object in `folder/name`; SPC401 if it is missing, too large, or no object."""
    path = folder / name
    try:
        if not folder.is_dir():
            raise _refused("SPC401", f"the model folder {folder} does not exist")
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise _refused("SPC401", f"{path} is larger than {MAX_CONFIG_BYTES} bytes")
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        help_text = "give a folder in the Hugging Face layout: config.json, *.safetensors, tokenizer.json"
        raise DiagnosticError([error("SPC401", f"{folder} has no {name}", help=help_text)]) from None
    except (OSError, ValueError, RecursionError) as problem:
        raise _refused("SPC401", f"{path} cannot be read: {problem}") from None
    if not isinstance(config, dict):
        raise _refused("SPC401", f"{path} is not a JSON object")
    return config


def checkpoint_geometry(folder: Path) -> Geometry:
    """The geometry of the checkpoint in `folder`, from its config.json (SPC401, SPC402)."""
    return config_geometry(read_config(folder), str(folder / "config.json"))


def config_geometry(config: Mapping[str, Any], where: str = "config.json", family: str = "") -> Geometry:
    """Geometry of a Hugging Face config; every problem at once as SPC402.

    `family` overrides the family that `model_type` names, for heads and for specs that name it themselves.
    """
    by_type = {kind: entry.name for entry in FAMILIES.values() for kind in entry.model_types}
    found = family or by_type.get(str(config.get("model_type")), "")
    if not found:
        known = ", ".join(sorted(by_type))
        raise _refused("SPC402", f"{where}: model_type {config.get('model_type')!r} is not one of {known}")
    problems = [error("SPC402", f"{where}: {text}") for text in _problems(config)]
    if problems:
        raise DiagnosticError(problems)
    try:
        geometry = transformer_geometry(found, config)
    except (KeyError, ValueError, TypeError) as problem:
        raise _refused("SPC402", f"{where}: {problem}") from None
    if geometry.num_attention_heads % geometry.num_key_value_heads or geometry.head_dim % 2:
        heads, groups = geometry.num_attention_heads, geometry.num_key_value_heads
        raise _refused(
            "SPC402",
            f"{where}: {heads} heads on {groups} key/value heads of {geometry.head_dim} do not divide",
        )
    return geometry


def _problems(config: Mapping[str, Any]) -> list[str]:
    """Everything in a config that the compiled program would silently compute otherwise."""
    found = []
    for name in REQUIRED_SIZES + OPTIONAL_SIZES:
        value = config.get(name)
        if value is None and name in OPTIONAL_SIZES:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MAX_SIZE:
            found.append(f"{name} must be a positive integer, not {value!r}")
    if config.get("hidden_act", "silu") != "silu":
        found.append(f"hidden_act {config['hidden_act']!r} is not supported (silu is)")
    layer_types = config.get("layer_types") or []
    if config.get("use_sliding_window") or any(kind != "full_attention" for kind in layer_types):
        found.append("sliding-window attention is not supported")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        found.append("partial_rotary_factor is not supported")
    if config.get("quantization_config"):
        found.append("quantised checkpoints are not supported; dequantise the weights first")
    return found


def hugging_face_config(geometry: Geometry, dtype: str = "float32") -> dict[str, Any]:
    """config.json of a geometry: `config_geometry` of it gives the geometry back.

    Keys are those that both old and new transformers read. Raises ValueError for bias switches that no
    config of the family can express.
    """
    family = FAMILIES[geometry.family]
    if geometry.qkv_bias != geometry.o_bias or geometry.qk_norm != (geometry.family == "qwen3"):
        raise ValueError(f"no {geometry.family} config has these bias and norm switches")
    bias = "bias" if geometry.family == "pangu" else "attention_bias"
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_types[0],
        "num_hidden_layers": geometry.num_hidden_layers,
        "hidden_size": geometry.hidden_size,
        "intermediate_size": geometry.intermediate_size,
        "num_attention_heads": geometry.num_attention_heads,
        "num_key_value_heads": geometry.num_key_value_heads,
        "head_dim": geometry.head_dim,
        "hidden_act": "silu",
        bias: geometry.qkv_bias,
        "mlp_bias": geometry.mlp_bias,
        "max_position_embeddings": geometry.max_position_embeddings,
        "rms_norm_eps": geometry.rms_norm_eps,
        "rope_theta": geometry.rope_theta,
        "vocab_size": geometry.vocab_size,
        "tie_word_embeddings": geometry.tie_word_embeddings,
        "torch_dtype": dtype,
    }
    if geometry.rope_scaling is not None:
        scaling = geometry.rope_scaling
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
        }
    return config


def _refused(code: str, message: str) -> DiagnosticError:
    found: Diagnostic = error(code, message)
    return DiagnosticError([found])
