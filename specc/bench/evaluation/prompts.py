"""Prompt sets of the evaluations, made into token ids once: kept by content and shared by all workers.

Sets: `mt-bench` (80 conversations of two turns), `humaneval` (164 functions to go on with, without a chat template),
`humaneval-80` and `humaneval-rest` (its first 80 and the others), `eagle-pangu` (mt-bench and humaneval-80: 240 turns),
`gsm8k` (1319 questions of the test part), `mixed` (80 of each, MT-Bench by its first turns). All are test prompts: no
drafter may be trained and no tree tuned on them.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specc.bench.evaluation.cells import key_of
from specc.diagnostics import DiagnosticError, error
from specc.output import make_folder, write_text
from specc.runtime.model_folder import find_model
from specc.runtime.prompts import Prompt, load_prompts
from specc.runtime.tokenizer import Tokenizer

FILES = {
    "mt-bench": "mt_bench/question.jsonl",
    "humaneval": "humaneval/HumanEval.jsonl.gz",
    "gsm8k": "gsm8k/test.jsonl",
}
OF_EACH = 80
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def _file_set(name: str, data: Path) -> list[Prompt]:
    """The prompts of one published file, their names starting with the set's."""
    path = data / FILES[name]
    if not path.is_file():
        help_text = f"give the folder that holds {', '.join(FILES.values())}: --data DIR"
        raise DiagnosticError([error("SPC295", f"{path} does not exist", help=help_text)])
    if path.suffix != ".gz":
        prompts = load_prompts(path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / path.stem
            try:
                plain.write_bytes(gzip.decompress(path.read_bytes()))
            except (OSError, EOFError) as problem:
                message = f"{path} can't be unpacked: {problem}"
                raise DiagnosticError([error("SPC295", message, help="fetch the file again")]) from None
            prompts = load_prompts(plain)
    # GSM8K's questions have no names: their place in the file is one.
    plain_names = [prompt.name.removeprefix("HumanEval/").removeprefix(f"{path.stem}-") for prompt in prompts]
    return [replace(prompt, name=f"{name}/{short}") for prompt, short in zip(prompts, plain_names, strict=True)]


def _mixed(data: Path) -> list[Prompt]:
    """80 of each set in turns."""
    chats = [replace(prompt, turns=prompt.turns[:1]) for prompt in _file_set("mt-bench", data)]
    parts = [spread(part, OF_EACH) for part in (_file_set("gsm8k", data), _file_set("humaneval", data), chats)]
    return [prompt for three in zip(*parts, strict=True) for prompt in three]


SETS: Mapping[str, Callable[[Path], list[Prompt]]] = {
    "mt-bench": lambda data: _file_set("mt-bench", data),
    "humaneval": lambda data: _file_set("humaneval", data),
    "humaneval-80": lambda data: _file_set("humaneval", data)[:OF_EACH],
    "humaneval-rest": lambda data: _file_set("humaneval", data)[OF_EACH:],
    "eagle-pangu": lambda data: [*_file_set("mt-bench", data), *_file_set("humaneval", data)[:OF_EACH]],
    "gsm8k": lambda data: _file_set("gsm8k", data),
    "mixed": _mixed,
}


def prompt_set(name: str, data: Path, limit: int | None = None) -> list[Prompt]:
    """A set, or `limit` of its prompts spread over it. Raises DiagnosticError: SPC295, what load_prompts raises."""
    if name not in SETS:
        raise DiagnosticError(
            [error("SPC295", f"there is no prompt set `{name}`", help=f"there are {', '.join(SETS)}")]
        )
    prompts = SETS[name](data)
    return prompts if limit is None else spread(prompts, limit)


def spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` of them at even distances, from the first on."""
    count = min(count, len(prompts))
    return [prompts[number * len(prompts) // count] for number in range(count)]


def prepared(prompts: Sequence[Prompt], folder: Path, cache: Path) -> list[dict[str, Any]]:
    """Conversations as cells take them: the prompt, and the token ids of its first turn by the folder's tokenizer.

    Kept under `cache` by the content of the prompts and of the tokenizer's files.
    """
    told = [as_json(prompt) for prompt in prompts]
    files = {name: (folder / name).read_text(encoding="utf-8") for name in TOKENIZER_FILES if (folder / name).is_file()}
    path = cache / "prompts" / f"{key_of({'prompts': told, 'files': files})[:24]}.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(kept, list) and len(kept) == len(told):
            return kept
    except (OSError, ValueError):
        pass
    tokenizer = Tokenizer.from_folder(find_model(str(folder)))
    made = [item | {"ids": prompt.first_ids(tokenizer)} for item, prompt in zip(told, prompts, strict=True)]
    make_folder(path.parent)
    write_text(path, json.dumps(made) + "\n")
    return made


def as_json(prompt: Prompt) -> dict[str, Any]:
    """JSON-ready, everything that decides its tokens."""
    return {
        "name": prompt.name,
        "turns": list(prompt.turns),
        "messages": [dict(message) for message in prompt.messages],
        "category": prompt.category,
        "raw": prompt.raw,
    }


def from_json(value: Mapping[str, Any]) -> Prompt:
    """The prompt of `as_json`."""
    return Prompt(
        name=value["name"],
        turns=tuple(value["turns"]),
        messages=tuple(value["messages"]),
        category=value["category"],
        raw=value["raw"],
    )
