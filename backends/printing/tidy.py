"""Takes out of a module's own functions what a reader would: second copies, and values that nothing reads.

Step graphs share parts, so their generated kernels come out equal; a kernel's values may serve an output that this use
of it does not have. As in `specialise`, the syntax tree says where and the text is edited.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence

from specc.backends.printing.pieces import Edit, Edits, Piece, functions, joined, rounds, split, walk

Definition = ast.FunctionDef
ROUNDS = 12
EFFECTS = ("store", "atomic", "debug_barrier", "device_", "inline_asm", "gdc_", "static_")
METHODS = frozenset({"to", "trans", "reshape", "expand_dims"})


def whole(piece: Piece, node: Definition) -> Edit:
    """Drops a function with its decorators and the comment above it."""
    first = piece.with_comment(node.decorator_list[0].lineno if node.decorator_list else node.lineno)
    assert node.end_lineno is not None
    return Edit(piece.starts[first - 1], piece.starts[node.end_lineno], "")


def form(piece: Piece) -> str:
    """A function without its name and docstring, its variables numbered as they appear."""
    made = _nameless(piece)
    nodes = walk(made)
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    numbers: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.arg):
            node.arg = numbers.setdefault(node.arg, f"v{len(numbers)}")
        elif isinstance(node, ast.Name) and node.id in own:
            node.id = numbers.setdefault(node.id, f"v{len(numbers)}")
    return ast.dump(made)


def form_with_names(piece: Piece) -> str:
    """A function without its name and docstring."""
    return ast.dump(_nameless(piece))


def _nameless(piece: Piece) -> Definition:
    """A tree of the function's own."""
    made = ast.parse(piece.text).body[0]
    assert isinstance(made, ast.FunctionDef)
    made.name = "_"
    if ast.get_docstring(made) is not None:
        made.body = made.body[1:]
    return made


def merged(pieces: Sequence[Piece], names: frozenset[str]) -> Edits:
    """Edits that leave one of several equal functions."""
    found = functions(pieces, names)
    by_keyword = {
        name for piece in pieces for name, call in piece.calls if name in found and _by_keyword(call, found[name][2])
    }
    first: dict[str, str] = {}
    other: dict[str, str] = {}
    for name, (_, piece, _) in found.items():
        kept = first.setdefault(piece.once(form_with_names if name in by_keyword else form), name)
        if kept != name:
            other[name] = kept
    edits: Edits = {number: [whole(piece, node)] for number, piece, node in (found[name] for name in other)}
    for number, piece in enumerate(pieces):
        if piece.reads & other.keys():
            named = [node for node in piece.nodes if isinstance(node, ast.Name) and node.id in other]
            edits.setdefault(number, []).extend(Edit(*piece.span(node), other[node.id]) for node in named)
    return edits


def _by_keyword(call: ast.Call, definition: Definition) -> bool:
    """Whether a call gives one of the function's parameters by name."""
    known = {item.arg for item in _arguments(definition)}
    return not known.isdisjoint({keyword.arg for keyword in call.keywords})


def _arguments(definition: Definition) -> list[ast.arg]:
    arguments = definition.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def unread(pieces: Sequence[Piece], names: frozenset[str]) -> Edits:
    """Edits that drop assignments in device functions whose value nothing reads."""
    found = functions(pieces, names)
    edits: Edits = {}
    for number, piece, _ in found.values():
        for statement in piece.once(_unread):
            if _is_pure(_called(statement.value), found, frozenset()):
                edits.setdefault(number, []).append(_line(piece, statement))
    return edits


def _unread(piece: Piece) -> list[ast.Assign]:
    """Assignments of a device function to a name that it does not read, beside other statements."""
    decorators = piece.definition.decorator_list if piece.definition else []
    if not any(ast.unparse(item).startswith("triton.jit") for item in decorators):
        return []
    read = {node.id for node in piece.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bodies = [getattr(node, part, None) for node in piece.nodes for part in ("body", "orelse")]
    statements = [item for body in bodies if isinstance(body, list) and len(body) > 1 for item in body]
    return [item for item in statements if isinstance(item, ast.Assign) and _is_named_without(item, read)]


def _is_named_without(statement: ast.Assign, read: set[str]) -> bool:
    target = statement.targets[0]
    return len(statement.targets) == 1 and isinstance(target, ast.Name) and target.id not in read


def _line(piece: Piece, statement: ast.stmt) -> Edit:
    assert statement.end_lineno is not None
    return Edit(piece.starts[statement.lineno - 1], piece.starts[statement.end_lineno], "")


def _called(*nodes: ast.AST) -> list[ast.expr]:
    return [item.func for item in walk(*nodes) if isinstance(item, ast.Call)]


def _called_in_body(piece: Piece) -> list[ast.expr]:
    return _called(*piece.definition.body) if piece.definition else []


Functions = Mapping[str, tuple[int, Piece, Definition]]


def _is_pure(called: Iterable[ast.expr], found: Functions, entered: frozenset[str]) -> bool:
    """Whether nothing but the value of an expression, or of a function's body, comes of these calls."""
    return all(_is_pure_call(function, found, entered) for function in called)


def _is_pure_call(function: ast.expr, found: Functions, entered: frozenset[str]) -> bool:
    if isinstance(function, ast.Attribute):
        root = ast.unparse(function).split(".")[0]
        return not function.attr.startswith(EFFECTS) and (root == "tl" or function.attr in METHODS)
    if not isinstance(function, ast.Name) or function.id in entered or function.id not in found:
        return False
    body = found[function.id][1].once(_called_in_body)
    return _is_pure(body, found, entered | {function.id})


def tidied(pieces: list[Piece], names: frozenset[str]) -> list[Piece]:
    """A module with the named functions tidied."""
    return rounds(pieces, names, (unread, merged), ROUNDS)


def tidy(source: str, names: Iterable[str]) -> str:
    """The same for a module's source."""
    return joined(tidied(split(source), frozenset(names)))
