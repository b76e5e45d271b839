"""Faster forms of ops for generated modules: same signature and meaning as the op's reference implementation.

An op that is not listed here is printed with its reference implementation from `specc.ir.ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specc.backends.reference.kernels import attention, cache

KERNELS: Mapping[str, Callable[..., Any]] = {
    "append_rows": cache.append_rows,
    "append_rows_": cache.append_rows_,
    "causal_attention": attention.causal_attention,
    "causal_attention_cached": attention.causal_attention_cached,
    "commit_path": cache.commit_path,
    "commit_path_": cache.commit_path_,
    "rope": attention.rope,
    "tree_attention": attention.tree_attention,
    "tree_attention_cached": attention.tree_attention_cached,
}
