"""The code registry: every code is explained, is used, and its minimal example raises exactly it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specc.codes import CODES
from specc.diagnostics import SpecError
from specc.spec import load, loads
from specc.spec.text import MAX_BYTES

ROOT = Path(__file__).resolve().parents[2]
FILE_CODES = ("SPC002", "SPC003", "SPC004")
LANGUAGE_CODES = [code for code in CODES if code[3] in "01" and code not in FILE_CODES]


def sources(*folders: str) -> dict[Path, str]:
    """The source texts below these folders, without the registry itself."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {path: path.read_text(encoding="utf-8") for path in paths if "codes" not in path.parts}


@pytest.mark.parametrize("code", LANGUAGE_CODES)
def test_example_raises_exactly_its_code(code: str) -> None:
    entry = CODES[code]
    try:
        found = loads(entry.example, "example.yaml", entry.overrides).warnings
    except SpecError as problem:
        found = problem.diagnostics
    assert [item.code for item in found] == [code]


@pytest.mark.parametrize("code", LANGUAGE_CODES)
def test_example_points_at_its_own_text(code: str) -> None:
    entry = CODES[code]
    try:
        found = loads(entry.example, "example.yaml", entry.overrides).warnings
    except SpecError as problem:
        found = problem.diagnostics
    for item in found:
        assert item.span is not None
        lines = list(entry.overrides) if item.span.file == "--set" else entry.example.split("\n")
        assert item.span.source_line == lines[item.span.line - 1]
        assert 1 <= item.span.column <= len(lines[item.span.line - 1]) + 1
        assert item.span.column < item.span.end_column


def test_missing_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(SpecError) as caught:
            load(path)
        assert [item.code for item in caught.value.diagnostics] == ["SPC002"]


def test_text_in_latin_1_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"specc: 1\nname: demo\ndescription: caf\xe9\n")
    with pytest.raises(SpecError) as caught:
        load(path)
    assert [item.code for item in caught.value.diagnostics] == ["SPC003"]
    assert "0xe9 on line 3" in str(caught.value)


@pytest.mark.parametrize("extra", [0, 1])
def test_size_limit_is_sharp(extra: int, tmp_path: Path) -> None:
    text = CODES["SPC100"].example
    text += "#" * (MAX_BYTES + extra - len(text))
    path = tmp_path / "large.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load(path)
    assert [item.code for item in caught.value.diagnostics] == ["SPC004" if extra else "SPC100"]


def test_every_code_in_the_sources_is_registered() -> None:
    used = {
        code for text in sources("specc", "passes", "backends").values() for code in re.findall(r"\bSPC\d{3}\b", text)
    }
    # Examples in help texts may name a code that does not exist.
    assert used - set(CODES) - {"SPC999"} == set()


def test_every_finding_of_a_user_says_what_to_do() -> None:
    """Calls of `error` with a code of the user's input (not of IR text, and not internal) give a remedy."""
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, text in sources("specc", "passes", "backends").items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and _blames_input(node) and not _remedy(node)
    ]
    assert silent == []


def _blames_input(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    first = node.args[0] if node.args else None
    coded = isinstance(first, ast.Constant) and re.fullmatch(r"SPC[01245]\d\d", str(first.value))
    return name in ("error", "warning") and bool(coded)


def _remedy(node: ast.Call) -> bool:
    given = [keyword.value for keyword in node.keywords if keyword.arg == "help"]
    return bool(given) and not (isinstance(given[0], ast.Constant) and not given[0].value)


def test_every_language_code_is_raised_somewhere() -> None:
    text = "\n".join(sources("specc/spec").values())
    unused = [code for code in CODES if code[3] in "01" and f'"{code}"' not in text]
    assert unused == []


@pytest.mark.parametrize("entry", CODES.values(), ids=list(CODES))
def test_every_code_is_explained(entry: object) -> None:
    code = CODES[entry.code]
    assert re.fullmatch(r"SPC[0-59]\d\d", code.code)
    assert code.title
    assert "\n" not in code.title
    assert len(code.explanation) >= 20
    assert code.example or code.code[3] not in "012"


def test_a_config_that_is_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """In a process of its own: reading a pipe that nobody writes to would never end."""
    os.mkfifo(tmp_path / "config.json")
    text = f"specc: 1\nname: demo\ntarget: {{family: llama, checkpoint: {tmp_path}}}\ndraft: {{method: none}}\n"
    spec = tmp_path / "demo.yaml"
    spec.write_text(text)
    words = [sys.executable, "-m", "specc", "compile", str(spec)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)
    assert done.returncode == 2
    assert "error[SPC102]" in done.stderr
    assert "config.json is not a regular file" in done.stderr
