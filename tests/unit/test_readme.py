"""What README.md shows is what there is: its spec, its commands, its paths, and the code of its modules."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from specc.cli import COMMANDS
from specc.cli.bench import BENCHMARKS
from specc.driver import compile_spec
from specc.spec import load, loads

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
SPEC = next(block for kind, block in FENCED if kind == "yaml")
PYTHON = [block for kind, block in FENCED if kind == "python"]


def squeezed(code: str) -> str:
    """Code without blanks, and without the comma that a broken line ends with."""
    return re.sub(r"\s", "", re.sub(r"  #.*", "", code)).replace(",)", ")")


def commands() -> list[list[str]]:
    """The words behind `specc` of all command lines, continued ones joined."""
    lines = [line for kind, block in FENCED if not kind for line in block.replace("\\\n", " ").split("\n")]
    lines += re.findall(r"`(specc [^`]*)`", TEXT)
    found = [re.split(r"\s{2,}|\s\|\s", line.strip())[0] for line in lines if "specc " in line]
    split = [shlex.split(line, posix=False) for line in found]
    return [words[words.index("specc") + 1 :] for words in split if "specc" in words]


def test_its_spec_is_one() -> None:
    assert loads(SPEC).spec.name == "smollm2-dynamic-tree"


def test_its_commands_exist() -> None:
    wanted = {words[0] for words in commands() if words and words[0].isalpha() and words[0].islower()}
    assert len(wanted) > 10
    assert wanted - set(COMMANDS) == set()


def test_its_benchmarks_exist() -> None:
    wanted = {words[1] for words in commands() if words[:1] == ["bench"] and words[1][0].islower()}
    assert len(wanted) > 8
    assert wanted - set(BENCHMARKS) == set()


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)", TEXT))))
def test_its_links_lead_somewhere(link: str) -> None:
    assert link.startswith("https://") or (ROOT / link).exists()


def test_the_links_of_what_was_measured_lead_somewhere() -> None:
    folder = ROOT / "specc/bench"
    links = set(re.findall(r"\]\(([^)#]+)", (folder / "MEASURED.md").read_text(encoding="utf-8")))
    assert len(links) > 5
    assert [link for link in links if not (folder / link).exists()] == []


def test_its_paths_exist() -> None:
    named = set(re.findall(r"\b((?:specs|weights|specc|tests|backends)/[\w./-]*\w)", TEXT))
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_its_reference_module_is_what_the_spec_compiles_to() -> None:
    module = squeezed(compile_spec(loads(SPEC)).source)
    excerpt = next(block for block in PYTHON if "def run_verify" in block)
    parts = [part for part in re.split(r"^ *\.\.\.$", excerpt, flags=re.MULTILINE) if part.strip()]
    lines = [line for part in parts for line in part.split("\n") if line.strip()]
    assert [line for line in lines if squeezed(line) not in module] == []


def test_its_functions_of_a_triton_module_are_there() -> None:
    pytest.importorskip("triton")
    module = compile_spec(load(ROOT / "specs/gdn-15m-tree.yaml"), "triton").source
    step = module[module.index("\ndef run_step(") : module.index("\ndef run_plain_step(")]
    excerpt = next(block for block in PYTHON if "conv_commit_layers_(" in block)
    called = re.findall(r"(\w+?)(?:_\d+)?\(", excerpt)
    assert len(called) >= 3
    assert [name for name in called if not re.search(rf"\b{name}(_\d+)?\(", step)] == []
