"""What is wrong in the findings of `check` and `sanitize`, and what of it is not ours. Imports nothing of either."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LARGEST16 = 0.1
"""Relative error of logits in bfloat16 that is let pass: small random models had up to 0.055, wrong kernels 0.5 on."""
PADDED = 1e-3
"""The same for what an empty row beside them does to floats of the others."""
STEPS = ("triton32", "triton16")
LIBRARY = re.compile(r"\bat (?:void )?(?:nvjet_|cutlass)")
"""Kernels of cuBLAS, as racecheck names them: their source is not here, nor is their way to wait for copies."""


def faults(found: Mapping[str, Any]) -> list[str]:
    """The checks of a case that found something wrong, or did not come to an end."""
    wrong = [name for name, finding in found.items() if isinstance(finding, Mapping) and "failed" in finding]
    wrong += [f"{name} is missing" for name in found.get("missing", ())] + (["stopped"] if "stopped" in found else [])
    wrong += [name for name in ("graphs", "text") if name in found and found[name] != {"equal": True}]
    wrong += ["steps32"] if found.get("steps32", {}).get("wrong") else []
    wrong += ["syncs"] if found.get("syncs", {}).keys() - {"none", "not tried"} else []
    padding = found.get("padding", {})
    wrong += ["padding"] if "wrong" in padding or not padding.get("largest difference", 0.0) <= PADDED else []
    errors = [value for value in found.get("steps16", {}).values() if isinstance(value, float)]
    wrong += [] if all(value <= LARGEST16 for value in errors) else ["steps16"]
    return sorted(set(wrong))


def sanitized(text: str) -> dict[str, object]:
    """From the output of a pair of tool and case: errors counted by the tool, those of them in a library's kernels, the
    last step, the first lines of a report. Clean: no others, and the last step was reached."""
    counts = [int(found) for found in re.findall(r"(?:ERROR SUMMARY: |RACECHECK SUMMARY: )(\d+)", text)]
    steps = [line for line in text.splitlines() if line == "end" or line.startswith(STEPS)]
    reports = [line for line in text.splitlines() if line.startswith("=========")]
    errors = counts[-1] if counts else None
    foreign = sum("Race reported" in line and LIBRARY.search(line) is not None for line in reports)
    return {
        "clean": errors == foreign and steps[-1:] == ["end"],
        "errors": errors,
        **({"of a library": foreign} if foreign else {}),
        "finished": steps[-1] if steps else None,
        **({"report": reports[:12]} if errors else {}),
        **({} if errors is not None else {"output": text[-600:]}),
    }
