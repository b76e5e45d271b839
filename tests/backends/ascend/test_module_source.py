"""The Ascend module as a file: deterministic, hashed, clean, free of torch_npu; its text follows the graph."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specc.backends.ascend.backend import DIALECT
from specc.backends.printing.module import generate as printed
from specc.backends.printing.module import verify_text
from specc.diagnostics import DiagnosticError
from specc.driver import generate, lower_spec, module_info
from specc.ir.clone import clone
from specc.program import STEPS
from tests.backends.ascend.modules import NAMES, QUICK, pair, small

ROOT = Path(__file__).parents[3]
MORE = [name for name in NAMES if name not in QUICK]


def source(name: str) -> str:
    return pair(name).compilation.source


@pytest.mark.parametrize("name", QUICK)
def test_imports_torch_and_the_standard_library_only(name: str) -> None:
    roots = set()
    tree = ast.parse(source(name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            roots.add(node.module.split(".")[0])
    assert roots <= {"torch", *sys.stdlib_module_names}
    assert not any(isinstance(node, ast.Name) and node.id == "specc" for node in ast.walk(tree))
    assert verify_text(source(name))
    assert str(ROOT) not in source(name)


def clean(names: tuple[str, ...] | list[str], folder: Path) -> list[str]:
    """The modules as files, which ruff accepts."""
    for number, name in enumerate(names):
        (folder / f"module_{number}.py").write_text(source(name))
    for command in (["check"], ["format", "--check"]):
        whole = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", str(folder)]
        done = subprocess.run(whole, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    return sorted(str(path) for path in folder.glob("module_*.py"))


def test_ruff_finds_nothing(tmp_path: Path) -> None:
    clean(QUICK, tmp_path)


@pytest.mark.slow
def test_ruff_and_mypy_find_nothing_in_any_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=cache", "--config-file=", *clean(NAMES, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", QUICK)
def test_without_torch_npu_only_compiling_fails_and_says_what_to_do(name: str) -> None:
    both = pair(name)
    module, weights = both.ascend.module, both.ascend.weights
    for make in (
        lambda: module.build(weights, 1, "cpu"),
        lambda: module.cache_compile("folder", weights, 1, "cpu"),
        lambda: module.export("folder", weights, 1, "cpu"),
        lambda: module.Decoder(weights, "cpu").generate([[1, 2]], 2),
    ):
        with pytest.raises(RuntimeError, match=r"needs the package torch_npu .*; eager=True runs the same steps"):
            make()
    assert module.build(weights, 1, "cpu", eager=True).run("flush").shape == (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [(QUICK[0], "1"), (QUICK[1], "2")])
def test_same_bytes_in_any_process(name: str, seed: str, tmp_path: Path) -> None:
    """Under another hash seed, in another folder; nothing of torch_npu is imported on the way."""
    lines = f"""
        import sys
        from specc.driver import compile_spec
        from tests.backends.ascend.modules import small
        sys.stdout.write(compile_spec(small({name!r}), "ascend", verify=False).source)
        assert not {{"torch_npu", "torchair"}} & set(sys.modules)
    """
    (tmp_path / "make.py").write_text("\n".join(line.strip() for line in lines.splitlines()))
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "make.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == source(name)


ALL_STEPS = ("prefill", "decode", "draft", "verify", "accept", "commit")


@pytest.mark.parametrize(
    ("name", "steps"),
    [(QUICK[0], ("verify", "commit")), pytest.param(QUICK[1], ALL_STEPS, marks=pytest.mark.slow)],
)
def test_a_changed_node_changes_the_text(name: str, steps: tuple[str, ...]) -> None:
    """Every step's own text: another operator in its graph is another function, and no other one changes."""
    both, aten = pair(name), torch.ops.aten
    program = both.compilation.program
    other = {aten.add.Tensor: aten.sub.Tensor, aten.sub.Tensor: aten.add.Tensor}
    for step in steps:
        changed = clone(program.graphs[step])
        node = next(node for node in changed.graph.nodes if node.target in other)
        node.target = other[node.target]
        info = module_info(both.loaded, "ascend")
        text = printed(DIALECT, program.with_graphs(**{step: changed}), info)
        differing = {one for one in STEPS if function(text, f"run_{one}") != function(source(name), f"run_{one}")}
        assert differing == {step}


def function(text: str, name: str) -> str:
    """The source of a function of a module."""
    found = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name)
    return ast.unparse(found)


def test_no_slot_is_stacked_and_no_cache_is_written_twice() -> None:
    """Layered slots stay one tensor per layer, and every cache has one scatter per step function."""
    for name in QUICK:
        text = source(name)
        for step in ("prefill", "decode", "verify", "commit", "flush"):
            body = function(text, f"run_{step}")
            assert "torch.stack" not in body, (name, step)
            for cache in ("k_cache", "v_cache"):
                assert body.count(f"npu_scatter_update(state.{cache}[") <= 1, (name, step)


def test_a_program_that_was_not_made_legal_is_refused() -> None:
    loaded = small(QUICK[0])
    with pytest.raises(DiagnosticError) as refused:
        generate(loaded, lower_spec(loaded, "ascend"), "ascend")
    assert {item.code for item in refused.value.diagnostics} == {"SPC261"}
