"""Small cases for the tests of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specc.bench.step_cases import TREE_OF_16, Case
from specc.spec import LoadedSpec, from_mapping

LLAMA = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
GDN = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_heads": 2, "head_dim": 8, "expand_v": 2, "conv_size": 4,
    "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 256, "tie_word_embeddings": False,
}  # fmt: skip
DRAFT = dict(TREE_OF_16) | {"num_speculative_tokens": 7, "num_steps": 3}


@dataclass(frozen=True, slots=True)
class Small(Case):
    """A case without a file."""

    def loaded(self, batch: int, dtype: str | None = None) -> LoadedSpec:
        dtype, llama = dtype or "float32", self.name == "llama"
        mapping: dict[str, Any] = {
            "specc": 1,
            "name": self.name,
            "target": {"family": "llama" if llama else "gated_deltanet", "config": LLAMA if llama else GDN},
            "draft": DRAFT,
            "accept": {"method": "greedy"},
            "runtime": {"max_batch_size": batch, "max_sequence_length": self.capacity, "dtype": dtype},
        }
        if self.page:
            mapping["runtime"] |= {"kv_layout": "paged", "kv_block_size": self.page}
        if not llama:
            mapping |= {"commit": {"state": "factors", "update": "deferred"}}
            mapping["runtime"] |= {"state_dtype": "float64" if dtype == "float64" else "float32"}
        return from_mapping(mapping)
