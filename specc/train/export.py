"""Export of a trained model: a checkpoint folder in the flash-linear-attention layout that anybody can load."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from specc.diagnostics import DiagnosticError, error
from specc.output import make_folder, replacing, write_json, write_text
from specc.train.bpe import END
from specc.train.gated_delta import GatedDeltaConfig, GatedDeltaModel

INDEX = "model.safetensors.index.json"
MAX_SHARD_BYTES = 15_000_000
MAX_TOTAL_BYTES = 32_000_000
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'assistant' %}Answer: {{ message.content }}\n"
    "{% else %}Question: {{ message.content }}\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}"
)


def rounded(model: GatedDeltaModel) -> GatedDeltaModel:
    """A copy of the model with the weights as they are stored (bfloat16), in float32."""
    copy = GatedDeltaModel(model.config)
    copy.load_state_dict({name: t.detach().bfloat16().float() for name, t in model.state_dict().items()})
    return copy.to(next(model.parameters()).device)


def export(model: GatedDeltaModel, tokenizer: Path, folder: Path) -> dict[str, str]:
    """Write shards, index, config.json and the tokenizer's files. Returns sha256 by file name.

    Every file is written under a temporary name and renamed, config.json last. ValueError if the model is too large,
    DiagnosticError (SPC460) if a file can't be written.
    """
    make_folder(folder)
    tensors = {name: t.detach().bfloat16().cpu().contiguous() for name, t in model.state_dict().items()}
    total = sum(tensor.nbytes for tensor in tensors.values())
    if total > MAX_TOTAL_BYTES:
        raise ValueError(f"the weights take {total} bytes, more than {MAX_TOTAL_BYTES}")
    shards = _shards(tensors)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        with replacing(folder / name, SafetensorError) as temporary:
            save_file(shard, temporary, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    write_text(folder / "tokenizer.json", tokenizer.read_text("utf-8"))
    write_json(folder / "tokenizer_config.json", _tokenizer_config())
    write_text(folder / "chat_template.jinja", CHAT_TEMPLATE)
    write_json(folder / "config.json", model.config.to_json())
    names = [*sorted(set(weight_map.values())), "tokenizer.json", "config.json"]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def _tokenizer_config() -> dict[str, Any]:
    return {
        "bos_token": END,
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _shards(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Tensors in order, a new shard whenever the next tensor would not fit."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if size + tensor.nbytes > MAX_SHARD_BYTES * 0.99:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def load_model(folder: Path) -> GatedDeltaModel:
    """The training model with the weights of an exported folder, in float32. SPC473 if it is not one."""
    try:
        config = GatedDeltaConfig.from_json(json.loads((folder / "config.json").read_text("utf-8")))
        index = json.loads((folder / INDEX).read_text("utf-8"))["weight_map"]
        tensors: dict[str, Tensor] = {}
        for name in sorted(set(index.values())):
            tensors |= load_file(folder / name)
        model = GatedDeltaModel(config)
        model.load_state_dict({name: tensor.to(torch.float32) for name, tensor in tensors.items()})
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as problem:
        message = f"{folder} is no exported model: {problem}"
        raise DiagnosticError(
            [error("SPC473", message, help="give OUT/model of `specc train target --out OUT`")]
        ) from None
    return model
