"""Compile the cases in triton-ascend's environment and say how far each came.

The last stage, hivmc, is closed and not in the packages: "external hivmc run fails" means that everything before it
went through, and counts as the end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.backends.ascend.toolchain.cases import CASES, DEVICE, Case

PINS = tuple(Path(__file__).with_name("pins.txt").read_text("utf-8").split())
FOLDER = ".venv-ascend"
SCRIPT = Path(__file__).with_name("lower_kernel.py")
TIMEOUT = 300.0

_CLOSED = "External hivmc run fails"
_RETRIED = "Ub overflow detected"
_NEEDS = re.compile(r"ub overflow, requires (\d+) bits while (\d+) bits available")


class RungUnavailable(Exception):
    """The rung can't be run; the text says what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far one case came. `reached`: the last stage; `overflow`: bits required and available where known."""

    case: Case
    reached: str
    overflowed: bool
    overflow: tuple[int, int] | None
    mix_mode: str
    log: str

    @property
    def end(self) -> bool:
        """Whether only the closed stage is left."""
        return self.reached == "end"

    @property
    def expected(self) -> bool:
        """Whether the case came to the end, and overflowed on the way exactly where that is due."""
        return self.end and self.overflowed is not self.case.fits

    def text(self) -> str:
        """One line for a person."""
        if self.overflow is not None:
            needed, there = (bits // 8 // 1024 for bits in self.overflow)
            return f"unified buffer overflow: {needed} KiB required, {there} KiB available"
        if not self.end:
            return f"stopped in the stage `{self.reached}`"
        buffer = "unified buffer overflows with double buffering, fits without" if self.overflowed else "fits"
        return f"{self.mix_mode}: linalg, HFusion and HIVM passed; {buffer}; only the closed hivmc is left"


def judged(case: Case, result: Mapping[str, Any]) -> Outcome:
    """What a result of `lower_kernel` says."""
    log, stage = str(result["log"]), str(result["stage"])
    found = _NEEDS.search(log)
    overflow = (int(found[1]), int(found[2])) if found else None
    done = stage == "hivm" and (result.get("returncode") == 0 or _CLOSED in log)
    reached = "end" if done and overflow is None else stage
    overflowed = overflow is not None or _RETRIED in log
    return Outcome(case, reached, overflowed, overflow, str(result.get("mix_mode", "")), log)


def python_of(given: Path | None = None) -> Path:
    """The Python of triton-ascend's environment: the given one, or the one that `make ascend-kernels` makes."""
    python = given or Path(FOLDER) / "bin" / "python"
    if not python.is_file():
        raise RungUnavailable(
            f"there is no {python}; `make ascend-kernels` makes it, or do it yourself, outside of specc's environment: "
            f"python3.11 -m venv {FOLDER} && {FOLDER}/bin/pip install {' '.join(PINS)}"
        )
    return python


def run(python: Path, cases: Sequence[Case] = CASES, device: str = DEVICE) -> list[Outcome]:
    """All cases. Raises RungUnavailable where the environment lacks something."""
    request = json.dumps({"device": device, "cases": [case.request() for case in cases]})
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRITON"))}
    try:
        done = subprocess.run(
            [str(python), "-I", str(SCRIPT)],
            input=request,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            env=kept,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise RungUnavailable(f"{python} could not be run: {problem}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        remedy = f"{python} -m pip install {' '.join(PINS)}"
        raise RungUnavailable(f"{python} could not compile anything: {last}; if a package is missing: {remedy}")
    results = json.loads(done.stdout.splitlines()[-1])
    return [judged(case, result) for case, result in zip(cases, results, strict=True)]
