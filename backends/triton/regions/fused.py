"""Ops of several steps: norms, rotary embeddings, ancestors, rankings, packing of trees, counter-based randomness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from specc.backends.printing.naming import wanted_name
from specc.backends.triton.kernels import region_math
from specc.backends.triton.regions.pointwise import cast
from specc.backends.triton.regions.reduce import masked
from specc.backends.triton.regions.values import Block, Memory, Parts, Unsupported, Value, contiguous, padded
from specc.backends.triton.regions.writer import Writer
from specc.ir import ops
from specc.ir.scope import named_arguments

aten = torch.ops.aten
LARGEST_TREE = 64
LONGEST_SCORES = 1024


def rms_norm(w: Writer, node: Node) -> Block:
    """x / sqrt(mean(x^2) + eps) * weight over the last dim, in float32, rounded once."""
    given = named_arguments(node)
    dtype = node.meta["val"].dtype
    eps = given.get("eps")
    block = w.block(given["input"])
    if len(given["normalized_shape"]) != 1 or not block.shape or eps is None or dtype == torch.float64:
        raise Unsupported("a norm of this form")
    dim, size = len(block.shape) - 1, block.shape[-1]
    block = w.full(block, [dim])
    if dim not in block.axes:
        raise Unsupported("a norm over one element")
    name, place = wanted_name(node), block.axes.index(dim)
    axes = tuple(axis for axis in block.axes if axis != dim)
    square = Block(f"({block.text} * {block.text})", torch.float32, block.shape, block.axes, block.lead)
    sums = w.let(
        f"{name}_sum",
        f"tl.sum({masked(w, square, dim, '0.0')}, {place})",
        torch.float32,
        block.shape[:-1],
        axes,
        block.lead,
    )
    mean = f"tl.div_rn({sums.text}, tl.full([], {float(size)}, tl.float32)) + {eps!r}"
    scale = w.let(f"{name}_scale", f"tl.rsqrt({mean})", torch.float32, sums.shape, axes, block.lead)
    text = f"{block.text} * {w.spread_text(scale.text, axes, block.axes)}"
    if given.get("weight") is not None:
        weight = w.block(given["weight"])
        text = f"{text} * {w.spread(weight, block.shape, block.axes)}"
    return w.let(name, w.rounded(text, dtype), dtype, block.shape, block.axes, block.lead)


def rope(w: Writer, node: Node) -> Parts:
    """specc.rope: the two halves of each head, rotated."""
    given = named_arguments(node)
    x, dtype = w.value(given["x"]), node.meta["val"].dtype
    if len({given[key].meta["val"].dtype for key in ("x", "cos", "sin")}) != 1 or dtype == torch.float64:
        raise Unsupported("a rotation in mixed dtypes")
    dim = len(x.shape) - 1
    half = x.shape[dim] // 2
    if half * 2 != x.shape[dim] or half < 2:
        raise Unsupported("an odd head")
    first, second = (w.block(w.window(x, dim, start, half)) for start in (0, half))
    tables = [w.block(given[key]) for key in ("cos", "sin")]
    # The tables [B,M,D/2] have no dim for heads: their dims but the last stand before it.
    own = [(*range(dim - 1), dim)[-len(table.shape) :] for table in tables]
    placed = [tuple(dims[axis] for axis in table.axes) for dims, table in zip(own, tables, strict=True)]
    axes = tuple(sorted({*first.axes, *placed[0], *placed[1]}))
    cos, sin = (w.spread_text(table.text, at, axes) for table, at in zip(tables, placed, strict=True))
    name, shape = wanted_name(node), first.shape

    def product(left: str, right: str) -> str:
        return w.rounded(f"{left} * {right}", dtype)

    texts = (
        f"{product(first.text, cos)} - {product(second.text, sin)}",
        f"{product(second.text, cos)} + {product(first.text, sin)}",
    )
    halves = tuple(w.let(name, w.rounded(text, dtype), dtype, shape, axes, first.lead) for text in texts)
    return Parts(halves, dim, x.shape, dtype, first.lead)


def rope_tables(w: Writer, node: Node) -> tuple[Value, ...]:
    """specc.rope_tables: cosines and sines of position times frequency; the frequencies come from torch."""
    given = named_arguments(node)
    dtype = given["dtype"]
    if dtype == torch.float64:
        raise Unsupported("angles in float64")
    at = cast(w, w.block(given["positions"]), torch.float32)
    half = given["dim"] // 2
    call = f"frequencies({given['dim']}, {given['theta']!r}, {tuple(given['scaling'])!r}, {{device}})"
    pointer = w.table("frequencies", call)
    shape = (*at.shape, half)
    axes, read = at.axes, f"tl.load({pointer})"  # a head of two dims has one frequency, which needs no axis
    if half > 1:
        axes, lane = (*at.axes, len(at.shape)), w.arange(padded(half))
        guard = f", mask={lane} < {half}, other=0" if padded(half) != half else ""
        read = f"tl.load({pointer} + {lane}{guard})"
    own = axes[len(at.axes) :]
    frequency = w.let("frequency", read, torch.float32, (half,), (0,) if own else (), 0)
    angle = w.let(
        "angle",
        f"{w.spread_text(w.typed(at), at.axes, axes)} * {w.spread_text(frequency.text, own, axes)}",
        torch.float32,
        shape,
        axes,
        at.lead,
    )
    return tuple(
        w.let(name, w.rounded(f"tl.{name}({angle.text})", dtype), dtype, shape, axes, at.lead)
        for name in ("cos", "sin")
    )


def ancestor_mask(w: Writer, node: Node) -> Block:
    """specc.ancestor_mask, of trees of up to 64 nodes."""
    given = named_arguments(node)
    parent, valid = w.full(w.block(given["parent_row"])), w.full(w.block(given["valid"]))
    count = int(node.meta["val"].shape[-1])
    if count > LARGEST_TREE or w.kind.rows is not None or parent.lead != 1 or valid.lead != 1:
        raise Unsupported("a tree of this size")
    shape = (count, count)
    if count == 1:
        return Block("1", torch.bool, shape, (), 1, literal=True)
    name = w.helper(region_math.tree_ancestors)
    steps = max(count - 1, 1).bit_length()
    text = f"{name}({parent.text}, {valid.text}, NODES={count}, SIZE={padded(count)}, STEPS={steps})"
    return w.let(wanted_name(node), text, torch.bool, shape, (0, 1), 1)


def pack_tree(w: Writer, node: Node) -> tuple[Value, ...]:
    """specc.pack_tree."""
    given = named_arguments(node)
    fields = [w.full(w.block(given[key])) for key in ("chosen", "token", "parent", "log_prob")]
    chosen, token, parent, log_prob = fields
    root, nodes = w.block(given["root"]), given["nodes"]
    count = int(given["chosen"].meta["val"].shape[1])
    if w.kind.rows is not None or any(item.lead != 1 for item in fields) or count < 2 or nodes < 2:
        raise Unsupported("candidates of this form")
    size, lanes = padded(count), padded(nodes)
    places = f"{w.helper(region_math.packed_places)}({chosen.text}, COUNT={count}, SIZE={size}, NODES_SIZE={lanes})"
    number, filled, source = (w.names.fresh(name) for name in ("number", "filled", "candidate"))
    w.line(f"{number}, {filled}, {source} = {places}")
    w.largest = max(w.largest, size * lanes)
    place, shape = w.arange(lanes), (nodes,)

    def packed(block: Block) -> str:
        return f"{w.helper(region_math.packed_values)}({w.typed(block)}, {filled}, {source}, SIZE={size})"

    def made(name: str, text: str, dtype: torch.dtype) -> Block:
        return w.let(name, text, dtype, shape, (0,), 1)

    sizes = f"COUNT={count}, SIZE={size}, NODES_SIZE={lanes}"
    above = f"{w.helper(region_math.packed_parents)}({number}, {filled}, {source}, {parent.text}, {sizes})"
    return (
        made("tokens", f"tl.where({place} == 0, {w.typed(root)}, {packed(token)})", torch.int64),
        made("parent", above, torch.int64),
        made("valid", f"{filled} | ({place} == 0)", torch.bool),
        made("log_prob", packed(log_prob), log_prob.dtype),
        made("source", f"tl.where({filled}, {source} + 1, 0).to(tl.int64)", torch.int64),
    )


def _keys(w: Writer, block: Block) -> Block:
    """What scores are ordered by."""
    if not block.dtype.is_floating_point:
        return block
    if block.dtype == torch.float64:
        raise Unsupported("scores in float64")
    text = f"{w.helper(region_math.ordered)}({block.text})"
    return w.let("keys", text, block.dtype, block.shape, block.axes, block.lead)


def score_rank(w: Writer, node: Node) -> Block:
    """specc.score_rank."""
    block = w.full(w.block(node.args[0]))  # type: ignore[arg-type]
    if block.axes != (0,) or len(block.shape) != 1 or w.kind.rows is not None:
        raise Unsupported("scores of this form")
    keys, size = _keys(w, block), padded(block.shape[0])
    text = f"{w.helper(region_math.ranks)}({keys.text}, COUNT={block.shape[0]}, SIZE={size})"
    w.largest = max(w.largest, size * size)
    return w.let(wanted_name(node), text, torch.int64, block.shape, block.axes, block.lead)


def stable_topk(w: Writer, node: Node) -> tuple[Value, ...]:
    """specc.stable_topk of short rows."""
    given = named_arguments(node)
    return _best(w, w.block(given["scores"]), given["k"])


def topk(w: Writer, node: Node) -> tuple[Value, ...]:
    """`topk` whose indices nobody reads (torch leaves their order open among equals)."""
    given = named_arguments(node)
    dim = given.get("dim", -1) % len(given["self"].meta["val"].shape)
    read = any(user.args[1] == 1 and user.users for user in node.users)
    block = w.block(given["self"])
    if read or dim != len(given["self"].meta["val"].shape) - 1 or not given.get("largest", True):
        raise Unsupported("topk of this form")
    if block.dtype.is_floating_point:
        raise Unsupported("topk of floats")
    return _last_marked(w, given["self"], block, given["k"]) or _best(w, block, given["k"])


def _last_marked(w: Writer, node: Node, block: Block, k: int) -> tuple[Value, ...] | None:
    """The greatest of where(marked, 0, 1, …, none) with none below 0: the last places that are marked."""
    if node.target is not aten.where.self or node not in w.env or block.axes != (0,) or len(block.shape) != 1:
        return None
    given = named_arguments(node)
    marked, none = w.value(given["condition"]), w.value(given["other"])
    negative = isinstance(none, Block) and none.literal and none.text.startswith("-")
    if getattr(given["self"], "target", None) is not ops.iota or not negative:
        return None
    count, size = block.shape[0], padded(block.shape[0])
    mark = w.full(w.block(marked))
    if mark.axes != (0,) or mark.shape != block.shape or size < 64 or not 1 < k < 256:
        return None
    sizes = f"NONE={w.block(none).text}, COUNT={count}, SIZE={size}, K_SIZE={padded(k)}"
    text = f"{w.helper(region_math.last_places)}({mark.text}, {sizes}).to(tl.int64)"
    w.largest = max(w.largest, padded(k) * max(32, size // 32))
    return (w.let("values", text, torch.int64, (k,), (0,), block.lead), None)  # type: ignore[return-value]


def _best(w: Writer, block: Block, k: int) -> tuple[Value, ...]:
    block = w.full(block)
    keys, dim = _keys(w, block), len(block.shape) - 1
    if dim not in block.axes or dim < 0:
        raise Unsupported("the best of one")
    size, k_size = padded(block.shape[dim]), padded(k)
    if block.dtype.is_floating_point and size > LONGEST_SCORES:
        raise Unsupported("the best of a vocabulary, which takes more than one program")
    rows, flat = 1, keys
    for axis in block.axes[:-1]:
        rows *= padded(block.shape[axis])
    line = w.let("rows", f"tl.reshape({flat.text}, [{rows}, {size}])", keys.dtype, (rows, block.shape[dim]), (0, 1), 1)
    sizes = f"K={k}, COUNT={block.shape[dim]}, ROWS={rows}, SIZE={size}, K_SIZE={k_size}"
    places = w.let(
        "places", f"{w.helper(region_math.best_places)}({line.text}, {sizes})", torch.int32, (rows, k), (0, 1), 1
    )
    taken = w.moved(line, 1, f"({places.text} & {size - 1})", (rows, k_size))
    best = w.let("best", taken, keys.dtype, (rows, k), (0, 1), 1)
    shape = (*block.shape[:-1], k)
    axes = tuple(axis for axis in block.axes if axis != dim or k > 1)
    lanes = [padded(shape[axis]) for axis in axes]
    made = []
    for name, item, dtype in (("values", best, keys.dtype), ("indices", places, torch.int64)):
        text = item.text if lanes else f"tl.max({item.text}, 1)"
        text = f"tl.reshape({text}, {lanes})" if lanes else f"tl.max({text}, 0)"
        text = f"{text}.to(tl.int64)" if dtype == torch.int64 and item is places else text
        made.append(w.let(name, text, dtype, shape, axes, block.lead))
    return tuple(made)


def _named(w: Writer, name: str, text: str) -> str:
    """The name of a statement's result."""
    made = w.names.fresh(name)
    w.line(f"{made} = {text}")
    return made


def lookup_tree(w: Writer, node: Node) -> tuple[Value, ...]:
    """specc.lookup_tree of texts that one program reads."""
    given = named_arguments(node)
    history, length, root = w.value(given["history"]), w.block(given["length"]), w.block(given["root"])
    if w.kind.rows is not None or not isinstance(history, Memory) or history.dims != contiguous(history.shape):
        raise Unsupported("a text of this form")
    (count,), nodes, steps = history.shape, given["nodes"], given["steps"]
    size, width, depth, lanes = padded(count), padded(nodes - 1), padded(steps), padded(nodes)
    w.largest = max(w.largest, size)
    text = _named(w, "text", " + ".join((history.pointer, *history.offset)))
    last = _named(w, "last", f"{w.typed(length)}.to(tl.int32)")
    sizes = f"LEAST={given['least']}, MOST={given['most']}, COUNT={count}, SIZE={size}"
    ends = _named(w, "match_ends", f"{w.helper(region_math.suffix_ends)}({text}, {last}, {sizes})")
    sizes = f"NONE=-1, COUNT={count}, SIZE={size}, K_SIZE={width}"
    first = _named(w, "latest_ends", f"{w.helper(region_math.last_places)}({ends}, {sizes})")
    sizes = f"MATCHES={nodes - 1}, STEPS={steps}, CHILDREN={given['top_k']}, COUNT={count}"
    sizes += f", WIDTH={width}, DEPTH={depth}, NODES={lanes}"
    token, parent, filled = (w.names.fresh(name) for name in ("token", "above", "filled"))
    w.line(f"{token}, {parent}, {filled} = {w.helper(region_math.lookup_nodes)}({text}, {last}, {first}, {sizes})")
    place, shape = w.arange(lanes), (nodes,)
    return (
        w.let("tokens", f"tl.where({place} == 0, {w.typed(root)}, {token})", torch.int64, shape, (0,), 1),
        w.let("parent", f"tl.where({place} == 0, -1, {parent}).to(tl.int64)", torch.int64, shape, (0,), 1),
        w.let("valid", f"{filled} | ({place} == 0)", torch.bool, shape, (0,), 1),
    )


def greedy_tree(w: Writer, node: Node) -> tuple[Value, ...]:
    """specc.greedy_tree."""
    given = named_arguments(node)
    parts, tokens, valid = (w.full(w.block(given[name])) for name in ("parts", "tokens", "valid"))
    (_, nodes), longest = parts.shape, given["longest"]
    if w.kind.rows is not None or any(item.lead != 1 for item in (parts, tokens, valid)) or not 2 <= nodes <= 64:
        raise Unsupported("a tree of this form")
    keys = f"tl.max({masked(w, parts, 0, str(-(2**63)))}, 0)" if 0 in parts.axes else parts.text
    choice = w.let("target_argmax", f"0x7FFFFFFF - ({keys} & 0xFFFFFFFF)", torch.int64, (nodes,), (0,), 1)
    above = f"{w.arange(padded(nodes))} - 1" if given["parent"] is None else w.full(w.block(given["parent"])).text
    read = {user.args[1] for user in node.users if user.users}
    names = [w.names.fresh(name) for name in ("path", "count", "current", "next_token")]
    named = [name if number in read else f"_{name}" for number, name in enumerate(names)]
    sizes = f"NODES={nodes}, SIZE={padded(nodes)}, LONGEST={padded(longest)}"
    walk = f"{w.helper(region_math.greedy_walk)}({choice.text}, {tokens.text}, {above}, {valid.text}, {sizes})"
    w.line(f"{', '.join(named)} = {walk}")
    path = Block(names[0], torch.int64, (longest,), (0,), 1)
    if longest == 1:
        path = Block(f"tl.max({names[0]}, 0)", torch.int64, (1,), (), 1)
    return (path, *(Block(name, torch.int64, (), (), 1) for name in names[1:]))


def counter_uniform(w: Writer, node: Node) -> Block:
    """specc.counter_uniform."""
    given = named_arguments(node)
    rng, position = w.block(given["rng"]), w.block(given["position"])
    draw = given["draw"]
    number = w.block(draw).text if isinstance(draw, Node) else str(draw)
    text = f"{w.helper(region_math.uniform_of)}({w.typed(rng)}, {w.typed(position)}, {number})"
    return w.let(wanted_name(node), text, torch.float64, rng.shape, rng.axes, rng.lead)


FUSED: Mapping[Any, Callable[[Writer, Node], Any]] = {
    aten.rms_norm.default: rms_norm,
    aten.topk.default: topk,
    ops.rope: rope,
    ops.rope_tables: rope_tables,
    ops.ancestor_mask: ancestor_mask,
    ops.greedy_tree: greedy_tree,
    ops.lookup_tree: lookup_tree,
    ops.pack_tree: pack_tree,
    ops.score_rank: score_rank,
    ops.stable_topk: stable_topk,
    ops.counter_uniform: counter_uniform,
}
