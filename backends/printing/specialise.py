"""Binds constants in a module's own functions: a kernel that is only ever called with WINDOW=0 loses its window.

A parameter for which every call in the module gives the same literal is replaced by that literal, in the function and
at the calls; then tests that have become constant are decided, and what nothing calls any more is dropped. Everything
is found in the syntax tree; the text is edited at the places that the tree gives, so that comments and layout stay.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Definition = ast.FunctionDef
ROUNDS = 24


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters [start, end) become `text`."""

    start: int
    end: int
    text: str


class Places:
    """Offsets of a tree's nodes in its source."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def offset(self, row: int, column: int) -> int:
        """The offset of a 1-based row and a column in UTF-8 bytes."""
        line = self.lines[row - 1]
        inside = column if line.isascii() else len(line.encode()[:column].decode())
        return self.starts[row - 1] + inside

    def span(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> tuple[int, int]:
        """Start and end of a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)


def apply(source: str, edits: Iterable[Edit]) -> str:
    """The source with the edits made; of edits that overlap, the outermost is."""
    end = 0
    parts: list[str] = []
    for edit in sorted(edits, key=lambda item: (item.start, -item.end)):
        if edit.start < end:
            continue
        parts += [source[end : edit.start], edit.text]
        end = edit.end
    return "".join([*parts, source[end:]])


def is_literal(node: ast.expr | None) -> bool:
    """A number, string, truth value or None, signed numbers too."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and not isinstance(node.value, (bytes, type(...)))


@dataclass(slots=True)
class Uses:
    """How a module uses one function: its calls, and whether anything else is done with it."""

    calls: list[ast.Call] = field(default_factory=list)
    opaque: bool = False


def called_name(call: ast.Call) -> str | None:
    """`f` of `f(...)` and of a launch `f[grid](...)`."""
    target = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    return target.id if isinstance(target, ast.Name) else None


def uses_of(tree: ast.Module, names: Iterable[str]) -> dict[str, Uses]:
    """All uses of top-level functions."""
    found = {name: Uses() for name in names}
    explained: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) in found:
            target = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            explained.add(id(target))
            uses = found[str(called_name(node))]
            uses.calls.append(node)
            uses.opaque |= any(isinstance(item, ast.Starred) for item in node.args)
            uses.opaque |= any(keyword.arg is None for keyword in node.keywords)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in found and id(node) not in explained:
            found[node.id].opaque = True
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


def constant_parameters(definition: Definition, uses: Uses) -> dict[str, str]:
    """Parameters for which all calls give the same literal, as source."""
    arguments = definition.args
    if uses.opaque or not uses.calls or arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return {}
    decorated = {
        item.value for part in definition.decorator_list for item in ast.walk(part) if isinstance(item, ast.Constant)
    }
    stored = {
        node.id for node in ast.walk(definition) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    inner = {node.arg for part in definition.body for node in ast.walk(part) if isinstance(node, ast.arg)}
    found: dict[str, str] = {}
    for argument, default in parameters(definition):
        if argument.arg in decorated | stored | inner:
            continue
        values = [given(call, definition, argument.arg) or default for call in uses.calls]
        texts = {ast.unparse(value) for value in values if value is not None and is_literal(value)}
        if len(texts) == 1 and all(is_literal(value) for value in values):
            found[argument.arg] = texts.pop()
    return found


def bindings(source: str, names: frozenset[str]) -> list[Edit]:
    """Edits that bind the constant parameters of the named functions."""
    tree, places = ast.parse(source), Places(source)
    definitions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names}
    edits: list[Edit] = []
    for name, uses in uses_of(tree, definitions).items():
        constants = constant_parameters(definitions[name], uses)
        if constants:
            edits += _bind(places, definitions[name], uses, constants)
    return edits


def _bind(places: Places, definition: Definition, uses: Uses, constants: Mapping[str, str]) -> Iterator[Edit]:
    for node in (item for part in definition.body for item in ast.walk(part)):
        if isinstance(node, ast.Name) and node.id in constants:
            text = constants[node.id]
            yield Edit(*places.span(node), text if not text.startswith("-") else f"({text})")
    spans = []
    for argument, default in parameters(definition):
        start, end = places.span(argument)
        spans.append((start, end if default is None else places.span(default)[1], argument.arg in constants))
    yield from _without(places, spans)
    for call in uses.calls:
        gone = [given(call, definition, name) for name in constants]
        items: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        values = [item.value if isinstance(item, ast.keyword) else item for item in items]
        drop = [any(value is other for other in gone) for value in values]
        yield from _without(places, [(*places.span(item), out) for item, out in zip(items, drop, strict=True)])


def _without(places: Places, items: Sequence[tuple[int, int, bool]]) -> Iterator[Edit]:
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
            while places.source[after] in " \n\t":
                after += 1
            yield Edit(items[first][0], after + 1 if places.source[after] == "," else items[place - 1][1], "")


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


def folds(source: str, names: frozenset[str]) -> list[Edit]:
    """Edits that decide constant tests in the named functions."""
    tree, places = ast.parse(source), Places(source)
    edits: list[Edit] = []
    for definition in tree.body:
        if isinstance(definition, ast.FunctionDef) and definition.name in names:
            for node in ast.walk(definition):
                edits += _fold(places, node) or _spare(places, node)
    return edits


def _fold(places: Places, node: ast.AST) -> list[Edit]:
    if isinstance(node, ast.If):
        truth = decided(node.test)
        return [] if truth is None else [_chosen(places, node, node.body if truth else node.orelse)]
    if isinstance(node, ast.IfExp):
        truth = decided(node.test)
        if truth is not None:
            kept = node.body if truth else node.orelse
            return [Edit(*places.span(node), _text(places, kept))]
    if isinstance(node, ast.BoolOp):
        neutral = isinstance(node.op, ast.And)
        rest = [value for value in node.values if decided(value) is not neutral]
        if rest and len(rest) < len(node.values) and decided(node) is None:
            joined = " and " if neutral else " or "
            text = joined.join(_text(places, value) for value in rest)
            return [Edit(*places.span(node), text if len(rest) == 1 else f"({text})")]
    if isinstance(node, ast.Compare) and (truth := decided(node)) is not None:
        return [Edit(*places.span(node), str(truth))]
    if isinstance(node, ast.expr):
        return _fold_value(places, node)
    return []


def _fold_value(places: Places, node: ast.expr) -> list[Edit]:
    """`0 < 9 < size`, `0.0 or 1.0` and `float(2)`, for what they are worth."""
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        first = decided(ast.Compare(node.left, node.ops[:1], node.comparators[:1]))
        if first is not None:
            rest = places.source[places.span(node.comparators[0])[0] : places.span(node)[1]]
            return [Edit(*places.span(node), rest if first else "False")]
    if isinstance(node, ast.BoolOp) and all(is_literal(value) for value in node.values):
        stops = isinstance(node.op, ast.Or)
        chosen = next((value for value in node.values if decided(value) is stops), node.values[-1])
        return [Edit(*places.span(node), _text(places, chosen))]
    if isinstance(node, ast.Call) and called_name(node) == "float" and len(node.args) == 1 and is_literal(node.args[0]):
        number = ast.literal_eval(node.args[0])
        if isinstance(number, (int, float)) and isinstance(node.func, ast.Name):
            return [Edit(*places.span(node), repr(float(number)))]
    return []


def _text(places: Places, node: ast.expr) -> str:
    """A node's source, in parentheses unless it is an atom."""
    start, end = places.span(node)
    text = places.source[start:end]
    simple = isinstance(node, (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript))
    return text if simple else f"({text})"


def _chosen(places: Places, node: ast.If, body: list[ast.stmt]) -> Edit:
    """The statements of one branch in place of the whole `if`, moved to its column."""
    start, end = places.span(node)
    is_elif = places.source.startswith("elif", start)
    if not body:
        # An `elif` that is never taken goes with its line; elsewhere a statement has to stay for now.
        return Edit(places.starts[node.lineno - 1], end + 1, "") if is_elif else Edit(start, end, "pass")
    first, last = body[0], body[-1]
    assert last.end_lineno is not None
    top = first.lineno
    while places.lines[top - 2].lstrip().startswith("#") and places.starts[top - 2] > start:
        top -= 1
    shift = first.col_offset - node.col_offset
    lines = [line[shift:] if line[:shift].isspace() else line for line in places.lines[top - 1 : last.end_lineno]]
    if is_elif:
        indented = [line if not line.strip() else f"    {line}" for line in lines]
        return Edit(start, end, "else:\n" + "".join(indented).rstrip("\n"))
    return Edit(start, end, "".join(lines).strip(" \n").removeprefix("el"))


def _spare(places: Places, node: ast.AST) -> list[Edit]:
    """`pass` where a body has other statements."""
    edits: list[Edit] = []
    for name in ("body", "orelse"):
        body = getattr(node, name, None)
        if isinstance(body, list) and len(body) > 1:
            passes = [item for item in body if isinstance(item, ast.Pass)]
            kept = passes[1:] if len(passes) == len(body) else passes
            edits += [Edit(places.starts[item.lineno - 1], places.starts[item.lineno], "") for item in kept]
    return edits


def unreferenced(source: str, names: frozenset[str]) -> list[Edit]:
    """Edits that drop named functions which nothing refers to."""
    tree, places = ast.parse(source), Places(source)
    edits: list[Edit] = []
    # Name -> the top-level statements that read it.
    readers: dict[str, set[int]] = {}
    for number, statement in enumerate(tree.body):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                readers.setdefault(node.id, set()).add(number)
    for number, definition in enumerate(tree.body):
        if not isinstance(definition, ast.FunctionDef) or definition.name not in names:
            continue
        if not readers.get(definition.name, set()) - {number}:
            first = definition.decorator_list[0] if definition.decorator_list else definition
            assert definition.end_lineno is not None
            edits.append(Edit(places.starts[first.lineno - 1], places.starts[definition.end_lineno], ""))
    return edits


def function_names(source: str) -> frozenset[str]:
    """The functions that a source defines at its top level."""
    return frozenset(node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))


def specialise(source: str, names: Iterable[str]) -> str:
    """The module's source with the named functions specialised to the calls that it has."""
    own = frozenset(names)
    for _ in range(ROUNDS):
        before = source
        for find in (bindings, folds, unreferenced):
            source = apply(source, find(source, own))
        if source == before:
            break
    return source
