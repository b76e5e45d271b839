"""Malformed and hostile specs: `cases/NAME.yaml` is refused with exactly the text in `cases/NAME.txt`.

Lines `# set: key=value` at the head of a case are overrides. After a wanted change of a message, run
`python tests/errors/test_error_cases.py` and read the difference before committing it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from specc.diagnostics import SpecError
from specc.spec import load

CASES = Path(__file__).parent / "cases"
NAMES = sorted(path.stem for path in CASES.glob("*.yaml"))


def overrides_of(path: Path) -> list[str]:
    """The overrides at the head of a case."""
    found = []
    for line in path.read_bytes().split(b"\n"):
        if not line.startswith(b"# set: "):
            break
        found.append(line.removeprefix(b"# set: ").decode())
    return found


def rendering(name: str) -> str:
    """What loading the case prints. Must run in the folder of the cases, so that paths are relative."""
    path = Path(f"{name}.yaml")
    with pytest.raises(SpecError) as caught:
        pytest.fail(f"{name} loads: {load(path, overrides_of(path))}")
    return str(caught.value) + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_case_is_refused_with_its_diagnostics(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES)
    assert rendering(name) == Path(f"{name}.txt").read_text(encoding="utf-8")


def test_there_are_enough_cases_and_no_leftovers() -> None:
    assert len(NAMES) >= 60
    assert sorted(path.stem for path in CASES.glob("*.txt")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_finding_says_what_to_do(name: str) -> None:
    text = (CASES / f"{name}.txt").read_text(encoding="utf-8")
    findings = re.split(r"^(?=error|warning)", text, flags=re.MULTILINE)[1:]
    assert findings
    assert [finding for finding in findings if " = help: " not in finding] == []


@pytest.mark.parametrize("name", NAMES)
def test_expected_text_is_safe_to_print(name: str) -> None:
    text = (CASES / f"{name}.txt").read_text(encoding="utf-8")
    assert all(char == "\n" or char.isprintable() for char in text)
    assert "SECRET" not in text, "the content of a file that is no config.json must not be shown"


def regenerate() -> None:
    """Rewrite every expected text from what is printed now."""
    os.chdir(CASES)
    for name in NAMES:
        Path(f"{name}.txt").write_text(rendering(name), encoding="utf-8")
    sys.stdout.write(f"{len(NAMES)} cases rewritten\n")


if __name__ == "__main__":
    regenerate()
