"""The prompts that trees are tuned on: training prompts. Test sets are refused."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from specc.diagnostics import DiagnosticError, error
from specc.runtime.generate import Request
from specc.runtime.prompts import load_prompts, one_prompt
from specc.runtime.tokenizer import Tokenizer
from specc.train.draft.store import INDEX, read_store

TEST_NAMES = re.compile(r"(?:^|[^a-z])(?:test|humaneval|mt[-_]?bench|question)(?:[^a-z]|$)")
TEST_FOLDERS = re.compile(r"tests?|humaneval|mt[-_]?bench")
"""Names of files (a part of the name) and of the folders that hold them (the whole name), in lower case."""
TRAIN_FILES = ("train.jsonl", "train.jsonl.gz")
WHY = (
    "a tree that was chosen on an evaluation's prompts makes that evaluation report too much; tune on training "
    "prompts, or give --allow-test"
)


def check_not_test(path: Path, allowed: bool) -> bool:
    """Raise DiagnosticError (SPC491) for a file that belongs to a test set, by its name, its folder's or its records;
    with `allowed` say whether it does."""
    file, folder = path.name.lower(), path.absolute().parent.name.lower()
    named = path.name if TEST_NAMES.search(file) else folder if TEST_FOLDERS.fullmatch(folder) else None
    found = named is not None or _test_records(path)
    if found and not allowed:
        what = f"`{named}` names a test set" if named else f"{path} holds MT-Bench or HumanEval records"
        raise DiagnosticError([error("SPC491", what, help=WHY)])
    return found


def _test_records(path: Path) -> bool:
    """Whether the first record has the keys of MT-Bench or HumanEval."""
    try:
        with _opened(path) as file:
            value = json.loads(file.readline())
    except (OSError, ValueError):
        return False  # whoever reads the file says what is wrong with it
    if not isinstance(value, dict):
        return False
    return {"question_id", "turns"} <= value.keys() or str(value.get("task_id", "")).startswith("HumanEval")


def _opened(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def training_requests(
    tokenizer: Tokenizer,
    prompts: Path | None,
    data: Path | None,
    limit: int,
    most_tokens: int,
    seed: int,
    *,
    test: bool,
) -> tuple[list[Request], str]:
    """`limit` requests of at most `most_tokens` tokens, and the name of where they come from.

    `prompts` is a file as `specc run --prompts` takes it, read in order; `data` a store of training text or a folder
    with GSM8K's training file, of which some are drawn. Raises DiagnosticError: SPC491, SPC494, and what reading
    raises.
    """
    if prompts is not None:
        check_not_test(prompts, test)
        ids: list[Sequence[int]] = [prompt.first_ids(tokenizer) for prompt in load_prompts(prompts)]
        origin = prompts.name
    else:
        assert data is not None
        ids, origin = _of_folder(tokenizer, data)
        random.Random(seed).shuffle(ids)
    fitting = [one for one in ids if 0 < len(one) <= most_tokens][:limit]
    if not fitting:
        message = f"no prompt of {origin} has 1 to {most_tokens} tokens"
        help_text = "raise runtime.max_sequence_length, or give other prompts"
        raise DiagnosticError([error("SPC494", message, help=help_text)])
    return [Request(number, f"{origin}/{number}", tuple(one)) for number, one in enumerate(fitting)], origin


def _of_folder(tokenizer: Tokenizer, folder: Path) -> tuple[list[Sequence[int]], str]:
    """Token ids of all training prompts of a folder."""
    if (folder / INDEX).is_file():
        return [ids[:count].tolist() for ids, count in read_store(folder) if count], folder.name
    places = [place for place in (folder, *sorted(folder.glob("*/"))) if place.is_dir()]
    found = next((place / name for place in places for name in TRAIN_FILES if (place / name).is_file()), None)
    if found is None:
        message = f"{folder} is no store of training text and holds no {' or '.join(TRAIN_FILES)}"
        help_text = "give a store, a folder with GSM8K's train.jsonl.gz, or --prompts FILE"
        raise DiagnosticError([error("SPC494", message, help=help_text)])
    try:
        with _opened(found) as file:
            questions = [json.loads(line)["question"] for line in file if line.strip()]
    except (OSError, ValueError, KeyError, TypeError) as reason:
        message = f"{found} is not a file of questions: {type(reason).__name__}"
        raise DiagnosticError([error("SPC494", message, help="one JSON object with `question` per line")]) from None
    return [one_prompt(text).first_ids(tokenizer) for text in questions], f"{found.parent.name}/{found.name}"
