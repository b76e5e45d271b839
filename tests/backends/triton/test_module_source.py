"""The Triton module as a file: deterministic, hashed, clean, self-contained; text of a spec stays text."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specc.backends.base import ModuleInfo
from specc.backends.printing.module import verify_text
from specc.driver import backend_of
from specc.runtime.module import import_source
from tests.backends.triton.modules import Cell, clean, modules

ROOT = Path(__file__).parents[3]
CELLS = (Cell("llama", "lookup tree", "path, deferred"), Cell("delta", "lookup tree", "windowed"))


def source(cell: Cell) -> str:
    return modules(cell).compilation.source


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_imports_torch_triton_and_the_standard_library_only(cell: Cell) -> None:
    roots = set()
    for node in ast.walk(ast.parse(source(cell))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            roots.add(node.module.split(".")[0])
    assert roots <= {"torch", "triton", *sys.stdlib_module_names}
    assert not any(isinstance(node, ast.Name) and node.id == "specc" for node in ast.walk(ast.parse(source(cell))))
    assert verify_text(source(cell))


def test_ruff_finds_nothing(tmp_path: Path) -> None:
    """In these two; the modules that are run step by step are looked at where they are made (`test_module_steps`)."""
    clean([source(cell) for cell in CELLS], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "seed", "interpreted"), [(CELLS[0], "1", "1"), (CELLS[1], "2", "0")], ids=str)
def test_same_bytes_in_any_process(cell: Cell, seed: str, interpreted: str, tmp_path: Path) -> None:
    """Under another hash seed, in another folder, compiled kernels or interpreted ones."""
    lines = f"""
        import sys
        from specc.driver import compile_spec
        from tests.backends.triton.modules import Cell
        sys.stdout.write(compile_spec({cell!r}.loaded(), "triton", verify=False).source)
    """
    (tmp_path / "make.py").write_text("\n".join(line.strip() for line in lines.splitlines()))
    changes = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": interpreted}
    command, environment = [sys.executable, "make.py"], {**os.environ, **changes}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == source(cell)


HOSTILE = ("'\n import os", "a\r\nprint(1)", "\x0c\x00", "{x}", "__import__('os')")


@pytest.mark.parametrize("value", ['"""', *(pytest.param(value, marks=pytest.mark.slow) for value in HOSTILE)])
def test_hostile_names_change_no_code(value: str) -> None:
    """A spec's and a weight's names, a slot's description, keys and fingerprints are text in the module."""
    program = modules(Cell("llama", "plain", "length")).compilation.program

    def made(text: str) -> str:
        changed = replace(
            program,
            name=text,
            slots={name: replace(slot, doc=text) for name, slot in program.slots.items()},
            weights={name: replace(weight, sources=(text,)) for name, weight in program.weights.items()},
        )
        return backend_of("triton").generate(changed, ModuleInfo({"name": text, text: text}, text, text, {}))

    hostile, plain = made(value), made("x")
    module = import_source(hostile, "specc_hostile")
    assert {"name": value, value: value} == module.SPEC
    assert value == module.FINGERPRINT
    assert module.WEIGHTS[0].sources == (value,)
    shapes = [
        [type(node).__name__ for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
        for text in (hostile, plain)
    ]
    assert shapes[0] == shapes[1]
