"""Code prompts from Python's standard library: signature and docstring of a function, as HumanEval's prompts are."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

EXCLUDED = frozenset({"test", "tests", "idlelib", "lib2to3", "site-packages", "pydoc_data", "encodings", "turtledemo"})
MIN_DOCSTRING, MAX_DOCSTRING = 24, 1000
MAX_FILE_BYTES = 400_000


def library_files(root: Path | None = None) -> list[Path]:
    """The sources of the running Python's standard library (or of `root`), without tests, in the order of names."""
    folder = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    found = (path for path in folder.rglob("*.py") if not EXCLUDED & set(path.relative_to(folder).parts))
    return sorted(path for path in found if path.is_file() and path.stat().st_size <= MAX_FILE_BYTES)


def library_stubs(count: int, root: Path | None = None) -> list[str]:
    """`count` different stubs, or as many as there are, from files in a mixed order that depends on their names."""
    found: dict[str, None] = {}
    for path in sorted(library_files(root), key=_order):
        if len(found) >= count:
            break
        found |= dict.fromkeys(stubs_of(_source(path)))
    return list(found)[:count]


def _order(path: Path) -> bytes:
    return hashlib.sha256(f"{path.parent.name}/{path.name}".encode()).digest()


def stubs_of(source: str) -> Iterator[str]:
    """The stubs of one source text; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old string escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node)
            if docstring and MIN_DOCSTRING <= len(docstring) <= MAX_DOCSTRING and '"""' not in docstring:
                yield _stub(node, docstring)


def _stub(node: ast.FunctionDef, docstring: str) -> str:
    """`def` line and docstring; a method's `self` goes, since the prompt stands alone."""
    arguments = node.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        # A default can't belong to the dropped argument: defaults are counted from the end.
        arguments.args = arguments.args[1:]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    text = "\n".join(f"    {line}".rstrip() for line in docstring.split("\n")).lstrip()
    return f'def {node.name}({ast.unparse(arguments)}){returns}:\n    """ {text}\n    """\n'


def _source(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return ""
