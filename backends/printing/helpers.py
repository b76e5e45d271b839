"""Source of the functions that a generated module carries, taken from the real, linted files that define them.

A function is included only if it is used, with the private helpers and constants it needs, in dependency order.
Names that two files use for different things are told apart.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

from specc.backends.printing.pieces import constant_names, is_documented
from specc.backends.printing.regions import Generated

PACKAGE = "specc"
KEPT_DECORATORS = ("triton.", "cache", "staticmethod")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A module's text and its top level: definitions, and imports as (module, attribute or None).

    `documented`: last line of the string that stands below a constant and says what it is.
    """

    name: str
    lines: tuple[str, ...]
    definitions: dict[str, ast.stmt]
    imports: dict[str, tuple[str, str | None]]
    documented: dict[str, int]


@cache
def source_file(module_name: str) -> SourceFile:
    """Parse the source of an importable module. Raises OSError where there is none."""
    module: ModuleType = sys.modules.get(module_name) or importlib.import_module(module_name)
    text = inspect.getsource(module)
    definitions: dict[str, ast.stmt] = {}
    imports: dict[str, tuple[str, str | None]] = {}
    documented: dict[str, int] = {}
    body = ast.parse(text).body
    for above, statement in pairwise(body):
        if is_documented(above, statement):
            documented |= dict.fromkeys(constant_names(above), statement.end_lineno or 0)
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            definitions[statement.name] = statement
        elif isinstance(statement, ast.Assign) and (alias := _alias(statement)) is not None:
            imports[alias[1]] = alias
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            definitions.update(dict.fromkeys(constant_names(statement), statement))
        elif isinstance(statement, ast.Import):
            imports.update({alias.asname or alias.name: (alias.name, None) for alias in statement.names})
        elif isinstance(statement, ast.ImportFrom) and statement.module and statement.module != "__future__":
            module_of = statement.module
            imports.update({alias.asname or alias.name: (module_of, alias.name) for alias in statement.names})
    return SourceFile(module_name, tuple(text.splitlines()), definitions, imports, documented)


def _alias(statement: ast.Assign) -> tuple[str, str] | None:
    """(`torch`, `Tensor`) of `Tensor = torch.Tensor`, which is an import by another name."""
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Name) and isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        return (value.value.id, value.attr) if value.value.id == "torch" and value.attr == target.id else None
    return None


def import_statement(local: str, module: str, attribute: str | None) -> str:
    """`import torch.nn.functional as F`."""
    if attribute is None:
        return f"import {module}" if local == module else f"import {module} as {local}"
    renamed = "" if local == attribute else f" as {local}"
    return f"from {module} import {attribute}{renamed}"


class HelperSources:
    """Collects definitions; `name_of` is the name a definition has in the generated module."""

    def __init__(
        self,
        reserved: Iterable[str] = (),
        provided: frozenset[str] = frozenset(),
        replaced: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self.reserved = set(reserved)
        # Modules whose names the generated module defines by itself.
        self.provided = provided
        # (module, name) of a constant -> its value in the generated module, as source.
        self.replaced = dict(replaced or {})
        self.imports: dict[str, str] = {}
        self.texts: list[str] = []
        self._names: dict[tuple[str, str], str] = {}
        self._generated: dict[str, str] = {}

    @property
    def names(self) -> frozenset[str]:
        """All names that the collected definitions and imports take."""
        made = {f"{name}{ending}" for name in self._generated.values() for ending in ("", "_kernel")}
        return frozenset(self._names.values()) | frozenset(self.imports) | made

    def add(self, function: Callable[..., Any]) -> str:
        """Include a function with all it needs; returns its name in the generated module."""
        return self.add_definition(function.__module__, function.__name__)

    def add_generated(self, made: Generated) -> str:
        """Include generated functions with all they need; equal ones once. Returns the name in the module."""
        if made.source not in self._generated:
            given = self._free(made.base)
            # Kernel and launch function: both names are taken.
            self._generated[made.source] = given
            text = re.sub(r"\bNAME(?=_kernel\b|\b)", given, made.source)
            for function in made.functions:
                name = self.add(function)
                if name != function.__name__:
                    text = re.sub(rf"(?<![\w.]){function.__name__}\b", name, text)
            self.imports |= made.imports
            self.texts.append(text)
        return self._generated[made.source]

    def add_definition(self, module_name: str, name: str) -> str:
        """Include a top-level definition of a module. Raises KeyError if the module does not define it."""
        key = (module_name, name)
        if key in self._names:
            return self._names[key]
        file = source_file(module_name)
        statement = file.definitions[name]
        given = self._names[key] = self._free(name)
        renames = {name: given} | self._needs(file, statement, name)
        if key in self.replaced and isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            above, below = _documentation(file, file.definitions[name])
            self.texts.append("\n".join([*above, ast.unparse(_with_value(statement, self.replaced[key])), *below]))
            return given
        self.texts.append(_segment(file, statement, renames))
        return given

    def _free(self, name: str) -> str:
        taken, number, found = self.reserved | self.names, 2, name
        while found in taken:
            found, number = f"{name}_{number}", number + 1
        return found

    def _needs(self, file: SourceFile, statement: ast.stmt, own: str) -> dict[str, str]:
        """Include everything a definition refers to; returns local name -> name in the generated module."""
        renames: dict[str, str] = {}
        for node in _names(statement):
            name = node.id
            if name in renames or name == own:
                continue
            if name in file.definitions:
                renames[name] = self.add_definition(file.name, name)
            elif name in file.imports:
                module, attribute = file.imports[name]
                if module in self.provided:
                    continue
                if module.split(".")[0] != PACKAGE:
                    self.imports[name] = import_statement(name, module, attribute)
                elif attribute is not None and attribute in source_file(module).definitions:
                    renames[name] = self.add_definition(module, attribute)
                else:
                    raise TypeError(f"{file.name}.{own} uses `{name}` of {module}, which can't be copied")
        return renames


@cache
def _names(statement: ast.stmt) -> tuple[ast.Name, ...]:
    """The names that a definition of a source file reads; decorators that are not copied left out."""
    found: list[ast.Name] = []
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name):
            found.append(node)
        for field, value in ast.iter_fields(node):
            if node is statement and field == "decorator_list" and not _decorated(statement):
                continue
            stack.extend(item for item in (value if isinstance(value, list) else [value]) if isinstance(item, ast.AST))
    return tuple(sorted(found, key=lambda node: (node.lineno, node.col_offset)))


def _with_value(statement: ast.Assign | ast.AnnAssign, source: str) -> ast.stmt:
    """The same constant with another value; what it calls must be what the original calls."""
    made = copy.deepcopy(statement)
    made.value = ast.parse(source, mode="eval").body
    return made


def _decorated(statement: ast.stmt) -> bool:
    """Whether a definition keeps its decorators: a class, a device kernel; what declares an op is left behind."""
    if isinstance(statement, ast.ClassDef):
        return True
    decorators = statement.decorator_list if isinstance(statement, ast.FunctionDef) else []
    return any(ast.unparse(item).startswith(KEPT_DECORATORS) for item in decorators)


def _segment(file: SourceFile, statement: ast.stmt, renames: dict[str, str]) -> str:
    """The statement's own text, with names replaced."""
    edits = [(node.lineno, node.col_offset, node.id) for node in _names(statement) if node.id in renames]
    first = statement.lineno
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef)) and statement.decorator_list and _decorated(statement):
        first = statement.decorator_list[0].lineno
    lines = list(file.lines)
    for row, column, name in sorted(edits, reverse=True):
        if renames[name] != name:
            # Column offsets count UTF-8 bytes.
            raw = lines[row - 1].encode()
            lines[row - 1] = (raw[:column] + renames[name].encode() + raw[column + len(name) :]).decode()
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and renames[statement.name] != statement.name:
        row = statement.lineno - 1
        lines[row] = lines[row].replace(statement.name, renames[statement.name], 1)
    assert statement.end_lineno is not None
    above, below = _documentation(file, statement)
    return "\n".join([*above, *lines[first - 1 : statement.end_lineno], *below])


def _documentation(file: SourceFile, statement: ast.stmt) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The comment above a constant and the string below it, as lines; nothing for functions and classes."""
    names = constant_names(statement)
    if not names:
        return (), ()
    first = statement.lineno - 1
    while first and file.lines[first - 1].startswith("#"):
        first -= 1
    end = statement.end_lineno or 0
    return file.lines[first : statement.lineno - 1], file.lines[end : file.documented.get(names[0], end)]
