"""The peer that generated modules are compared with: transformers' class, with the weights of the same folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specc.runtime.module import DecoderLike, GeneratedModule


def load_peer(folder: Path) -> Any:
    """transformers' model of a folder: float32 on the CPU, attention by scaled_dot_product_attention.

    Raises ImportError without transformers, which is a dependency of the tests only.
    """
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.eval()
    # `generate` takes from here what its own configuration leaves open, and texts of a fixed length are compared.
    model.generation_config.eos_token_id = None
    return model


def peer_greedy(model: Any, ids: Sequence[int], count: int) -> list[int]:
    """`count` tokens by `generate`, greedy with its key/value cache; stop tokens do not end it."""
    import transformers

    prompt = torch.tensor([list(ids)])
    config_class: Any = transformers.GenerationConfig
    config = config_class(max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0, use_cache=True)
    with torch.no_grad():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
    return [int(token) for token in out[0, len(ids) :]]


def peer_logits(model: Any, ids: Sequence[int], first: int) -> Tensor:
    """Logits [len(ids) - first, V] of the positions from `first` on, in one forward pass without a cache."""
    with torch.no_grad():
        logits: Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, first:]
    return logits


def module_logits(
    module: GeneratedModule, decoder: DecoderLike, ids: Sequence[int], count: int
) -> tuple[list[int], Tensor]:
    """`count` greedy tokens of plain decoding, and the logits [count, V] that each was picked from.

    The first comes from prefill, the others from the module's plain step, one token each.
    """
    prompt = torch.tensor([list(ids)])
    with torch.no_grad():
        state = module.init_state(1)
        logits = [module.prefill(decoder.weights, state, prompt, torch.tensor([len(ids)]))[1]]
        tokens = decoder.start([ids], count)
        state = decoder.state
        for _ in range(count - 1):
            state, decoded = module.decode(decoder.weights, state)
            logits.append(decoded.logits)
            tokens.append(int(state.root_token[0]))
    return tokens, torch.cat(logits)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """max|ours - theirs| / max|theirs|."""
    return float((ours - theirs).abs().max() / theirs.abs().max())
