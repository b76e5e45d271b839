"""Symbolic sizes, carried through fake tensors as large primes.

A graph is typed with concrete fake tensors, which is fast and prints well. The two sizes that a program
does not fix, the batch B and the prompt chunk's length T, are represented by primes that no model has as a
size. A dimension divisible by one of them is symbolic; `dim_text` writes it back as `B`, `T`, `16*B`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

BATCH = 10007
CHUNK = 10009
_SYMBOLS = ((BATCH, "B"), (CHUNK, "T"))


def is_symbolic(size: int) -> bool:
    """True where `size` stands for an unknown (a multiple of B or T)."""
    return size != 0 and any(size % prime == 0 for prime, _ in _SYMBOLS)


def dim_text(size: int) -> str:
    """`10007 -> B`, `16 * 10007 -> 16*B`, `64 -> 64`."""
    names: list[str] = []
    rest = size
    for prime, name in _SYMBOLS:
        while rest and rest % prime == 0:
            names.append(name)
            rest //= prime
    if not names:
        return str(size)
    return "*".join(([str(rest)] if rest != 1 else []) + names)


def parse_dim(text: str) -> int:
    """Inverse of `dim_text`. Raises ValueError for anything else."""
    table = {name: prime for prime, name in _SYMBOLS}
    size = 1
    for part in text.split("*"):
        size *= table[part] if part in table else int(part)
    return size


_DTYPE_TEXT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
TEXT_DTYPE = {text: dtype for dtype, text in _DTYPE_TEXT.items()}


def dtype_text(dtype: torch.dtype) -> str:
    """`torch.float32 -> f32`; dtypes that no op of ours uses keep torch's name."""
    return _DTYPE_TEXT.get(dtype, str(dtype))


def type_text(shape: Sequence[int], dtype: torch.dtype) -> str:
    """`f32[B,16,576]`."""
    return _type_text(tuple(shape), dtype)


@cache
def _type_text(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """Asked for every node whenever a program is fingerprinted; a program has few different types."""
    return f"{dtype_text(dtype)}[{','.join(dim_text(int(size)) for size in shape)}]"
