"""Where a speculative text leaves plain decoding, and by how much: plain decoding of one row along the given text.

Every position of the text is tested: plain decoding picks each token after the text's own tokens before it. Where texts
are equal nothing needs to be run. A difference is allowed while the gap between plain's token and the other one is no
more than the numerical bound: measured beforehand (`bound`), or that of `specc.runtime.lossless` for the dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specc.bench.soak_plain import PlainRunner, PlainText
from specc.runtime.lossless import RELATIVE_BOUND, Difference, first_difference
from specc.runtime.session import Session

INFINITE = float("inf")


class AlongRunner(PlainRunner):
    """A plain runner whose rows go on after a stop token, since the text that they go along may."""

    def decode_one(self) -> Tensor:
        self.state.finished.zero_()
        return super().decode_one()


_runner: list[tuple[Session, AlongRunner]] = []


def runner_of(session: Session, count: int) -> AlongRunner:
    """The session's runner for one row and `count` positions; the one made last is used again."""
    if not _runner or _runner[0][0] is not session or _runner[0][1].count < count:
        _runner.clear()
        module: Any = session.module
        device = session.decoder.state.length.device
        _runner.append((session, AlongRunner(module, session.decoder.weights, 1, count, device)))
    return _runner[0][1]


def bound_of(session: Session, measured: float | None, best: float) -> float:
    """The numerical bound at a position whose largest logit is `best`."""
    if measured is not None:
        return measured
    return RELATIVE_BOUND[str(session.module.SPEC["runtime"]["dtype"])] * abs(best)


def differences(
    session: Session,
    name: str,
    number: int,
    ids: Sequence[int],
    texts: tuple[Sequence[int], Sequence[int]],
    most: int,
    measured: float | None,
) -> list[Difference]:
    """Positions at which the speculative text differs from plain decoding.

    texts: plain decoding's own text, then the speculative one; most: new tokens at most; measured: the bound.
    """
    plain, text = texts
    parted = first_difference(plain, text)
    if parted is None:
        return []
    with torch.no_grad():
        runner = runner_of(session, most)
        along = runner.run([list(ids)], [list(text)], len(text))[0]
    found = [
        _difference(session, name, number, at, (chosen, given), along, measured)
        for at, (chosen, given) in enumerate(zip(along.tokens, text, strict=True))
        if chosen != given
    ]
    if len(text) < len(plain) and not found:
        # It ended early, though every token of it is plain decoding's.
        found.append(Difference(number, name, len(text), plain[len(text)], None, INFINITE, INFINITE, 0.0))
    elif not found:
        # Plain decoding itself parted here: the two tokens are as good as equal to it.
        pair = (plain[parted] if parted < len(plain) else text[parted], text[parted])
        found.append(_difference(session, name, number, parted, pair, along, measured))
    return found


def _difference(
    session: Session, name: str, number: int, at: int, pair: tuple[int, int], along: PlainText, measured: float | None
) -> Difference:
    bound = bound_of(session, measured, float(along.values[at, 0]))
    return Difference(number, name, at, *pair, along.margin(at), along.gap(at), bound)
