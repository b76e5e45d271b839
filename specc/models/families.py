"""The families: which checkpoints belong to each, and config.json read (written: `specc.models.written_config`).

A new family of the llama layout is one `Family` entry here plus its switches in `geometry.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specc.diagnostics import Diagnostic, DiagnosticError, error
from specc.models.geometry import Geometry, geometry_of_config
from specc.models.written_config import written_config

MAX_CONFIG_BYTES = 1 << 20
LAYOUT = "give a folder in the Hugging Face layout: config.json, *.safetensors, tokenizer.json"
PUBLISHED = "give a config.json of a supported model as it was published"
MAX_SIZE = (1 << 31) - 1
MAX_LAYERS = 4096
REQUIRED_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)
OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings")
DELTANET_REQUIRED_SIZES = ("num_hidden_layers", "hidden_size", "num_heads", "head_dim", "vocab_size")
DELTANET_OPTIONAL_SIZES = ("num_v_heads", "intermediate_size", "hidden_ratio", "conv_size", "max_position_embeddings")
HYBRID_OPTIONAL_SIZES = (
    *OPTIONAL_SIZES,
    "full_attention_interval",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "decoder_sparse_step",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "num_experts_per_tok",
)
SIZES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "gated_deltanet": (DELTANET_REQUIRED_SIZES, DELTANET_OPTIONAL_SIZES),
        "qwen3_next": (REQUIRED_SIZES, HYBRID_OPTIONAL_SIZES),
    }
)
"""The sizes of each recurrent family that must be written, and those that may be."""


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
            Family("gated_deltanet", ("gated_deltanet",), "GatedDeltaNetForCausalLM"),
            Family("qwen3_next", ("qwen3_next",), "Qwen3NextForCausalLM"),
        )
    }
)


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """The JSON object in `folder/name`; SPC401 if it is missing, too large, or no object."""
    path = folder / name
    try:
        if not folder.is_dir():
            what = "is not a folder" if folder.exists() else "does not exist"
            raise _refused("SPC401", f"the model folder {folder} {what}", LAYOUT)
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            raise _refused("SPC401", f"{path} is not a regular file", LAYOUT)
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise _refused("SPC401", f"{path} is larger than {MAX_CONFIG_BYTES} bytes", LAYOUT)
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _refused("SPC401", f"{folder} has no {name}", LAYOUT) from None
    except (OSError, ValueError, RecursionError) as problem:
        raise _refused("SPC401", f"{path} cannot be read: {problem}", PUBLISHED) from None
    if not isinstance(config, dict):
        raise _refused("SPC401", f"{path} is not a JSON object", PUBLISHED)
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
        message = f"{where}: model_type {config.get('model_type')!r} is not one of {known}"
        raise _refused("SPC402", message, "give a checkpoint of one of these families")
    problems = [error("SPC402", f"{where}: {text}", help=PUBLISHED) for text in _problems(found, config)]
    if problems:
        raise DiagnosticError(problems)
    try:
        geometry = geometry_of_config(found, config)
    except (KeyError, ValueError, TypeError, OverflowError) as problem:
        raise _refused("SPC402", f"{where}: {problem}", PUBLISHED) from None
    if geometry.num_attention_heads % max(geometry.num_key_value_heads, 1) or geometry.head_dim % 2:
        heads, groups = geometry.num_attention_heads, geometry.num_key_value_heads
        raise _refused(
            "SPC402",
            f"{where}: {heads} heads on {groups} key/value heads of {geometry.head_dim} do not divide",
            PUBLISHED,
        )
    return geometry


def _problems(family: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Everything in a config that the compiled program would silently compute otherwise."""
    required, optional = SIZES.get(family, (REQUIRED_SIZES, OPTIONAL_SIZES))
    for name in required + optional:
        value = config.get(name)
        if value is None and name in optional:
            continue
        limit = MAX_LAYERS if name == "num_hidden_layers" else MAX_SIZE
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= limit:
            yield f"{name} must be a positive integer, not {value!r}"
    activations = ("swish", "silu") if family == "gated_deltanet" else ("silu",)
    if config.get("hidden_act", activations[0]) not in activations:
        yield f"hidden_act {config['hidden_act']!r} is not supported ({' or '.join(activations)} is)"
    if config.get("quantization_config"):
        yield "quantised checkpoints are not supported; dequantise the weights first"
    if family == "gated_deltanet":
        yield from _deltanet_problems(config)
        return
    allowed = ["full_attention", "linear_attention"] if family == "qwen3_next" else ["full_attention"]
    kinds = config.get("layer_types") or []
    if config.get("use_sliding_window") or not isinstance(kinds, list) or any(kind not in allowed for kind in kinds):
        yield "sliding-window attention is not supported"
    if family != "qwen3_next" and config.get("partial_rotary_factor", 1.0) != 1.0:
        yield "partial_rotary_factor is not supported"


def _deltanet_problems(config: Mapping[str, Any]) -> Iterator[str]:
    """What flash-linear-attention's models can be, and the compiled program is not."""
    if config.get("attn"):
        yield "attn (softmax attention in some layers) is not supported"
    if config.get("attnres_block_size"):
        yield "attnres_block_size (residuals by attention) is not supported"
    if (config.get("output_gate_activation") or "swish") not in ("swish", "silu"):
        yield f"output_gate_activation {config['output_gate_activation']!r} is not supported (swish is)"


def hugging_face_config(geometry: Geometry, dtype: str = "float32") -> dict[str, Any]:
    """config.json of a geometry: `config_geometry` of it gives the geometry back.

    Keys are those that both old and new transformers (for gated_deltanet: flash-linear-attention) read. Raises
    ValueError for switches that no config of the family can express.
    """
    family = FAMILIES[geometry.family]
    names = {"architectures": [family.architecture], "model_type": family.model_types[0]}
    return {**names, **written_config(geometry), "torch_dtype": dtype}


def _refused(code: str, message: str, remedy: str) -> DiagnosticError:
    found: Diagnostic = error(code, message, help=remedy)
    return DiagnosticError([found])
