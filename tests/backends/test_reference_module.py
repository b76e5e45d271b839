"""The generated module as a file: deterministic, hashed, clean, self-contained; text of a spec stays text."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.backends.base import BACKENDS, Capabilities, ModuleInfo, refusals
from specc.backends.printing.literals import comment_text, literal
from specc.backends.printing.module import verify_module, verify_text
from specc.backends.printing.names import Names
from specc.backends.reference.backend import REFERENCE, ReferenceBackend
from specc.driver import compile_spec
from specc.spec import load
from tests.backends.reference_support import generate, load_text, planned, program_of, spec_text

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def text() -> str:
    return generate(planned(program_of("tree", update="deferred"), deferred=True))


def test_module_states_its_own_hash(text: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert verify_module(path)
    path.write_text(text.replace("ABI: int = 1", "ABI: int = 2"))
    assert not verify_module(path)
    assert not verify_text("x = 1\n")


def test_module_imports_torch_and_the_standard_library_only(text: str) -> None:
    roots = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            roots.add(node.module.split(".")[0])
    assert roots <= {"torch", *sys.stdlib_module_names}
    assert "specc." not in text


def test_ruff_finds_nothing_in_the_module(text: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    for command in (["check"], ["format", "--check"]):
        whole = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", str(path)]
        done = subprocess.run(whole, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_mypy_strict_accepts_the_modules(tmp_path: Path) -> None:
    paths = []
    for draft in ("plain", "chain", "tree"):
        for stage, program in (("naive", program_of(draft)), ("planned", planned(program_of(draft)))):
            paths.append(tmp_path / f"{draft}_{stage}.py")
            paths[-1].write_text(generate(program))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=cache", "--config-file=", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_comment_names_no_line_of_an_override() -> None:
    """A line of `--set` is no line of the file, and would differ with the order of overrides."""
    path, changes = ROOT / "specs/smollm2-dynamic-tree.yaml", ["runtime.kv_layout=paged", "runtime.kv_block_size=64"]
    text = compile_spec(load(path, changes)).source
    assert text == compile_spec(load(path, changes[::-1])).source
    assert "runtime.kv_layout," in text
    assert "runtime (line 32)" in text
    assert "runtime.kv_layout (line" not in text


def test_same_bytes_under_any_hash_seed_and_folder(tmp_path: Path) -> None:
    script = tmp_path / "make.py"
    script.write_text(
        "import sys\nfrom specc.backends.base import ModuleInfo\n"
        "from specc.backends.reference.backend import REFERENCE\n"
        "from specc.lower.assemble import lower\nfrom specc.spec.load import loads\n"
        f"sys.stdout.write(REFERENCE.generate(lower(loads({spec_text('tree')!r}).spec), ModuleInfo()))\n"
    )
    made = []
    for seed, folder in (("1", tmp_path), ("2", ROOT)):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, cwd=folder, capture_output=True, text=True, check=True
        )
        made.append(done.stdout)
    assert made[0] == made[1]
    assert verify_text(made[0])


@given(st.text())
def test_text_of_a_spec_can_not_leave_a_literal_or_a_comment(value: str) -> None:
    assert ast.literal_eval(literal(value)) == value
    assert ast.literal_eval(literal({value: [value, (value,)]})) == {value: [value, (value,)]}
    source = f"x = 1  # key: {comment_text(value)}\n"
    assert len(ast.parse(source).body) == 1
    assert source.count("\n") == 1
    assert source.isascii()


HOSTILE = ['"""', "'\n import os", "\\", "a\r\nprint(1)", "\x0c\x00", "# type: ignore", "{x}", "\u2028", "__import__"]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_names_change_no_code(value: str) -> None:
    program = program_of("plain")
    hostile = replace(
        program,
        name=value,
        slots={name: replace(slot, doc=value) for name, slot in program.slots.items()},
        weights={name: replace(weight, sources=(value,)) for name, weight in program.weights.items()},
    )
    source = REFERENCE.generate(hostile, ModuleInfo({"name": value, value: value}, value, value, {}))
    module = load_text(source)
    assert {"name": value, value: value} == module.SPEC
    assert value == module.FINGERPRINT
    assert module.WEIGHTS[0].sources == (value,)

    def shape(code: str) -> list[str]:
        return [type(node).__name__ for node in ast.parse(code).body]

    plain = REFERENCE.generate(program, ModuleInfo({"name": "x", "y": "x"}, "x", "x", {}))
    assert shape(source) == shape(plain)


@given(st.lists(st.text(max_size=8), max_size=20))
def test_names_are_fresh_identifiers(wanted: list[str]) -> None:
    names = Names({"state"})
    made = [names.fresh(item) for item in [*wanted, "print", "class", "l", "state", "match"]]
    assert len(set(made)) == len(made)
    assert all(name.isidentifier() and name not in ("print", "class", "l", "state", "match") for name in made)


def test_capability_table_refuses_with_codes() -> None:
    program = program_of("plain")
    assert refusals(REFERENCE, program, {"draft": {"method": "none"}}) == []
    table = Capabilities(frozenset({"rope"}), frozenset({"LAYER_MAJOR"}), {"draft.method": frozenset({"eagle3"})})
    limited = ReferenceBackend(capabilities=table)
    codes = {item.code for item in refusals(limited, program, {"draft": {"method": "none"}})}
    assert codes == {"SPC260", "SPC261", "SPC262"}
    assert BACKENDS["reference"] is REFERENCE
