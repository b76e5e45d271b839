"""Types of the benchmarks' options: a number out of range is refused, never replaced by another one."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole(least: int) -> Callable[[str], int]:
    """argparse type: a whole number of at least `least`."""

    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return value

    return number
