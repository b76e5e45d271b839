"""A tiny random target on disk with texts of its own, and a spec with a head for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml

from specc.models.checkpoint import save_checkpoint
from specc.models.families import hugging_face_config
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table
from specc.spec import LoadedSpec, load
from specc.train.draft.store import StoreIndex, pack, write_shard
from specc.train.draft.targets import load_target, target_fingerprint

VOCABULARY = 48
LLAMA = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
DELTA = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_heads": 2,
    "head_dim": 16,
    "expand_v": 1,
    "conv_size": 4,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(VOCABULARY)}, "unk_token": "w0"},
}


def write_spec(path: Path, family: str, of: str | list[str], **draft: Any) -> LoadedSpec:
    """A spec file with a dynamic tree."""
    config = {"draft_vocab_size": 24}
    if family != "llama":
        config |= {"num_attention_heads": 4, "head_dim": 8}
    mapping = {
        "specc": 1,
        "name": "tiny-eagle",
        "target": {"family": family, "config": LLAMA if family == "llama" else DELTA},
        "draft": {
            "method": "eagle3",
            "tree": "dynamic",
            "num_speculative_tokens": 6,
            "num_steps": 3,
            "top_k": 2,
            "config": config,
            "aux_hidden_state_layer_ids": [0, 1],
            "aux_hidden_state_of": of,
            **draft,
        },
        "runtime": {"max_batch_size": 2, "max_sequence_length": 96, "dtype": "float32"},
    }
    path.write_text(yaml.safe_dump(mapping), "utf-8")
    return load(path, [])


def write_model(folder: Path, loaded: LoadedSpec, seed: int = 0) -> Path:
    """Random weights and a tokenizer."""
    import json

    geometry = loaded.spec.target.geometry
    table = weight_table(geometry)
    weights = random_weights(table, geometry, seed, torch.float32)
    save_checkpoint(folder, weights, table, hugging_face_config(geometry))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER), "utf-8")
    return folder


def write_texts(folder: Path, model: Path, count: int = 100, new_tokens: int = 24, seed: int = 0) -> Path:
    """A store of greedy continuations of random prompts."""
    target = load_target(model, "cpu", torch.float32)
    generator = torch.Generator().manual_seed(seed)
    texts, prompts = [], []
    for number in range(count):
        prompt = 3 + number % 4
        ids = torch.randint(VOCABULARY, (1, prompt), generator=generator)
        decoding = target.open(1, prompt + new_tokens)
        logits = decoding.prefill(ids, torch.tensor([prompt]))
        text = ids[0].tolist()
        for _ in range(new_tokens):
            token = logits.argmax(-1)
            text.append(int(token))
            logits = decoding.step(token)
        texts.append(text)
        prompts.append(prompt)
    folder.mkdir(parents=True, exist_ok=True)
    stored = pack(texts, prompts)
    write_shard(folder / "shard-00000.safetensors", stored)
    shard = {"file": "shard-00000.safetensors", "texts": count, "tokens": stored.tokens.numel()}
    StoreIndex(target_fingerprint(model), {}, {"random": count}, {}, [shard]).write(folder)
    return folder
