"""A tiny model folder with a byte tokenizer, and specs for it: what `specc run` is tested with."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from specc.models.checkpoint import save_checkpoint
from specc.models.families import hugging_face_config
from specc.models.geometry import Geometry, transformer_geometry
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table

STOP_TOKEN = 256
CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 258,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"
DRAFTS = {
    "chain": "method: prompt_lookup, tree: chain, num_speculative_tokens: 4, ngram: {min: 1, max: 3}",
    "static": "method: draft_model, family: llama, config: *model, tree: static, "
    "choices: [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]",
    "dynamic": "method: draft_model, family: llama, config: *model, tree: dynamic, top_k: 3, num_steps: 3, "
    "num_speculative_tokens: 7",
    "bigram": "method: bigram, config: {candidates_per_token: 5}, tree: dynamic, top_k: 3, num_steps: 3, "
    "num_speculative_tokens: 7",
    "none": "method: none",
}


def write_model(
    folder: Path,
    *,
    seed: int = 0,
    eos: int | None = STOP_TOKEN,
    dtype: str = "float64",
    geometry: Geometry | None = None,
) -> Path:
    """A llama (or the geometry given) of random weights with a tokenizer of one token per byte and a chat template."""
    geometry = geometry or transformer_geometry("llama", CONFIG)
    table = weight_table(geometry)
    weights = random_weights(table, geometry, seed, getattr(torch, dtype))
    save_checkpoint(folder, weights, table, hugging_face_config(geometry, dtype))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: number for number, char in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", "<pad>"])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if eos is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}), encoding="utf-8")
    return folder


def spec_text(draft: str = "chain", *, stop: str = "", batch: int = 2, extra: str = "") -> str:
    """A spec of the tiny model; `stop` is the value of accept.stop_tokens, left out if empty."""
    stops = f", stop_tokens: {stop}" if stop else ""
    update = "deferred" if draft == "dynamic" else "immediate"
    commit = "" if draft in ("chain", "none") else f"commit: {{kv: path_index, update: {update}}}\n"
    return (
        "specc: 1\nname: tiny\n"
        f"target:\n  family: llama\n  config: &model {json.dumps(CONFIG)}\n"
        f"draft: {{{DRAFTS[draft]}}}\n"
        f"accept: {{method: greedy{stops}}}\n{commit}"
        f"runtime: {{max_batch_size: {batch}, max_sequence_length: 256, dtype: float64}}\n{extra}"
    )
