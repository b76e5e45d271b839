"""`specc doctor --ascend`: which rungs of the Ascend backend's ladder can be climbed here, what the others lack.

The optional last rung is run: kernels are compiled by triton-ascend and AscendNPU-IR in an environment of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from specc.backends.ascend.harness.wheel import unzipped_wheel
from specc.backends.ascend.toolchain import rung
from specc.backends.ascend.toolchain.cases import DEVICE
from specc.diagnostics import DiagnosticError
from specc.runtime.device import device_for


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung: what it checks, whether it can be run here, how; or what it lacks, and how to get it."""

    name: str
    ready: bool
    text: str


def _packages(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """("name version" of those installed, names of those that are not)."""
    have, missing = [], []
    for name in names:
        try:
            have.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    return have, missing


def _installed(name: str, packages: Sequence[str], extra: str) -> Rung:
    have, missing = _packages(packages)
    if missing:
        return Rung(name, False, f"{', '.join(missing)} not installed: pip install 'specc[{extra}]'")
    return Rung(name, True, ", ".join(have))


def _ge_graph() -> Rung:
    name = "3 GE graph by torchair"
    have, missing = _packages(("protobuf",))
    if missing:
        return Rung(name, False, "protobuf not installed: pip install 'specc[ascend]'")
    try:
        unzipped_wheel()
    except DiagnosticError as problem:
        found = problem.diagnostics[0]
        return Rung(name, False, f"{found.message}: {found.help}")
    return Rung(name, True, f"torch_npu in the cache, {have[0]}")


def _compiled(outcomes: Sequence[rung.Outcome]) -> list[str]:
    return [f"{'' if one.expected else 'UNEXPECTED: '}{one.case.name}: {one.text()}" for one in outcomes]


def _kernels(python: Path | None) -> tuple[Rung, list[str], bool]:
    """The rung of compiled kernels, a line for each of them, and whether all did what is expected."""
    name = "6 Triton kernels compiled"
    try:
        outcomes = rung.run(rung.python_of(python))
    except rung.RungUnavailable as problem:
        return Rung(name, False, str(problem)), [], True
    ok = all(outcome.expected for outcome in outcomes)
    return Rung(name, True, f"{' and '.join(rung.PINS[:2])}, for an {DEVICE}"), _compiled(outcomes), ok


def _device() -> Rung:
    name = "an NPU"
    try:
        device_for("ascend", "npu")
    except DiagnosticError as problem:
        found = problem.diagnostics[0]
        text = f"{found.message}; where one is, `specc check SPEC --target ascend --device npu` climbs all rungs on it"
        return Rung(name, False, text)
    return Rung(name, True, "specc check SPEC --target ascend --device npu")


def report(python: Path | None, as_json: bool) -> int:
    """Print the ladder. Exit code 1 if a kernel that could be compiled did not do what is expected of it."""
    compiled, lines, ok = _kernels(python)
    rungs = [
        Rung("1 contracts", True, "specc check SPEC --target ascend"),
        Rung("2 npu ops on the CPU", True, "specc check SPEC --target ascend"),
        _ge_graph(),
        _installed("4 ONNX Runtime", ("onnx", "onnxscript", "onnxruntime"), "onnx"),
        _installed("5 IREE", ("torch-mlir", "iree-base-compiler", "iree-base-runtime"), "mlir"),
        compiled,
        _device(),
    ]
    if as_json:
        print(json.dumps({"rungs": [asdict(one) for one in rungs], "kernels": lines, "ok": ok}))
    else:
        for one in rungs:
            print(f"  {one.name:26} {'ready' if one.ready else 'not here'}: {one.text}")
            if one is compiled:
                print("".join(f"      {line}\n" for line in lines), end="")
    return 0 if ok else 1
