"""NaN and infinities in a checkpoint: found when it is opened. Later they would be seen as odd text, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from specc.diagnostics import Diagnostic, DiagnosticError, error

MAX_LISTED = 4
REMEDY = "the file is damaged or its training diverged: copy the checkpoint again, or take an earlier one"


def all_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite.

    A sum is one reading pass (7 GB/s on one core for bfloat16), where a mask of the tensor's size is 18 times slower.
    It is finite only if every value is; it may overflow where they are, so that only then every value is looked at.
    """
    if not tensor.is_floating_point():
        return True
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def finding(file: Path, name: str, tensor: Tensor) -> Diagnostic:
    """SPC419 for a tensor that is not `all_finite`: how many values, and where the first is."""
    wrong = (~tensor.isfinite()).nonzero()
    place = ", ".join(str(index) for index in wrong[0].tolist())
    first = float(tensor[tuple(wrong[0])])
    message = f"tensor `{name}` of {file} has {len(wrong)} values that are no finite numbers; [{place}] is {first}"
    return error("SPC419", message, help=REMEDY)


def check_finite(places: Iterable[tuple[Path, str]]) -> None:
    """Raise DiagnosticError (SPC419) if a tensor, given by its file and stored name, holds NaN or an infinity.

    Every tensor is read once, from memory that is mapped to the file: what is loaded afterwards is in the page cache.
    """
    findings: list[Diagnostic] = []
    with ExitStack() as stack:
        files: dict[Path, Any] = {}
        for file, name in places:
            try:
                if file not in files:
                    files[file] = stack.enter_context(safe_open(file, framework="pt", device="cpu"))
                tensor: Tensor = files[file].get_tensor(name)
            except SafetensorError as problem:
                message = f"the weight file {file} is malformed: {problem}"
                raise DiagnosticError([error("SPC404", message, help="copy the file again")]) from None
            if not all_finite(tensor):
                findings.append(finding(file, name, tensor))
                if len(findings) == MAX_LISTED:
                    break
    if findings:
        raise DiagnosticError(findings)
