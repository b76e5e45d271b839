"""Takes out of a module's own functions what a reader would: second copies, and values that nothing reads.

Step graphs share parts, so their generated kernels come out equal; a kernel's values may serve an output that this use
of it does not have. As in `specialise`, the syntax tree says where and the text is edited.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Mapping

from specc.backends.printing.specialise import Edit, Places, apply, called_name

Definition = ast.FunctionDef
ROUNDS = 12
EFFECTS = ("store", "atomic", "debug_barrier", "device_", "inline_asm", "gdc_", "static_")
METHODS = frozenset({"to", "trans", "reshape", "expand_dims"})


def definitions(tree: ast.Module, names: frozenset[str]) -> dict[str, Definition]:
    """The named functions at the top level."""
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names}


def whole(places: Places, node: Definition) -> Edit:
    """Drops a function with its decorators and the comment above it."""
    first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
    while first > 1 and places.lines[first - 2].startswith("#"):
        first -= 1
    assert node.end_lineno is not None
    return Edit(places.starts[first - 1], places.starts[node.end_lineno], "")


def form(definition: Definition, keep_names: bool) -> str:
    """The function without its name and docstring; unless `keep_names`, its variables are numbered as they appear."""
    made = copy.deepcopy(definition)
    made.name = "_"
    if ast.get_docstring(made) is not None:
        made.body = made.body[1:]
    if keep_names:
        return ast.dump(made)
    own = {node.arg for node in ast.walk(made) if isinstance(node, ast.arg)}
    own |= {node.id for node in ast.walk(made) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    numbers: dict[str, str] = {}
    for node in ast.walk(made):
        if isinstance(node, ast.arg):
            node.arg = numbers.setdefault(node.arg, f"v{len(numbers)}")
        elif isinstance(node, ast.Name) and node.id in own:
            node.id = numbers.setdefault(node.id, f"v{len(numbers)}")
    return ast.dump(made)


def merged(source: str, names: frozenset[str]) -> list[Edit]:
    """Edits that leave one of several equal functions."""
    tree, places = ast.parse(source), Places(source)
    found = definitions(tree, names)
    by_keyword = {name for name in (_called_by_keyword(node, found) for node in ast.walk(tree)) if name}
    first: dict[str, str] = {}
    other: dict[str, str] = {}
    for name, definition in found.items():
        kept = first.setdefault(form(definition, name in by_keyword), name)
        if kept != name:
            other[name] = kept
    edits = [whole(places, found[name]) for name in other]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in other:
            edits.append(Edit(*places.span(node), other[node.id]))
    return edits


def _called_by_keyword(node: ast.AST, found: Mapping[str, Definition]) -> str | None:
    """The name of a function that a node calls with one of its parameters by name."""
    name = called_name(node) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or name is None or name not in found:
        return None
    known = {item.arg for item in _arguments(found[name])}
    return name if known & {keyword.arg for keyword in node.keywords} else None


def _arguments(definition: Definition) -> list[ast.arg]:
    arguments = definition.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def unread(source: str, names: frozenset[str]) -> list[Edit]:
    """Edits that drop assignments in device functions whose value nothing reads."""
    tree, places = ast.parse(source), Places(source)
    found = definitions(tree, names)
    edits: list[Edit] = []
    for definition in found.values():
        if not any(ast.unparse(item).startswith("triton.jit") for item in definition.decorator_list):
            continue
        read = {
            node.id for node in ast.walk(definition) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        for node in ast.walk(definition):
            bodies = [getattr(node, part, None) for part in ("body", "orelse")]
            for body in (item for item in bodies if isinstance(item, list) and len(item) > 1):
                edits += [_line(places, item) for item in body if _is_unread(item, read, found)]
    return edits


def _line(places: Places, statement: ast.stmt) -> Edit:
    assert statement.end_lineno is not None
    return Edit(places.starts[statement.lineno - 1], places.starts[statement.end_lineno], "")


def _is_unread(statement: ast.stmt, read: set[str], found: Mapping[str, Definition]) -> bool:
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    return isinstance(target, ast.Name) and target.id not in read and is_pure(statement.value, found, frozenset())


def is_pure(node: ast.AST, found: Mapping[str, Definition], entered: frozenset[str]) -> bool:
    """Whether nothing but the value of an expression, or of a function's body, comes of it."""
    calls = [item.func for item in ast.walk(node) if isinstance(item, ast.Call)]
    return all(_is_pure_call(function, found, entered) for function in calls)


def _is_pure_call(function: ast.expr, found: Mapping[str, Definition], entered: frozenset[str]) -> bool:
    if isinstance(function, ast.Attribute):
        root = ast.unparse(function).split(".")[0]
        return not function.attr.startswith(EFFECTS) and (root == "tl" or function.attr in METHODS)
    if not isinstance(function, ast.Name) or function.id in entered or function.id not in found:
        return False
    body = ast.Module(found[function.id].body, [])
    return is_pure(body, found, entered | {function.id})


def tidy(source: str, names: Iterable[str]) -> str:
    """The module's source with the named functions tidied."""
    own = frozenset(names)
    for _ in range(ROUNDS):
        before = source
        for find in (unread, merged):
            source = apply(source, find(source, own))
        if source == before:
            break
    return source
