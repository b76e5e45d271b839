"""Assembles a generated module: header, declarations, helpers, step functions, public edge, Decoder."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from specc.backends.base import ABI, ModuleInfo
from specc.backends.printing import declarations, wrappers
from specc.backends.printing.by_layer import layered_slots
from specc.backends.printing.dialect import Dialect
from specc.backends.printing.helpers import HelperSources
from specc.backends.printing.layout import format_source
from specc.backends.printing.literals import comment_text
from specc.backends.printing.liveness import output_node
from specc.backends.printing.pieces import joined, split
from specc.backends.printing.regions import Generated
from specc.backends.printing.runtime import edge, loader, paged, rows, stored
from specc.backends.printing.specialise import defined_names, specialised
from specc.backends.printing.steps import WHOLE_STEPS, print_step, signature
from specc.backends.printing.tidy import tidied
from specc.ir.dims import type_text
from specc.ir.op import info
from specc.program import STEPS, DecodeProgram, input_ports, output_ports

BLANK = "0" * 64
HASH_LINE = re.compile(r"^# content: sha256:([0-9a-f]{64})$", re.MULTILINE)
RECORDS = {
    "decode": ("Decoded", "What one plain step gives."),
    "draft": ("Draft", "Drafted nodes of every row."),
    "verify": ("Verified", "What the target says about the nodes."),
    "accept": ("Accepted", "What was taken of a draft."),
    "step": ("Stepped", "What the host reads of a whole step."),
    "plain_step": ("Plain", "What the host reads of a whole step without drafts."),
    "between": ("Turned", "What was accepted, and the next draft."),
}
LAYOUTS = '''
class SlotLayout(NamedTuple):
    """A field of State: shape (-n: n times the batch), dtype, batch dimension (-1: shared), initial value."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    batch_dim: int
    fill: float


class WeightLayout(NamedTuple):
    """A field of Weights: its tensors' shape and dtype, and where they come from.

    Tensor i belongs to decoder layer first_layer + i * layer_step ({layer} in a source); a
    tensor of experts is the sources of expert 0, then those of expert 1, and so on ({expert}).
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    sources: tuple[str, ...]
    layers: int | None
    model: str
    first_layer: int = 0
    layer_step: int = 1
    experts: int = 0
    form: str = ""
'''
# Names that the printed part of a module defines.
PROVIDED = (
    "ABI FINGERPRINT SPEC MAX_SEQUENCE_LENGTH MAX_BATCH_SIZE VOCAB_SIZE SEED MATRICES_BY_COLUMNS "
    "SLOTS WEIGHTS SlotLayout WeightLayout "
    "Weights State Views Draft Verified Accepted Decoded init_state "
    "Any NamedTuple Tensor torch F weights state annotations "
    + " ".join(f"{step} run_{step}" for step in STEPS)
    + "".join(f" {record} run_{step}" for step, record in WHOLE_STEPS.items())
).split()


def _results(program: DecodeProgram, step: str) -> list[tuple[str, str]]:
    """(name, type text) of a step's results."""
    module = program.graphs[step]
    values: Any = output_node(module).args[0]
    found = []
    for port, value in zip(output_ports(module), values, strict=True):
        if port.kind == "result":
            fake = value.meta["val"]
            found.append((port.name, type_text(fake.shape, fake.dtype)))
    return found


def _records(program: DecodeProgram) -> list[str]:
    chain = "verify" in program.graphs and "input:parent" not in input_ports(program.graphs["verify"])
    made = []
    for step, (name, doc) in RECORDS.items():
        if step in program.graphs:
            made.append(declarations.result_class(name, doc, _results(program, step), chain))
    return made


def _public(program: DecodeProgram, in_place: bool) -> list[str]:
    """The public functions of the steps that the program has."""
    makers: dict[str, Callable[[DecodeProgram, bool], str]] = {
        "decode": wrappers.decode,
        "draft": wrappers.draft,
        "verify": wrappers.verify,
        "accept": wrappers.accept,
        "commit": wrappers.commit,
        "flush": wrappers.flush,
    }
    made = []
    for step in STEPS:
        if step == "prefill" and step in program.graphs:
            made.append(wrappers.prefill(program, len(_results(program, "prefill")), in_place))
        elif step in makers and _complete(program, step):
            made.append(makers[step](program, in_place))
    return made


def _complete(program: DecodeProgram, step: str) -> bool:
    """Whether the step exists, and those whose records it takes."""
    needs = {"accept": ("draft", "verify", "accept"), "commit": ("draft", "verify", "accept", "commit")}
    return all(name in program.graphs for name in needs.get(step, (step,)))


def _steps(dialect: Dialect, program: DecodeProgram, sources: HelperSources, module: ModuleInfo) -> list[str]:
    """The printed functions `run_<step>`; `sources` collects the helpers that they call."""

    def helper(target: torch._ops.OpOverload | Callable[..., Any] | Generated) -> str:
        if isinstance(target, Generated):
            return sources.add_generated(target)
        if not isinstance(target, torch._ops.OpOverload):
            return sources.add(target)
        declared = info(target)
        assert declared is not None
        return sources.add(dialect.kernels.get(declared.name, declared.reference))

    draft = [name for name, _ in _results(program, "draft")] if "draft" in program.graphs else []
    verified = [name for name, _ in _results(program, "verify")] if "verify" in program.graphs else []
    made = []
    layered = layered_slots(program) if dialect.by_layer else frozenset[str]()
    for step in (*STEPS, *WHOLE_STEPS):
        if _complete(program, step):
            graph = program.graphs[step]
            names = [port.split(":")[1] for port in input_ports(graph) if port.startswith("input:")]
            call = signature(step, names, draft, verified)
            # Local names must not hide a helper that a later line needs: all kernels' names are kept free.
            reserved = {*PROVIDED, *sources.names, *dialect.reserved, *_op_names(program)}
            text = print_step(dialect, step, graph, call, helper, reserved, module.lines, layered, module.origins)
            made.append(text)
    return made


def _op_names(program: DecodeProgram) -> set[str]:
    from_graphs: set[str] = set()
    for graph in program.graphs.values():
        for item in graph.modules():
            if isinstance(item, torch.fx.GraphModule):
                declared = [info(node.target) for node in item.graph.nodes]
                from_graphs |= {entry.reference.__name__ for entry in declared if entry is not None}
    return from_graphs


def _runtime(dialect: Dialect, program: DecodeProgram, sources: HelperSources) -> None:
    """Collect the host code: checks, loader, rows, and the Decoder if all steps exist."""
    names = ["check_tensor", "check_range", "check_state", "check_batch"]
    if "verify" in program.graphs and "input:parent" in input_ports(program.graphs["verify"]):
        names.append("check_tree")
    for name in names:
        sources.add(getattr(edge, name))
    sources.add(loader.load_weights)
    functions: list[Callable[..., Any]] = [stored.views, stored.store] if dialect.by_layer else []
    if "flush" in program.graphs:
        kept = paged if "block_table" in program.slots else rows
        functions.append(kept.snapshot)
        functions += [stored.restore, stored.reset] if dialect.by_layer else [kept.restore, kept.reset]
    for function in functions:
        sources.add(function)
    if dialect.decoder is not None and all(step in program.graphs for step in STEPS):
        sources.add(dialect.decoder)
        for function in dialect.host:
            sources.add(function)


def _header(dialect: Dialect, program: DecodeProgram, module: ModuleInfo) -> list[str]:
    return [
        "# Generated by specc: do not edit, compile the spec again.",
        f"# content: sha256:{BLANK}",
        f"# spec fingerprint: {comment_text(module.fingerprint)}",
        f"# pipeline fingerprint: {comment_text(module.pipeline)}",
        f"# target: {dialect.name}, ABI {ABI}",
        f'"""Speculative decoding, compiled from the spec `{_docstring_name(program.name)}`."""',
    ]


def _docstring_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _imports(sources: HelperSources, body: str) -> list[str]:
    """Import statements of what the body uses: standard library first, then torch."""
    fixed = {
        "Any": "from typing import Any",
        "NamedTuple": "from typing import NamedTuple",
        "torch": "import torch",
        "F": "import torch.nn.functional as F",
        "Tensor": "from torch import Tensor",
    }
    wanted = sources.imports | fixed
    # A module's name is followed by a dot wherever it is used; a parameter may have the same name.
    ends = {name: r"\." if text.startswith("import ") else r"\b" for name, text in wanted.items()}
    used = {text for name, text in wanted.items() if re.search(rf"(?<![\w.]){re.escape(name)}{ends[name]}", body)}
    installed = {text for text in used if text.split()[1].split(".")[0] in ("torch", "triton")}
    groups = [used - installed, installed]
    lines = ["from __future__ import annotations"]
    for group in groups:
        lines += ["", *sorted(text for text in group if text.startswith("import "))]
        merged: dict[str, list[str]] = {}
        for text in sorted(group):
            if text.startswith("from "):
                source, names = text.removeprefix("from ").split(" import ")
                merged.setdefault(source, []).append(names)
        lines += [f"from {source} import {', '.join(sorted(names))}" for source, names in sorted(merged.items())]
    return lines


def generate(dialect: Dialect, program: DecodeProgram, module: ModuleInfo) -> str:
    """The source of the standalone module for `program`, with a backend's own functions."""
    if dialect.whole_steps is not None and all(step in program.graphs for step in STEPS):
        program = program.with_graphs(**dialect.whole_steps(program.graphs))
    reserved = set(PROVIDED)
    constants = dialect.constants(module.spec)
    sources = HelperSources(reserved, dialect.abi, constants)
    steps = _steps(dialect, program, sources, module)
    kernels = list(sources.texts)
    _runtime(dialect, program, sources)
    host = sources.texts[len(kernels) :]
    parts = [
        declarations.constants(program, module.spec, ABI, module.fingerprint, dialect.by_columns),
        LAYOUTS.strip(),
        declarations.tables(program),
        declarations.weights_class(program.weights),
        declarations.state_class(program),
        *([declarations.views_class(program, layered_slots(program))] if dialect.by_layer else []),
        *_records(program),
        *([declared] if (declared := dialect.declared(program)) else []),
        "# Operations.",
        *kernels,
        "# Steps, printed from the program.",
        *steps,
        "# Host side: checks at the edge, weights, rows, the generate loop.",
        declarations.init_state(program, dialect.device),
        *_public(program, dialect.by_layer),
        *host,
    ]
    body = "\n\n\n".join(parts)
    if dialect.specialised:
        names = defined_names(ast.parse("\n".join(kernels)).body)
        body = joined(tidied(specialised(split(body), names), names))
    text = "\n".join([*_header(dialect, program, module), *_imports(sources, body), "", body, ""])
    return with_hash(format_source(text))


def content_hash(text: str) -> str:
    """sha256 of the module's text with its hash blanked."""
    return hashlib.sha256(HASH_LINE.sub(f"# content: sha256:{BLANK}", text, count=1).encode()).hexdigest()


def with_hash(text: str) -> str:
    """The text with its content hash filled in."""
    return HASH_LINE.sub(f"# content: sha256:{content_hash(text)}", text, count=1)


def verify_text(text: str) -> bool:
    """True if the text states its own content hash."""
    found = HASH_LINE.search(text)
    return found is not None and found.group(1) == content_hash(text)


def verify_module(path: Path) -> bool:
    """True if the generated module at `path` is unchanged since it was written."""
    return verify_text(path.read_bytes().decode("utf-8", errors="surrogateescape"))
