"""GGUF -> Hugging Face folder, for llama-like models with a byte-level BPE tokenizer.

Needs the package `gguf` (the extra `fetch`), which reads the container and dequantises. Weights are written
in float32: dequantised Q4_1 values are `d * q + m` with float16 d and m, which float16 cannot hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from specc.diagnostics import DiagnosticError, error
from specc.models.geometry import Geometry, transformer_geometry
from specc.models.weights import weight_table
from specc.output import write_text

FloatArray = npt.NDArray[np.float32]

GLOBAL_TENSORS: Mapping[str, str] = {
    "token_embd.weight": "embed_tokens",
    "output_norm.weight": "norm",
    "output.weight": "lm_head",
}
LAYER_TENSORS: Mapping[str, str] = {
    "attn_norm.weight": "input_layernorm",
    "attn_q.weight": "q_proj",
    "attn_k.weight": "k_proj",
    "attn_v.weight": "v_proj",
    "attn_output.weight": "o_proj",
    "ffn_norm.weight": "post_attention_layernorm",
    "ffn_gate.weight": "gate_proj",
    "ffn_up.weight": "up_proj",
    "ffn_down.weight": "down_proj",
}
# How text is cut before BPE, by `tokenizer.ggml.pre`. `smollm` splits every digit off before the GPT-2
# pattern (llama.cpp: the two patterns of LLAMA_VOCAB_PRE_TYPE_SMOLLM; in `tokenizers`: Digits, then
# ByteLevel). Leaving Digits out, as transformers' GGUF loader does, changes how blanks in front of digits
# are cut.
BYTE_LEVEL: Mapping[str, Any] = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
PRE_TOKENIZERS: Mapping[str, Mapping[str, Any]] = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
    },
    "gpt-2": BYTE_LEVEL,
}
CONTROL_TOKEN = 3
USER_DEFINED_TOKEN = 4


def convert(gguf_file: Path, folder: Path) -> None:
    """Write model.safetensors, config.json, generation_config.json, tokenizer.json and tokenizer_config.json.

    `folder` exists and is the caller's to publish. Raises DiagnosticError: SPC423 without the package `gguf`,
    SPC425 for contents that the converter does not know.
    """
    reader = _open(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    tokenizer = _tokenizer(fields)
    _write_weights(reader, transformer_geometry("llama", config), folder)
    special = {f"{kind}_token_id": config[f"{kind}_token_id"] for kind in ("bos", "eos", "pad")}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", special)
    _write_json(folder / "tokenizer.json", tokenizer)
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))


def _open(gguf_file: Path) -> Any:
    try:
        import gguf
    except ImportError:
        missing = error("SPC423", "the package `gguf` is not installed", help="pip install 'specc[fetch]'")
        raise DiagnosticError([missing]) from None
    try:
        return gguf.GGUFReader(gguf_file)
    except ValueError as problem:
        raise _unexpected(f"{gguf_file.name} is not a readable GGUF file: {problem}") from problem


def _unexpected(message: str) -> DiagnosticError:
    return DiagnosticError([error("SPC425", message, help="only the models that `specc fetch` lists are converted")])


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise _unexpected(f"the GGUF file has no field `{name}`")
    return fields[name]


def _decimal(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-5 is stored as 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _config(fields: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    """config.json in the keys that every version of transformers reads."""
    architecture = _field(fields, "general.architecture")
    if architecture != "llama":
        raise _unexpected(f"the GGUF file's architecture is `{architecture}`, not `llama`")

    def size(name: str) -> int:
        return int(_field(fields, f"llama.{name}"))

    if any(name.startswith("llama.rope.scaling") for name in fields):
        raise _unexpected("the GGUF file scales its rope frequencies")
    heads = size("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": size("block_count"),
        "hidden_size": size("embedding_length"),
        "intermediate_size": size("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields.get("llama.attention.head_count_kv", heads)),
        "head_dim": size("rope.dimension_count"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": size("context_length"),
        "rms_norm_eps": _decimal(_field(fields, "llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": _decimal(_field(fields, "llama.rope.freq_base")),
        "vocab_size": len(_field(fields, "tokenizer.ggml.tokens")),
        "tie_word_embeddings": tied,
        "bos_token_id": int(_field(fields, "tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(_field(fields, "tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(_field(fields, "tokenizer.ggml.padding_token_id")),
        "torch_dtype": "float32",
    }


def _write_weights(reader: Any, geometry: Geometry, folder: Path) -> None:
    import gguf

    entries = {entry.name: entry for entry in weight_table(geometry)}
    tensors: dict[str, FloatArray] = {}
    for tensor in reader.tensors:
        name, layer = _logical_name(tensor.name)
        if name not in entries:
            raise _unexpected(f"the GGUF file has the unknown tensor `{tensor.name}`")
        entry = entries[name]
        array = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if array.shape != entry.shape:
            raise _unexpected(f"tensor `{tensor.name}` has shape {array.shape}, not {entry.shape}")
        if name in ("q_proj", "k_proj"):
            heads = geometry.num_attention_heads if name == "q_proj" else geometry.num_key_value_heads
            array = split_halves(array, heads)
        tensors[entry.checkpoint_name.format(layer=layer)] = np.ascontiguousarray(array)
    layers = geometry.num_hidden_layers
    wanted = {name for entry in entries.values() for name in entry.checkpoint_names(layers)}
    if wanted != set(tensors):
        raise _unexpected(f"the GGUF file lacks or repeats tensors: {sorted(wanted ^ set(tensors))[:5]}")
    try:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as problem:
        raise OSError(str(problem)) from problem


def _logical_name(gguf_name: str) -> tuple[str, int]:
    """`blk.3.attn_q.weight` -> ("q_proj", 3); ("", 0) for a name that is not known."""
    if gguf_name in GLOBAL_TENSORS:
        return GLOBAL_TENSORS[gguf_name], 0
    head, _, rest = gguf_name.partition(".")
    layer, _, suffix = rest.partition(".")
    if head == "blk" and layer.isdecimal():
        return LAYER_TENSORS.get(suffix, ""), int(layer)
    return "", 0


def split_halves(weight: FloatArray, heads: int) -> FloatArray:
    """Undo llama.cpp's row order of q and k: interleaved rope pairs -> first and second half of each head.

    llama.cpp rotates rows (2i, 2i+1) of a head, Hugging Face rows (i, i + head_dim/2); its converter permutes
    the rows so that both give the same result. `weight` is [heads * head_dim, hidden].
    """
    rows, columns = weight.shape
    pairs = rows // heads // 2
    return weight.reshape(heads, pairs, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer.json of the `tokenizers` package, from the GGUF file's tokens, merges and pre-tokenizer."""
    model, pre = _field(fields, "tokenizer.ggml.model"), _field(fields, "tokenizer.ggml.pre")
    if model != "gpt2" or pre not in PRE_TOKENIZERS:
        raise _unexpected(f"the tokenizer `{model}` with pre-tokenizer `{pre}` is not known")
    tokens, types = _field(fields, "tokenizer.ggml.tokens"), _field(fields, "tokenizer.ggml.token_type")
    added = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": int(kind) == CONTROL_TOKEN,
        }
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if int(kind) in (CONTROL_TOKEN, USER_DEFINED_TOKEN)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {**BYTE_LEVEL, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in _field(fields, "tokenizer.ggml.merges")],
        },
    }


def _tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    tokens = _field(fields, "tokenizer.ggml.tokens")

    def token(kind: str) -> str:
        return str(tokens[int(_field(fields, f"tokenizer.ggml.{kind}_token_id"))])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(_field(fields, "llama.context_length")),
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": str(_field(fields, "tokenizer.chat_template")),
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
