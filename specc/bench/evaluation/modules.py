"""Compiled modules for cells: sources kept by content, and the session that was opened last.

A cell names its module by the spec's text and overrides (one changed line each), the target and the device. Compiling
takes seconds; the source is kept under `cache`, so that other workers and later runs take it from there.
"""

from __future__ import annotations

import hashlib
import linecache
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specc.bench.evaluation.cells import code_fingerprint, fingerprint_of, key_of
from specc.driver import compile_spec
from specc.output import make_folder, write_text
from specc.runtime.session import Session, open_session
from specc.spec import LoadedSpec, loads, to_mapping

Inputs = Mapping[str, Any]
Places = Mapping[str, str]
_open: dict[str, Session] = {}
ABOUT = re.compile(r"^FINGERPRINT\b.*?$|^SPEC\b[^=]*= \{.*?^\}", re.DOTALL | re.MULTILINE)
"""What of a module's text only says what it was made of."""


def module_inputs(spec: Path, overrides: list[str], *, model: Path, draft_model: Path | None, device: str,
                  ignore_eos: bool = False) -> dict[str, Any]:  # fmt: skip
    """The part of a cell's inputs that names its module and weights, fingerprints included.

    `device` is what the cell is measured on: `cuda` cells are done with the triton target, others with the reference.
    """
    return {
        "spec_text": spec.read_text(encoding="utf-8"),
        "spec_file": spec.name,
        "overrides": list(overrides),
        "target": "triton" if device.startswith("cuda") else "reference",
        "device": device,
        "ignore_eos": ignore_eos,
        "model": fingerprint_of(model),
        "draft_model": None if draft_model is None else fingerprint_of(draft_model),
        "code": code_fingerprint(),
    }


def module_places(spec: Path, *, model: Path, draft_model: Path | None, cache: Path) -> dict[str, str]:
    """Where a cell's module finds its folders."""
    found = {"model": str(model), "cache": str(cache), "spec_base": str(spec.resolve().parent)}
    return found if draft_model is None else found | {"draft_model": str(draft_model)}


def loaded_spec(inputs: Inputs, places: Places) -> LoadedSpec:
    """The cell's spec. Raises SpecError."""
    return loads(inputs["spec_text"], inputs["spec_file"], inputs["overrides"], Path(places["spec_base"]))


def kept_source(loaded: LoadedSpec, target: str, cache: Path, verify: bool = False) -> str:
    """The module's source, compiled unless it is kept. `verify`: check the program after every pass."""
    spec = to_mapping(loaded.spec)
    path = cache / "modules" / f"{key_of({'spec': spec, 'target': target, 'code': code_fingerprint()})[:24]}.py"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = compile_spec(loaded, target, verify=verify).source
    make_folder(path.parent)
    write_text(path, source)
    return source


def opened(inputs: Inputs, places: Places) -> Session:
    """The session of a cell. Only the last one stays open. Raises DiagnosticError: what `open_session` raises."""
    names = ("spec_text", "overrides", "target", "device", "ignore_eos", "model", "draft_model", "code")
    key = key_of({name: inputs[name] for name in names})
    if key not in _open:
        close_all()
        cache = Path(places["cache"])
        _open[key] = open_session(
            loaded_spec(inputs, places),
            places["model"],
            places.get("draft_model"),
            target=inputs["target"],
            device=inputs["device"],
            ignore_eos=inputs["ignore_eos"],
            source_of=lambda loaded, target: kept_source(loaded, target, cache),
        )
    return _open[key]


def code_of(session: Session) -> str:
    """Hex sha256 of the module's code: its text without comments, the spec and its fingerprint.

    Two specs with the same code decode in the same way, whatever their times.
    """
    text = "".join(linecache.getlines(str(getattr(session.module, "__file__", ""))))
    bare = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    return hashlib.sha256(ABOUT.sub("", bare).encode()).hexdigest()


def close_all() -> None:
    """Release weights and graphs."""
    for session in _open.values():
        session.decoder.close()
    _open.clear()
