"""What an exporter could not write, as a diagnostic that names the step and the op."""

from __future__ import annotations

import re

from specc.diagnostics import DiagnosticError, error

# How PyTorch, its ONNX exporter, MLIR's legaliser and a stack of torch-mlir's patterns name an op.
OP_PATTERNS = (
    re.compile(r"\bname = \"torch\.(?P<op>[\w.]+)\""),
    re.compile(r"target=torch\.ops\.(?P<op>[\w.]+)\]"),
    re.compile(r"OpOverload\(op='(?P<op>[\w.:]+)'"),
    re.compile(r"operation '(?:torch\.)?(?P<op>[\w.]+)'"),
    re.compile(r"Convert(?P<camel>Aten\w+?)Op\b"),
    re.compile(r"\b(?P<op>aten[.:]+\w+(?:\.\w+)?)"),
)


def op_in(text: str) -> str | None:
    """The op that a message is about, as `aten.scatter`."""
    for pattern in OP_PATTERNS:
        found = pattern.search(text)
        if found is None:
            continue
        named = found.groupdict()
        if named.get("camel"):
            words = re.sub(r"(?<!^)(?=[A-Z])", "_", named["camel"]).lower()
            return words.replace("aten_", "aten.", 1)
        return str(named["op"]).replace("::", ".").removesuffix(".default")
    return None


def cannot_export(step: str, target: str, message: str) -> DiagnosticError:
    """SPC206: `step` has no form in `target`; `message` is what the exporter said."""
    op = op_in(message)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    subject = f"the op `{op}` of step `{step}`" if op else f"step `{step}`"
    said = f": {lines[0][:200]}" if lines and op is None else ""
    remedy = "compile for `reference`, or change what makes the spec need this op; `specc show` prints the program"
    return DiagnosticError([error("SPC206", f"{subject} can't be written as {target}{said}", help=remedy)])
