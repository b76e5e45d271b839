"""torchair imported from the unzipped wheel, visible only inside `with torchair_loaded()`.

Importing torchair changes the process: it puts modules called torchair and torch_npu into `sys.modules`, installs
signal handlers, registers an exit hook and defines operators. Here the modules stay in `sys.modules` only while a
graph is lowered or run (so `import torch_npu` elsewhere fails as it did before), handlers and exit hook are taken
back at once, and only the operator schemas `npu::*` and `air::*`, with their meta functions, stay: torch has no way
to forget them that its caches would survive. Plain `import torch` and the CPU kernels of `cpu.register` are unaffected.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from specc.backends.ascend import cpu, schemas
from specc.backends.ascend.harness.extension import extension_module, torch_npu_modules
from specc.backends.ascend.harness.wheel import importable_wheel

OWN_PREFIXES = ("torchair", "torch_npu", "npu_extension_for_inductor")
META_FILES = ("_meta_registrations.py", "_fake_registrations.py")
TENSOR_LENGTH_ATTENTION = "torchair.ops._npu_fused_infer_attention_score"
"""Declares `torch.ops.air.npu_fused_infer_attention_score`; torchair imports it only on first use."""
MAKER = "_specc_fx_node"
MAKER_PLACE = "_specc_fx_place"
FRAME = re.compile(r'\s*File "(.+)", line (\d+)')
HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class _State:
    """Modules to put back on entry, and how many `with` blocks are open."""

    modules: dict[str, ModuleType]
    depth: int = 0


@cache
def _state() -> _State:
    return _State({})


@contextmanager
def torchair_loaded() -> Iterator[ModuleType]:
    """The torchair package, importable inside the block. Raises DiagnosticError (SPC205, SPC426)."""
    state = _state()
    hidden = {} if state.depth else _take_own_modules()
    if not state.depth:
        sys.modules.update(state.modules)
    state.depth += 1
    try:
        if "torchair" not in sys.modules:
            _import(importable_wheel())
        yield sys.modules["torchair"]
    finally:
        state.depth -= 1
        if not state.depth:
            state.modules = _take_own_modules()
            sys.modules.update(hidden)


def _take_own_modules() -> dict[str, ModuleType]:
    """Remove from `sys.modules`, and return, what belongs to torchair and torch_npu."""
    names = [name for name in sys.modules if name.split(".", 1)[0] in OWN_PREFIXES]
    return {name: sys.modules.pop(name) for name in names}


def _import(wheel: Path) -> None:
    """Define the operators, load the wheel's meta functions, import torchair; keep nothing else of the change."""
    cpu.make_room_for_torchair()
    schemas.define(schemas.npu_schemas())
    sys.modules.update(torch_npu_modules())
    folder = str(wheel / "torch_npu" / "dynamo")
    handlers = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
    sys.path.insert(0, folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in META_FILES:
                _execute(wheel / "torch_npu" / "op_plugin" / "meta" / name)
            sys.modules["torchair.core._torchair"] = extension_module()
            importlib.import_module("torchair")
            importlib.import_module(TENSOR_LENGTH_ATTENTION)
    finally:
        sys.path.remove(folder)
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
    backend = sys.modules["torchair.core._backend"]
    atexit.unregister(backend.finalize_graph_engine)
    backend._cached_device_id = 0  # type: ignore[attr-defined]
    if not hasattr(torch.Tensor, "is_npu"):
        torch.Tensor.is_npu = property(lambda tensor: False)  # type: ignore[attr-defined]
    _name_the_makers()
    cpu.refresh()


def _name_the_makers() -> None:
    """Let every GE op carry the FX node that it was made for, so that counts can say where a Cast comes from."""
    converter = importlib.import_module("torchair._ge_concrete_graph.fx2ge_converter")
    concrete = converter.GeConcreteGraph
    original = concrete.parse_node

    def parse_node(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = len(self.graph.op)
        result = original(self, *args, **kwargs)
        node = getattr(self._converter_ctx, "node", None)
        if node is not None:
            for op in list(self.graph.op)[before:]:
                op.attr[MAKER].s = f"{node.name}: {node.target}".encode()
                op.attr[MAKER_PLACE].s = _place(node).encode()
        return result

    concrete.parse_node = parse_node


def _place(node: Any) -> str:
    """`file:line: code` of the source that made an FX node, "" if it is not known."""
    lines = (node.stack_trace or "").splitlines()
    found = [place for place, line in enumerate(lines) if FRAME.match(line)]
    if not found:
        return ""
    file, number = FRAME.match(lines[found[-1]]).groups()  # type: ignore[union-attr]
    code = lines[found[-1] + 1].strip() if found[-1] + 1 < len(lines) else ""
    return f"{Path(file).name}:{number}: {code}"


def _execute(path: Path) -> None:
    """Run one registration file of the wheel under a private name."""
    name = f"torch_npu_wheel{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} can't be loaded")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _REGISTRATIONS.append(module)


_REGISTRATIONS: list[ModuleType] = []  # the torch.library handles in them must live as long as the process
