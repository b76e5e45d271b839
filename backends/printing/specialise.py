"""Binds constants in a module's own functions: a kernel that is only ever called with WINDOW=0 loses its window.

A parameter for which every call in the module gives the same literal is replaced by that literal, in the function and
at the calls; then tests that have become constant are decided, and what nothing calls any more is dropped. Everything
is found in the syntax tree; the text is edited at the piece that the tree gives, so that comments and layout stay.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specc.backends.printing.pieces import (
    Edit,
    Edits,
    Piece,
    called_name,
    constant_names,
    functions,
    joined,
    rounds,
    split,
    walk,
)

Definition = ast.FunctionDef
ROUNDS = 24


def is_literal(node: ast.expr | None) -> bool:
    """A number, string, truth value or None, signed numbers too."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and not isinstance(node.value, (bytes, type(...)))


@dataclass(slots=True)
class Uses:
    """How a module uses a function: its calls with their pieces' numbers, and whether anything else is done with it."""

    calls: list[tuple[int, ast.Call]] = field(default_factory=list)
    opaque: bool = False


def uses_of(pieces: Sequence[Piece], names: Iterable[str]) -> dict[str, Uses]:
    """All uses of top-level functions."""
    found = {name: Uses() for name in names}
    for number, piece in enumerate(pieces):
        for name, call in piece.calls:
            if name in found:
                found[name].calls.append((number, call))
                found[name].opaque |= any(isinstance(item, ast.Starred) for item in call.args)
                found[name].opaque |= any(keyword.arg is None for keyword in call.keywords)
        for name in piece.loose & found.keys():
            found[name].opaque = True
    return found


def parameters(definition: Definition) -> list[tuple[ast.arg, ast.expr | None]]:
    """The parameters in order with their defaults."""
    arguments = definition.args
    plain = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    return [
        *zip(plain, [*missing, *arguments.defaults], strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]


def given(call: ast.Call, definition: Definition, name: str) -> ast.expr | None:
    """What a call passes for a parameter; None: the default."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    plain = [*definition.args.posonlyargs, *definition.args.args]
    for place, argument in enumerate(plain[: len(call.args)]):
        if argument.arg == name:
            return call.args[place]
    return None


def _fixed(piece: Piece) -> frozenset[str]:
    """Parameters of a piece's function that stay: a decorator names them, or the body gives the name a meaning."""
    definition = piece.definition
    assert definition is not None
    named = [item.value for item in walk(*definition.decorator_list) if isinstance(item, ast.Constant)]
    stored = [node.id for node in piece.nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    inner = [node.arg for node in walk(*definition.body) if isinstance(node, ast.arg)]
    return frozenset([*(name for name in named if isinstance(name, str)), *stored, *inner])


def constant_parameters(piece: Piece, definition: Definition, uses: Uses) -> dict[str, str]:
    """Parameters for which all calls give the same literal, as source."""
    arguments = definition.args
    if uses.opaque or not uses.calls or arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return {}
    found: dict[str, str] = {}
    for argument, default in parameters(definition):
        if argument.arg in piece.once(_fixed):
            continue
        values = [given(call, definition, argument.arg) or default for _, call in uses.calls]
        if not all(is_literal(value) for value in values):
            continue
        texts = {ast.unparse(value) for value in values if value is not None}
        if len(texts) == 1:
            found[argument.arg] = texts.pop()
    return found


def bindings(pieces: Sequence[Piece], names: frozenset[str]) -> Edits:
    """Edits that bind the constant parameters of the named functions."""
    definitions = functions(pieces, names)
    edits: Edits = {}
    for name, uses in uses_of(pieces, definitions).items():
        number, piece, definition = definitions[name]
        constants = constant_parameters(piece, definition, uses)
        if constants:
            edits.setdefault(number, []).extend(_bind(piece, definition, constants))
            for place, call in uses.calls:
                edits.setdefault(place, []).extend(_shortened(pieces[place], call, definition, constants))
    return edits


def _bind(piece: Piece, definition: Definition, constants: Mapping[str, str]) -> Iterator[Edit]:
    """The function without the parameters."""
    for node in walk(*definition.body):
        if isinstance(node, ast.Name) and node.id in constants:
            text = constants[node.id]
            yield Edit(*piece.span(node), text if not text.startswith("-") else f"({text})")
    spans = []
    for argument, default in parameters(definition):
        start, end = piece.span(argument)
        spans.append((start, end if default is None else piece.span(default)[1], argument.arg in constants))
    yield from _without(piece, spans)


def _shortened(piece: Piece, call: ast.Call, definition: Definition, constants: Iterable[str]) -> Iterator[Edit]:
    """A call without the arguments."""
    gone = [given(call, definition, name) for name in constants]
    items: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    values = [item.value if isinstance(item, ast.keyword) else item for item in items]
    drop = [any(value is other for other in gone) for value in values]
    yield from _without(piece, [(*piece.span(item), out) for item, out in zip(items, drop, strict=True)])


def _without(piece: Piece, items: Sequence[tuple[int, int, bool]]) -> Iterator[Edit]:
    """Delete the marked items (start, end, mark) of a list with their commas."""
    place = 0
    while place < len(items):
        if not items[place][2]:
            place += 1
            continue
        first = place
        while place < len(items) and items[place][2]:
            place += 1
        if place < len(items):
            yield Edit(items[first][0], items[place][0], "")
        elif first > 0:
            yield Edit(items[first - 1][1], items[place - 1][1], "")
        else:
            after = items[place - 1][1]
            while piece.text[after] in " \n\t":
                after += 1
            yield Edit(items[first][0], after + 1 if piece.text[after] == "," else items[place - 1][1], "")


def decided(node: ast.expr) -> bool | None:
    """The truth of a test whose parts are literals, where they settle it."""
    if is_literal(node):
        return bool(ast.literal_eval(node))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = decided(node.operand)
        return None if inner is None else not inner
    if isinstance(node, ast.BoolOp):
        truths = [decided(value) for value in node.values]
        stops = isinstance(node.op, ast.Or)
        if stops in truths:
            return stops
        return None if None in truths else not stops
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = node.left, node.comparators[0]
        compare = _COMPARISONS.get(type(node.ops[0]))
        if compare is not None and is_literal(left) and is_literal(right):
            return compare(ast.literal_eval(left), ast.literal_eval(right))
    return None


_COMPARISONS: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Is: lambda left, right: left is right,
    ast.IsNot: lambda left, right: left is not right,
    ast.Eq: lambda left, right: left == right,
    ast.NotEq: lambda left, right: left != right,
    ast.Gt: lambda left, right: left > right,  # type: ignore[operator]
    ast.GtE: lambda left, right: left >= right,  # type: ignore[operator]
    ast.Lt: lambda left, right: left < right,  # type: ignore[operator]
    ast.LtE: lambda left, right: left <= right,  # type: ignore[operator]
}


def folds(pieces: Sequence[Piece], names: frozenset[str]) -> Edits:
    """Edits that decide constant tests in the named functions."""
    found = {number: piece.once(_folds) for number, piece, _ in functions(pieces, names).values()}
    return {number: edits for number, edits in found.items() if edits}


def _folds(piece: Piece) -> list[Edit]:
    return [edit for node in piece.nodes for edit in _fold(piece, node) or _spare(piece, node)]


def _fold(piece: Piece, node: ast.AST) -> list[Edit]:
    if isinstance(node, ast.If):
        truth = decided(node.test)
        return [] if truth is None else [_chosen(piece, node, node.body if truth else node.orelse)]
    if isinstance(node, ast.IfExp):
        truth = decided(node.test)
        if truth is not None:
            kept = node.body if truth else node.orelse
            return [Edit(*piece.span(node), _text(piece, kept))]
    if isinstance(node, ast.BoolOp):
        neutral = isinstance(node.op, ast.And)
        rest = [value for value in node.values if decided(value) is not neutral]
        if rest and len(rest) < len(node.values) and decided(node) is None:
            joined = " and " if neutral else " or "
            text = joined.join(_text(piece, value) for value in rest)
            return [Edit(*piece.span(node), text if len(rest) == 1 else f"({text})")]
    if isinstance(node, ast.Compare) and (truth := decided(node)) is not None:
        return [Edit(*piece.span(node), str(truth))]
    if isinstance(node, ast.expr):
        return _fold_value(piece, node)
    return []


def _fold_value(piece: Piece, node: ast.expr) -> list[Edit]:
    """`0 < 9 < size`, `0.0 or 1.0` and `float(2)`, for what they are worth."""
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        first = decided(ast.Compare(node.left, node.ops[:1], node.comparators[:1]))
        if first is not None:
            rest = piece.text[piece.span(node.comparators[0])[0] : piece.span(node)[1]]
            return [Edit(*piece.span(node), rest if first else "False")]
    if isinstance(node, ast.BoolOp) and all(is_literal(value) for value in node.values):
        stops = isinstance(node.op, ast.Or)
        chosen = next((value for value in node.values if decided(value) is stops), node.values[-1])
        return [Edit(*piece.span(node), _text(piece, chosen))]
    if isinstance(node, ast.Call) and called_name(node) == "float" and len(node.args) == 1 and is_literal(node.args[0]):
        number = ast.literal_eval(node.args[0])
        if isinstance(number, (int, float)) and isinstance(node.func, ast.Name):
            return [Edit(*piece.span(node), repr(float(number)))]
    return []


def _text(piece: Piece, node: ast.expr) -> str:
    """A node's source, in parentheses unless it is an atom."""
    start, end = piece.span(node)
    text = piece.text[start:end]
    simple = isinstance(node, (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript))
    return text if simple else f"({text})"


def _chosen(piece: Piece, node: ast.If, body: list[ast.stmt]) -> Edit:
    """The statements of one branch in place of the whole `if`, moved to its column."""
    start, end = piece.span(node)
    is_elif = piece.text.startswith("elif", start)
    if not body:
        # An `elif` that is never taken goes with its line; elsewhere a statement has to stay for now.
        return Edit(piece.starts[node.lineno - 1], end + 1, "") if is_elif else Edit(start, end, "pass")
    first, last = body[0], body[-1]
    assert last.end_lineno is not None
    top = first.lineno
    while piece.lines[top - 2].lstrip().startswith("#") and piece.starts[top - 2] > start:
        top -= 1
    shift = first.col_offset - node.col_offset
    lines = [line[shift:] if line[:shift].isspace() else line for line in piece.lines[top - 1 : last.end_lineno]]
    if is_elif:
        indented = [line if not line.strip() else f"    {line}" for line in lines]
        return Edit(start, end, "else:\n" + "".join(indented).rstrip("\n"))
    return Edit(start, end, "".join(lines).strip(" \n").removeprefix("el"))


def _spare(piece: Piece, node: ast.AST) -> list[Edit]:
    """`pass` where a body has other statements."""
    edits: list[Edit] = []
    for name in ("body", "orelse"):
        body = getattr(node, name, None)
        if isinstance(body, list) and len(body) > 1:
            passes = [item for item in body if isinstance(item, ast.Pass)]
            kept = passes[1:] if len(passes) == len(body) else passes
            edits += [Edit(piece.starts[item.lineno - 1], piece.starts[item.lineno], "") for item in kept]
    return edits


def unreferenced(pieces: Sequence[Piece], names: frozenset[str]) -> Edits:
    """Edits that drop named functions, classes and constants which nothing refers to."""
    edits: Edits = {}
    # Name -> the pieces that read it.
    readers: dict[str, set[int]] = {}
    for number, piece in enumerate(pieces):
        for name in piece.reads & names:
            readers.setdefault(name, set()).add(number)
    for number, piece in enumerate(pieces):
        made = defined_names(piece.body)
        if made and made <= names and not any(readers.get(name, set()) - {number} for name in made):
            first = (getattr(piece.body[0], "decorator_list", None) or piece.body)[0].lineno
            edits[number] = [Edit(piece.starts[piece.with_comment(first) - 1], len(piece.text), "")]
    return edits


def defined_names(body: Iterable[ast.stmt]) -> frozenset[str]:
    """The functions, classes and constants that statements at the top level define."""
    named = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return frozenset(named.union(*(constant_names(node) for node in body)))


def specialised(pieces: list[Piece], names: frozenset[str]) -> list[Piece]:
    """A module with the named functions specialised to the calls that it has; what nothing refers to goes."""
    return rounds(pieces, names, (bindings, folds, unreferenced), ROUNDS)


def specialise(source: str, names: Iterable[str]) -> str:
    """The same for a module's source."""
    return joined(specialised(split(source), frozenset(names)))
