"""Generated modules as seen from the host: importing one from its source, and what it provides."""

from __future__ import annotations

import hashlib
import linecache
import sys
import types
from collections.abc import Sequence
from typing import Any, Protocol, cast

from torch import Tensor


class StepRecord(Protocol):
    """What `Decoder.step` returns: B rows, N nodes, P = longest path with the root.

    tokens, valid [B,N]; parent [B,N] or None for a chain; path [B,P]; accept_length, bonus [B]; the new tokens of
    every row; seconds of each stage.
    """

    @property
    def tokens(self) -> Tensor: ...
    @property
    def parent(self) -> Tensor | None: ...
    @property
    def valid(self) -> Tensor | None: ...
    @property
    def path(self) -> Tensor: ...
    @property
    def accept_length(self) -> Tensor: ...
    @property
    def bonus(self) -> Tensor: ...
    @property
    def emitted(self) -> list[list[int]]: ...
    @property
    def seconds(self) -> dict[str, float]: ...


class DecoderLike(Protocol):
    """The `Decoder` of a generated module."""

    @property
    def weights(self) -> Any: ...
    @property
    def state(self) -> Any: ...
    def start(
        self,
        input_ids: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        seed: int = ...,
        requests: Sequence[int] | None = ...,
    ) -> list[int]: ...
    def step(self) -> StepRecord: ...
    def plain_step(self) -> list[list[int]]: ...
    def close(self) -> None: ...


class GeneratedModule(Protocol):
    """The names of a generated module that the host uses (ABI 1)."""

    ABI: int
    SPEC: dict[str, Any]
    FINGERPRINT: str
    SEED: int
    MAX_BATCH_SIZE: int
    MAX_SEQUENCE_LENGTH: int
    VOCAB_SIZE: int
    WEIGHTS: tuple[Any, ...]
    Weights: Any
    Decoder: Any

    def load_weights(self, directory: Any, draft_directory: Any = None, device: Any = "cpu") -> Any: ...
    def init_state(self, batch: int, device: Any = "cpu") -> Any: ...
    def prefill(self, weights: Any, state: Any, input_ids: Tensor, lengths: Tensor) -> tuple[Any, Any]: ...
    def decode(self, weights: Any, state: Any) -> tuple[Any, Any]: ...


def import_source(source: str, name: str) -> GeneratedModule:
    """The module of a source text, registered in sys.modules as `name` so that tracebacks and typing find it.

    `name` should not be the name of an importable package; the same name replaces the module made before. Triton reads
    the text of a kernel when it is first launched: the text stays known under a file name that no other text has.
    """
    module = types.ModuleType(name)
    file = f"<{name} {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(source), None, [f"{line}\n" for line in source.split("\n")], file)
    module.__file__ = file
    sys.modules[name] = module
    exec(compile(source, module.__file__, "exec"), module.__dict__)
    return cast(GeneratedModule, module)
