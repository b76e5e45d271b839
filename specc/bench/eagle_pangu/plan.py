"""The cells of `specc bench eagle-pangu`, most important first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.bench.eagle_pangu.variants import Variant
from specc.bench.evaluation.cells import Cell
from specc.bench.evaluation.options import Settings
from specc.bench.evaluation.prompts import prepared, prompt_set
from specc.bench.soak_plain import WHOLE
from specc.diagnostics import SpecError
from specc.spec import load

DECODE = "specc.bench.evaluation.turns:decode_cell"
BOUND = "specc.bench.evaluation.bound:bound_cell"
STAGES = "specc.bench.evaluation.stages:stage_cell"
BLOCK, CPU_BLOCK = 10, 1
"""Prompts of a cell: few enough that a kill or a deadline costs seconds."""
NUMBERS_APART = 2
"""Turns that a conversation has at most: turn numbers name random streams and must not depend on the blocks."""
GSM8K_PROMPTS = 60
SUBSET_TURNS = 40
PLAIN_TURNS = 10
"""Turns of a variant that are decoded plainly too, for its module's plain speed; all texts are compared."""
BOUND_COUNT = 256

Conversation = Mapping[str, Any]
Module = tuple[dict[str, Any], dict[str, str]]


def conversations(settings: Settings, sets: Sequence[str]) -> list[dict[str, Any]]:
    """All prompts of the sets, each once, in the order of the sets. Raises DiagnosticError (SPC295)."""
    found: dict[str, dict[str, Any]] = {}
    for name in sets:
        limit = settings.limit
        if name == "gsm8k":
            limit = min(limit or GSM8K_PROMPTS, GSM8K_PROMPTS)
        for item in prepared(prompt_set(name, settings.data, limit), settings.model, settings.cache):
            found.setdefault(item["name"], item)
    return list(found.values())


def subset(prompts: Sequence[Conversation], turns: int) -> list[Conversation]:
    """A fixed part of the prompts with about so many turns: half of it chats, the rest the other sets in turn."""
    chats = [item for item in prompts if len(item["turns"]) > 1]
    others = [item for item in prompts if len(item["turns"]) == 1]
    # Chats have two turns each.
    wanted_chats = min(len(chats), turns // 4) if others else min(len(chats), turns // 2)
    wanted_others = min(len(others), turns - 2 * wanted_chats)
    groups: dict[str, list[Conversation]] = {}
    for item in others:
        groups.setdefault(item["name"].partition("/")[0], []).append(item)
    chosen = list(_spread(chats, wanted_chats))
    for place, group in enumerate(groups.values()):
        chosen += _spread(group, (wanted_others + place) // len(groups))
    return chosen


def _spread(items: Sequence[Conversation], count: int) -> list[Conversation]:
    count = min(count, len(items))
    return [items[number * len(items) // count] for number in range(count)]


@dataclass(frozen=True, slots=True)
class Planned:
    """A variant with its module and its cell; `refusal` says why the spec can't be changed so."""

    variant: Variant
    cell: Cell | None = None
    module: Module | None = None
    refusal: str = ""


def folder_of(settings: Settings, variant: Variant, bigram: Path | None) -> dict[str, Any]:
    """Arguments of `Settings.module` and `.places` for the variant's drafter."""
    if variant.drafter == "none":
        return {"drafter": False}
    return {"draft_model": bigram} if variant.drafter == "bigram" else {}


def module_of(settings: Settings, variant: Variant, bigram: Path | None) -> Module:
    """Inputs and places of a variant's module. Raises SpecError where the change makes no sense for the spec."""
    load(settings.spec, list(variant.changes))
    where = folder_of(settings, variant, bigram)
    return settings.module(variant.changes, **where), settings.places(**where)


def bound_module(settings: Settings, drafter: bool) -> Module:
    """The run's module for 16 rows, without stop tokens."""
    inputs = settings.module([], rows=WHOLE, ignore_eos=True, drafter=drafter)
    return inputs, settings.places(drafter=drafter)


def bound_cell(settings: Settings, prompts: Sequence[Conversation], drafter: bool) -> Cell:
    """Plain decoding against itself, before anything is compared."""
    texts = [item["ids"] for item in prompts[: 4 * WHOLE]]
    inputs, places = bound_module(settings, drafter)
    count = min(BOUND_COUNT, settings.max_new_tokens)
    more = {"prompts": texts, "count": count, "positions": settings.bound_positions}
    return Cell("bound", BOUND, inputs | more, places)


def decode_cells(
    settings: Settings, module: Module, prompts: Sequence[Conversation], bound: float | None
) -> list[Cell]:
    """The whole sets, block by block, plain decoding timed everywhere."""
    inputs, places = module
    more = {"max_new_tokens": settings.max_new_tokens, "plain_turns": None, "bound": bound}
    cells, size = [], BLOCK if settings.on_gpu else CPU_BLOCK
    for first in range(0, len(prompts), size):
        block = list(prompts[first : first + size])
        name = f"turns/{block[0]['name']} to {block[-1]['name']}"
        numbers = {"conversations": block, "first_number": NUMBERS_APART * first}
        cells.append(Cell(name, DECODE, inputs | more | numbers, places))
    return cells


def variant_cells(
    settings: Settings, variants: Sequence[Variant], prompts: Sequence[Conversation], bigram: Path | None,
    bound: float | None,
) -> list[Planned]:  # fmt: skip
    """One cell for each variant, on the subset."""
    more = {"max_new_tokens": settings.max_new_tokens, "plain_turns": PLAIN_TURNS, "bound": bound}
    found = []
    for variant in variants:
        try:
            module = module_of(settings, variant, bigram)
        except SpecError as problem:
            found.append(Planned(variant, refusal=problem.diagnostics[0].message))
            continue
        inputs = module[0] | more | {"conversations": list(prompts), "first_number": 0}
        found.append(Planned(variant, Cell(f"variant/{variant.name}", DECODE, inputs, module[1]), module))
    return found


def stage_cell(settings: Settings, name: str, module: Module, ids: Sequence[int]) -> Cell:
    """The stages of a module's step after one prompt."""
    inputs, places = module
    more = {"ids": list(ids), "max_new_tokens": settings.max_new_tokens}
    return Cell(f"stages/{name}", STAGES, inputs | more, places)
