"""Programs of the shipped specs as an NPU gets them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from specc.driver import lower_spec, run_passes
from specc.program import DecodeProgram
from specc.spec import LoadedSpec, load

SPECS = sorted((Path(__file__).resolve().parents[3] / "specs").glob("*.yaml"))
HALF = "runtime.dtype=bfloat16"


@cache
def compiled(name: str, *overrides: str) -> tuple[LoadedSpec, DecodeProgram]:
    """A shipped spec and its program as an NPU gets it; nobody changes either."""
    loaded = load(next(path for path in SPECS if path.stem == name), list(overrides))
    return loaded, run_passes(loaded, lower_spec(loaded, "ascend"), target="ascend", verify=False).program
