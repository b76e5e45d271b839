"""CPU kernels (first form)."""

from __future__ import annotations


def register() -> None:
    return None


def make_room_for_torchair() -> None:
    return None


def refresh() -> None:
    return None
