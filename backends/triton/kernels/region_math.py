"""Device functions that generated kernels of small values call: rounding, exact integer division, trees, selections."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from specc.backends.triton.kernels.dot import INTERPRETED, bfloat16
from specc.backends.triton.kernels.numbers import is_nan


@triton.jit
def follow():
    """Wait for the kernel in front of this one; only then let the next one start beside it."""
    if not INTERPRETED:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def round_bfloat16(x):
    """Float32 rounded to the nearest bfloat16, as float32."""
    return bfloat16(x.to(tl.float32)).to(tl.float32)


@triton.jit
def lanes(x, place):
    """x read as one line, at the places given. (A gather in one dim: those in more fail to compile in some layouts.)"""
    return tl.reshape(tl.gather(tl.ravel(x), tl.ravel(place), 0), place.shape)


@triton.jit
def floor_div(a, b):
    """The integer quotient rounded down (as torch rounds; Triton's own rounds to zero on the device)."""
    quotient = a // b
    rest = a - quotient * b
    return quotient - ((rest != 0) & ((rest < 0) != (b < 0))).to(quotient.dtype)


@triton.jit
def floor_mod(a, b):
    """The rest of `floor_div`, with the sign of b."""
    return a - floor_div(a, b) * b


@triton.jit
def wrapped(place, SIZE: tl.constexpr):
    """A place that is off by less than SIZE, within 0 … SIZE - 1."""
    place = tl.where(place < 0, place + SIZE, place)
    return tl.where(place >= SIZE, place - SIZE, place)


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x) of float32."""
    return tl.div_rn(tl.full([], 1.0, tl.float32), 1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    """x / (1 + e^-x) of float32."""
    return tl.div_rn(x, 1.0 + tl.exp(-x))


@triton.jit
def log1p(x):
    """log(1 + x) of float32 x >= 0, to the last bits for small x too (Kahan's correction)."""
    total = 1.0 + x
    above = total - 1.0
    scale = tl.where(above == 0.0, 1.0, above)
    return tl.where(above == 0.0, x, tl.log(total) * tl.div_rn(x, scale))


@triton.jit
def softplus(x):
    """log(1 + e^x) of float32, x itself above 20."""
    return tl.where(x > 20.0, x, log1p(tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def tree_ancestors(parent_row, valid, NODES: tl.constexpr, SIZE: tl.constexpr, STEPS: tl.constexpr):
    """Ancestor-or-self closure [SIZE,SIZE] of one tree of NODES <= SIZE nodes, SIZE <= 64 a power of two.

    parent_row [SIZE]: row of the parent, node i is row i + 1, row 0 is the committed context; valid bool [SIZE].
    A node's ancestors are the bits of an integer, so that each of the STEPS doublings moves one number per node.
    """
    node = tl.arange(0, SIZE)
    above = tl.where(valid & (node < NODES), parent_row.to(tl.int32) - 1, -1)
    bits = tl.full([SIZE], 1, tl.int64) << node.to(tl.int64)
    for _ in tl.static_range(STEPS):
        place = tl.maximum(above, 0) & (SIZE - 1)
        bits = tl.where(above >= 0, bits | tl.gather(bits, place, 0), bits)
        above = tl.where(above >= 0, tl.gather(above, place, 0), -1)
    return ((bits[:, None] >> node.to(tl.int64)[None, :]) & 1) != 0


@triton.jit
def packed_places(chosen, COUNT: tl.constexpr, SIZE: tl.constexpr, NODES_SIZE: tl.constexpr):
    """Where candidates go in a packed tree: number [SIZE] (1, 2, … of the chosen ones, else 0), filled [NODES_SIZE]
    and the candidate of each filled node."""
    candidate = tl.arange(0, SIZE)
    kept = chosen & (candidate < COUNT)
    number = tl.cumsum(kept.to(tl.int32), 0) * kept.to(tl.int32)
    place = tl.arange(0, NODES_SIZE)
    hit = (number[None, :] == place[:, None]) & kept[None, :]
    source = tl.sum(tl.where(hit, candidate[None, :], 0), 1)
    return number, tl.max(hit.to(tl.int32), 1) != 0, source


@triton.jit
def packed_parents(number, filled, source, parent, COUNT: tl.constexpr, SIZE: tl.constexpr, NODES_SIZE: tl.constexpr):
    """Parents [NODES_SIZE] of the nodes of a packed tree, renumbered: -1 for the root, 0 for padding."""
    inside = (parent >= 0) & (parent < COUNT)
    above = tl.gather(number, tl.where(inside, parent, 0).to(tl.int32) & (SIZE - 1), 0)
    above = tl.where(inside, above, 0)
    moved = tl.gather(above, source & (SIZE - 1), 0)
    node = tl.arange(0, NODES_SIZE)
    return tl.where(node == 0, -1, tl.where(filled, moved, 0)).to(tl.int64)


@triton.jit
def packed_values(values, filled, source, SIZE: tl.constexpr):
    """values [SIZE] of the candidates of packed nodes; 0 where there is none."""
    return tl.where(filled, tl.gather(values, source & (SIZE - 1), 0), 0)


@triton.jit
def ranks(keys, COUNT: tl.constexpr, SIZE: tl.constexpr):
    """int64 [SIZE]: how many of the first COUNT keys are greater, or equal and before."""
    place = tl.arange(0, SIZE)
    mine, other = keys[:, None], keys[None, :]
    earlier = place[None, :] < place[:, None]
    better = ((other > mine) | ((other == mine) & earlier)) & (place < COUNT)[None, :]
    return tl.sum(better.to(tl.int32), 1).to(tl.int64)


@triton.jit
def best_places(
    keys, K: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, K_SIZE: tl.constexpr
):
    """int32 [ROWS,K_SIZE]: places of the K greatest of the first COUNT keys [ROWS,SIZE] of each row, ties by place."""
    place = tl.arange(0, SIZE)[None, :]
    # The least value is kept for places that were taken, or are none.
    left = tl.where(place < COUNT, above_lowest(keys), lowest(keys))
    found = tl.full([ROWS, K_SIZE], 0, tl.int32)
    for turn in range(K):
        first = tl.argmax(left, 1, tie_break_left=True)
        found = tl.where(tl.arange(0, K_SIZE)[None, :] == turn, first[:, None], found)
        left = tl.where(place == first[:, None], lowest(keys), left)
    return found


@triton.jit
def ones(word):
    """How many bits of each uint32 are set."""
    if not INTERPRETED:
        return tl.inline_asm_elementwise(
            "popc.b32 $0, $1;", "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1
        )  # fmt: skip
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    word = word + (word >> 8)
    return ((word + (word >> 16)) & 63).to(tl.int32)


@triton.jit
def last_places(marked, NONE: tl.constexpr, COUNT: tl.constexpr, SIZE: tl.constexpr, K_SIZE: tl.constexpr):
    """int32 [K_SIZE]: the last of the first COUNT places that are marked, last first, then NONE; `marked` bool [SIZE].

    Marks are kept as bits of words: the words' counts say which word a place is in, and its bits which place it is.
    """
    GROUPS: tl.constexpr = SIZE // 32
    kept = (marked & (tl.arange(0, SIZE) < COUNT)).to(tl.uint32)
    word = tl.sum(tl.reshape(kept, [GROUPS, 32]) << tl.arange(0, 32)[None, :].to(tl.uint32), 1)
    count = ones(word)
    upto = tl.cumsum(count, 0)
    behind = (tl.sum(count, 0) - upto)[None, :]
    turn = tl.arange(0, K_SIZE)[:, None]
    inside = (turn >= behind) & (turn < behind + count[None, :])
    mine = tl.sum(tl.where(inside, word[None, :], 0), 1)
    start = tl.sum(tl.where(inside, tl.arange(0, GROUPS)[None, :] * (32 * 256) + behind, 0), 1)
    bit = tl.arange(0, 32)[None, :]
    shifted = mine[:, None] >> bit.to(tl.uint32)
    hit = ((shifted & 1) != 0) & (ones(shifted >> 1) == turn - (start & 255)[:, None])
    return tl.max(tl.where(hit, (start >> 8)[:, None] + bit, NONE), 1)


@triton.jit
def suffix_ends(history, length, LEAST: tl.constexpr, MOST: tl.constexpr, COUNT: tl.constexpr, SIZE: tl.constexpr):
    """bool [SIZE]: the places of a text right in front of which its longest suffix ends too that stands there again.

    The text is history[: length + 1] of int64 tokens, of which the lower halves are read; suffixes have LEAST … MOST
    tokens. All loads start before anything is compared: the compiler would else wait for each of them in turn.
    """
    place = tl.arange(0, SIZE)
    low = history.to(tl.pointer_type(tl.int32))
    tokens, last = (), ()
    for step in tl.static_range(MOST):
        tokens = tokens + (tl.load(low + 2 * tl.maximum(place - (step + 1), 0), mask=place < COUNT, other=0),)
        last = last + (tl.load(low + 2 * tl.minimum(tl.maximum(length - step, 0), COUNT - 1)),)
    tl.debug_barrier()
    alive = (place <= length) & (place < COUNT)
    matched = tl.zeros([SIZE], tl.int32)
    for step in tl.static_range(MOST):
        alive = alive & (place > step) & (tokens[step] == last[step])
        matched += alive.to(tl.int32)
    longest = tl.max(matched, 0)
    return (matched == longest) & (longest >= LEAST)


@triton.jit
def lookup_nodes(history, length, first, MATCHES: tl.constexpr, STEPS: tl.constexpr, CHILDREN: tl.constexpr,
                 COUNT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, NODES: tl.constexpr):  # fmt: skip
    """(token int64, parent int32, filled bool) [NODES] of the trie of what follows the places `first` [WIDTH] (-1:
    none) of a text, STEPS tokens each; see `specc.ir.ops.lookup_tree`. Node 0 is left to the caller.

    Columns are continuations. Each leaves those before it somewhere and ends somewhere; its nodes lie between. It is
    cut off if a continuation that it leaves, or is, was one child too many.
    """
    low = history.to(tl.pointer_type(tl.int32))
    step = tl.arange(0, DEPTH)[:, None]
    place = first[None, :] + step
    inside = (place <= length) & (first[None, :] >= 0) & (step < STEPS) & (tl.arange(0, WIDTH)[None, :] < MATCHES)
    token = tl.where(inside, tl.load(low + 2 * place, mask=inside & (place < COUNT), other=0), -1)
    differ = (token[:, :, None] != token[:, None, :]) | (token[:, :, None] < 0)
    shared = tl.min(tl.where(differ, tl.arange(0, DEPTH)[:, None, None], STEPS), 0)
    before = tl.arange(0, WIDTH)[:, None] < tl.arange(0, WIDTH)[None, :]
    leaves, ends = tl.max(tl.where(before, shared, 0), 0), tl.max(shared, 0)
    here, there = leaves[None, :], leaves[:, None]
    siblings = before & (shared >= here) & (there <= here) & (here < ends[:, None])
    full = tl.sum(siblings.to(tl.int32), 0) >= CHILDREN
    cut = tl.max(((shared > there) & full[:, None]).to(tl.int32), 0) != 0
    count = tl.where(cut, 0, ends - leaves)
    start = tl.sum(tl.where(before, count[:, None], 0), 0)
    owner = before & (shared >= here) & (there < here)
    above = tl.sum(tl.where(owner, start[:, None] + here - there, 0), 0)
    node, begin = tl.arange(0, NODES)[None, :], start[:, None]
    hit = (begin < node) & (node <= begin + count[:, None])
    parent = tl.where(node == begin + 1, above[:, None], node - 1)
    source = first[:, None] + there + node - 1 - begin
    packed = tl.sum(tl.where(hit, source * 128 + parent * 2 + 1, 0), 0)
    filled = (packed & 1) != 0
    return tl.load(history + (packed >> 7), mask=filled, other=0), (packed >> 1) & 63, filled


@triton.jit
def greedy_walk(choice, token, parent, valid, NODES: tl.constexpr, SIZE: tl.constexpr, LONGEST: tl.constexpr):
    """(path [LONGEST], accepted nodes, the last of them, the token after it), int64; see `specc.ir.ops.greedy_tree`.

    choice [SIZE]: the best token at each node. Whether a node fits its parent is found for all at once; the walk itself
    then compares small numbers only, of up to 16 nodes the bits of two numbers.
    """
    node, turn = tl.arange(0, SIZE), tl.arange(0, LONGEST)
    above = parent.to(tl.int32)
    agrees = valid & (token == tl.gather(choice, above & (SIZE - 1), 0)) & (node < NODES)
    after = tl.where(agrees, above, -2)
    marks = tl.sum(agrees.to(tl.int64) << node, 0)
    parents = tl.sum((above & 15).to(tl.int64) << (4 * node), 0)
    current, count = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    path = tl.zeros([LONGEST], tl.int32)
    for place in tl.static_range(1, NODES):
        if SIZE <= 16:
            accepted = (((marks >> place) & 1) != 0) & (((parents >> (4 * place)) & 15).to(tl.int32) == current)
        else:
            accepted = tl.sum(tl.where(node == place, after, 0), 0) == current
        count += accepted.to(tl.int32)
        path = tl.where((turn == count) & accepted, place, path)
        current = tl.where(accepted, place, current)
    bonus = tl.sum(tl.where(node == current, choice, 0), 0)
    return path.to(tl.int64), count.to(tl.int64), current.to(tl.int64), bonus


@triton.jit
def lowest(keys):
    """The least value of the dtype of `keys`."""
    if keys.dtype == tl.int64:
        return tl.full([], -9223372036854775808, tl.int64)
    else:
        return tl.full([], float("-inf"), tl.float32)


@triton.jit
def above_lowest(keys):
    """Keys with the next greater value in the place of the least."""
    if keys.dtype == tl.int64:
        return tl.maximum(keys, -9223372036854775807)
    else:
        return tl.maximum(keys, -3.4028234663852886e38)


@triton.jit
def greatest(x, AXIS: tl.constexpr):
    """The maximum of floats along an axis, NaN where there is one."""
    return tl.where(tl.max(is_nan(x).to(tl.int32), AXIS) != 0, float("nan"), tl.max(x, AXIS))


@triton.jit
def ordered(scores):
    """NaN counts as -inf."""
    return tl.where(is_nan(scores), float("-inf"), scores)


@triton.jit
def wide_shift(x, BITS: tl.constexpr):
    """Logical right shift of int64."""
    return (x.to(tl.uint64, bitcast=True) >> BITS).to(tl.int64, bitcast=True)


@triton.jit
def mixed(x):
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014) on int64."""
    x = (x ^ wide_shift(x, 30)) * -4658895280553007687
    x = (x ^ wide_shift(x, 27)) * -7723592293110705685
    return x ^ wide_shift(x, 31)


@triton.jit
def uniform_of(rng, position, draw):
    """float64 in [0, 1), a function of three int64 counters alone."""
    golden = tl.full([], -7046029254386353131, tl.int64)
    state = mixed(rng + golden)
    state = mixed(state + (position + 1) * golden)
    state = mixed(state + (draw + 1) * golden)
    return wide_shift(state, 11).to(tl.float64) * 1.1102230246251565e-16
