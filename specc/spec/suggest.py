"""Did-you-mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name nearest to `word`, or None where nothing is near.

    Separators and case do not count: `numSpeculativeTokens` and `num-speculative-tokens` are near.
    """
    if len(word) > 80:
        return None
    names = {_plain(name): name for name in known}
    found = difflib.get_close_matches(_plain(word), list(names), n=1, cutoff=0.6)
    return names[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean …?`, or the list of what is known, or nothing if that list is long."""
    names = list(known)
    near = closest(word, names)
    if near is not None:
        return f"did you mean `{near}`?"
    return f"known: {', '.join(names)}" if len(names) <= 16 else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
