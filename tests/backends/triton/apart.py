"""A process in which kernels are compiled, where those of the tests' own are interpreted.

It is started once for a process of tests and answers line by line: PyTorch and Triton take longer to import than most
of its answers do.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import runpy
import subprocess
import sys
import traceback
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from threading import Timer
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 600.0
"""Seconds for one answer."""


@cache
def _process() -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.backends.triton.apart"]
    made = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(made.communicate)
    return made


def printed(module: str, *words: object) -> Any:
    """What the module of this folder prints (JSON) when it is run with the words."""
    process = _process()
    assert process.stdin is not None
    assert process.stdout is not None
    clock = Timer(LIMIT, process.kill)
    clock.start()
    try:
        process.stdin.write(json.dumps([module, *map(str, words)]) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    finally:
        clock.cancel()
    if not answer:
        _process.cache_clear()
    assert answer, f"{module} ended the process"
    found = json.loads(answer)
    assert not found["error"], found["error"]
    return json.loads(found["printed"])


def _answer(module: str, words: list[str]) -> dict[str, str]:
    printed, error = io.StringIO(), ""
    sys.argv = [module, *words]
    try:
        with redirect_stdout(printed):
            runpy.run_module(f"{__spec__.parent}.{module}", run_name="__main__")
    except BaseException:  # whatever it is, the test that asked shows it
        error = traceback.format_exc()
    return {"printed": printed.getvalue(), "error": error}


if __name__ == "__main__":
    # What a compiler prints by itself is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        module, *words = json.loads(line)
        print(json.dumps(_answer(module, words)), file=answers, flush=True)
