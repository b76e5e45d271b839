"""Exported steps, run: an export's module whose step functions call onnxruntime or IREE instead of PyTorch.

What is left of the module is its host side (checks, flushes, snapshots), which makes it a module like any other: what
checks modules checks exports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specc.backends.export.iree import IreeSteps
from specc.backends.export.loading import module_of
from specc.backends.export.manifest import digest, read_manifest, signature_from
from specc.backends.export.onnxruntime import OrtSteps
from specc.backends.export.signature import StepSignature, flattened, grouped
from specc.backends.export.step_module import RECORDS, SINGLE

Execute = Callable[[str, Sequence[Tensor]], Sequence[Tensor]]
"""Runs the step of a name on its tensors."""
RUNTIMES: Mapping[str, Callable[[Mapping[str, bytes]], OrtSteps | IreeSteps]] = {"onnx": OrtSteps, "mlir": IreeSteps}


def open_export(files: Mapping[str, bytes], manifest: Mapping[str, Any], execute: Execute | None = None) -> Any:
    """The module of an export, its steps run by `execute` (default: the runtime of its target)."""
    source = files[manifest["module"]["file"]].decode()
    module = module_of(source, digest(source.encode()))
    steps = {name: files[entry["file"]] for name, entry in manifest["steps"].items()}
    return with_steps(
        module,
        {name: signature_from(manifest, name) for name in steps},
        execute or RUNTIMES[manifest["target"]](steps),
    )


def open_folder(folder: Path) -> Any:
    """The module of an exported folder. Raises ValueError where the folder is no export or a file was changed."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise ValueError(f"{folder} holds no export")
    files = {}
    for entry in (manifest["module"], *manifest["steps"].values()):
        files[entry["file"]] = (folder / entry["file"]).read_bytes()
        if digest(files[entry["file"]]) != entry["sha256"]:
            raise ValueError(f"{entry['file']} is not what the export wrote")
    return open_export(files, manifest)


def with_steps(module: Any, signatures: Mapping[str, StepSignature], execute: Execute) -> Any:
    """`module` with every `run_<step>` replaced by a call of `execute`. The module given is changed."""
    for step, signature in signatures.items():
        made = Prefill(module, signature, execute) if step == "prefill" else Step(module, signature, execute)
        setattr(module, f"run_{step}", made)
    return module


class Step:
    """A step function of the module, with its signature there and with the exported one behind it."""

    def __init__(self, module: Any, signature: StepSignature, execute: Execute) -> None:
        self.module, self.signature, self.execute = module, signature, execute

    def __call__(self, *arguments: Any) -> Any:
        """As the printed function: `(weights, slots, …)` to slots and results."""
        arguments = (None, *arguments) if self.signature.step in ("accept", "commit", "flush") else arguments
        weights, slots, *rest = arguments
        return self._result(slots, *self._run(weights, slots, self._inputs(rest)))

    def _inputs(self, rest: Sequence[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for value in rest[: len(RECORDS.get(self.signature.step, ()))]:
            # A field that two records share is the earlier one's where both have it: they are equal.
            found = {name: item for name, item in value._asdict().items() if item is not None} | found
        return found | dict(zip(SINGLE.get(self.signature.step, ()), rest, strict=False))

    def _run(self, weights: Any, slots: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(changed slots, results) of one call."""
        signature = self.signature
        held = slots._asdict()
        if signature.draws is not None:
            held["rng"] = signature.draws.make(
                slots.rng, slots.length, inputs.get("lengths", torch.ones_like(slots.length))
            )
        groups = {"weight": {} if weights is None else weights._asdict(), "slot": held, "input": inputs}
        given = flattened(signature.inputs, groups)
        for operand, value in zip(signature.inputs, given, strict=True):
            if tuple(value.shape) != operand.shape or value.dtype != operand.dtype:
                wanted = f"{operand.dtype}{list(operand.shape)}"
                raise ValueError(f"{operand.name}: {value.dtype}{list(value.shape)}, the export has {wanted}")
        made = grouped(signature.outputs, self.execute(signature.step, given))
        return made["slot"], made["result"]

    def _result(self, slots: Any, changed: Mapping[str, Any], results: Mapping[str, Any]) -> Any:
        after = slots._replace(**changed)
        if not results:
            return after
        kinds = {"decode": "Decoded", "draft": "Draft", "verify": "Verified", "accept": "Accepted"}
        return after, getattr(self.module, kinds[self.signature.step])(**results)


class Prefill(Step):
    """A prefill takes prompts of any length: in chunks of the exported one, the last one padded."""

    def __call__(self, weights: Any, slots: Any, input_ids: Tensor, lengths: Tensor) -> Any:
        """Slots, logits after the last token of every row, and the other results."""
        chunk = next(item.shape[1] for item in self.signature.inputs if item.name == "input_ids")
        kept: dict[str, Any] = {}
        for first in range(0, max(input_ids.shape[1], 1), chunk):
            part = input_ids[:, first : first + chunk]
            count = (lengths - first).clamp(0, chunk)
            part = torch.nn.functional.pad(part, (0, chunk - part.shape[1]))
            changed, results = self._run(weights, slots, {"input_ids": part, "lengths": count})
            slots = slots._replace(**changed)
            for name, value in results.items():
                live = (count > 0).reshape(-1, *[1] * (value.dim() - 1))
                kept[name] = torch.where(live, value, kept[name]) if name in kept else value
        return (slots, *kept.values())
