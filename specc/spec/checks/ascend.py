"""Contracts of the Ascend operators. Checked when a spec has `backend.ascend`, and for `--target ascend`.

Figures are those of the public operator documentation: at most 16 tokens per decode round, head dims in
multiples of 16 up to 512, at most 256 query heads in groups of at most 64, pages of 128, 256, 384 or 512 rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from specc.diagnostics import Diagnostic
from specc.spec.checks.view import View
from specc.spec.config import Qwen3NextConfig, TransformerConfig

MAX_NODES = 16
MAX_HEAD_DIM = 512
MAX_HEADS = 256
MAX_GROUP = 64


def if_written(view: View) -> Iterator[Diagnostic]:
    """The contracts, for a spec that names the Ascend backend."""
    if view.written("backend", "ascend") is not None:
        yield from contracts(view)


def contracts(view: View) -> Iterator[Diagnostic]:
    """SPC160 (nodes per round), SPC161 (heads), SPC162 (pages), SPC163 (types)."""
    draft = view.draft
    if draft is not None and draft.num_speculative_tokens + 1 > MAX_NODES:
        yield view.error(
            "SPC160",
            f"Ascend verifies at most {MAX_NODES} nodes per round; this tree has "
            f"{draft.num_speculative_tokens} and the root",
            "draft", "num_speculative_tokens",
            label=f"at most {MAX_NODES - 1} on Ascend",
            help="lower num_speculative_tokens, or remove `backend.ascend`",
        )  # fmt: skip
    config = None if view.target is None else view.target.config
    if isinstance(config, TransformerConfig | Qwen3NextConfig):
        yield from _heads(view, config)
    runtime = view.runtime
    if runtime is None:
        return
    if runtime.kv_layout == "paged" and (runtime.kv_block_size % 128 or runtime.kv_block_size > 512):
        yield view.error(
            "SPC162",
            f"Ascend pages have 128, 256, 384 or 512 rows, not {runtime.kv_block_size}",
            "runtime", "kv_block_size",
            label="must be a multiple of 128, at most 512",
            help="write 128, or leave it out",
        )  # fmt: skip
    if runtime.dtype == "float64":
        yield view.error(
            "SPC163", "Ascend attention has no float64", "runtime", "dtype",
            label="not on Ascend", help="use bfloat16, float16 or float32",
        )  # fmt: skip


def _heads(view: View, config: TransformerConfig | Qwen3NextConfig) -> Iterator[Diagnostic]:
    if config.head_dim % 16 or config.head_dim > MAX_HEAD_DIM:
        yield view.error(
            "SPC161",
            f"Ascend attention needs a head_dim that is a multiple of 16 and at most {MAX_HEAD_DIM}, "
            f"not {config.head_dim}",
            "target", "config", "head_dim",
            label="not on Ascend",
            help="compile for another target, and remove `backend.ascend`",
        )  # fmt: skip
    group = config.num_attention_heads / config.num_key_value_heads
    if config.num_attention_heads > MAX_HEADS or group > MAX_GROUP:
        yield view.error(
            "SPC161",
            f"Ascend attention has at most {MAX_HEADS} query heads in groups of at most {MAX_GROUP}",
            "target", "config", "num_attention_heads",
            label="not on Ascend",
            help="compile for another target, and remove `backend.ascend`",
        )  # fmt: skip
