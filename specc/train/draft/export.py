"""Export of a trained head: a checkpoint folder in the public EAGLE-3 layout, with everything that made it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from specc.models.geometry import EagleGeometry
from specc.models.written_config import scaling_config
from specc.output import make_folder, replacing, umask, write_json
from specc.train.draft.head import EagleHead

INDEX = "model.safetensors.index.json"
MAX_SHARD_BYTES = 15_000_000
HEADER_ROOM = 16_384


def head_config(geometry: EagleGeometry, layers: Sequence[int], of: str | Sequence[str]) -> dict[str, Any]:
    """config.json, by the keys of public heads; `aux_hidden_state_of` is this project's."""
    g = geometry
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": g.hidden_size,
        "intermediate_size": g.intermediate_size,
        "num_attention_heads": g.num_attention_heads,
        "num_key_value_heads": g.num_key_value_heads,
        "head_dim": g.head_dim,
        "hidden_act": "silu",
        "vocab_size": g.vocab_size,
        "draft_vocab_size": g.draft_vocab_size,
        "target_hidden_size": g.target_hidden_size,
        "max_position_embeddings": g.max_position_embeddings,
        "rope_theta": g.rope_theta,
        "rms_norm_eps": g.rms_norm_eps,
        "attention_bias": g.attention_bias,
        "mlp_bias": g.mlp_bias,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "aux_hidden_state_layer_ids": list(layers),
        "aux_hidden_state_of": of if isinstance(of, str) else list(of),
    }
    return config | scaling_config(geometry.rope_scaling)


def stored(head: EagleHead) -> dict[str, Tensor]:
    """The tensors as they are written: floating point in bfloat16, the tables as they are."""
    return {
        name: (tensor.detach().bfloat16() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in head.state_dict().items()
    }


@torch.no_grad()
def round_to_stored(head: EagleHead) -> None:
    """Give the head the weights that its export holds."""
    for parameter in head.parameters():
        parameter.copy_(parameter.bfloat16())


def export_head(head: EagleHead, folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Write shards, index and config.json, each under a temporary name and renamed. Returns sha256 by file name."""
    make_folder(folder)
    tensors = stored(head)
    shards = _shards(tensors)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        with replacing(folder / name, SafetensorError) as temporary:
            save_file(shard, temporary, metadata={"format": "pt"})
            os.chmod(temporary, 0o666 & ~umask())  # some versions of safetensors make private files
        weight_map |= dict.fromkeys(shard, name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    write_json(folder / "config.json", config)
    for path in folder.glob("model-*.safetensors"):
        if path.name not in weight_map.values():
            path.unlink()  # of an earlier export with more shards
    names = [*sorted(set(weight_map.values())), "config.json"]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def _shards(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Tensors in order, a new shard whenever the next one would not fit."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > MAX_SHARD_BYTES - HEADER_ROOM:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards
