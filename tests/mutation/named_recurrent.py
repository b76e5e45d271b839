"""Named faults of recurrent state: what public reports and the papers warn of, each to be found by `specc check`.

.venv/bin/python -m tests.mutation.hunt --recurrent --output specc/bench/results/mutation-named-recurrent.json
"""

from __future__ import annotations

from tests.mutation.named import Fault

KERNELS = "backends/reference/kernels/"
STALE_OLD = """    state = flush(state)
    parts: list[Tensor] = []
    for value, slot in zip(state, SLOTS.values(), strict=True):
        if value.dim() >= CACHE_DIMENSIONS:
"""
STALE_NEW = """    parts: list[Tensor] = []
    for name, value, slot in zip(State._fields, state, SLOTS.values(), strict=True):
        if name.startswith("pending"):
            parts.append(value)
        elif value.dim() >= CACHE_DIMENSIONS:
"""

GDN, HYBRID = "gdn-15m-tree", "qwen3-next-hybrid"
SNAPSHOTS = ("commit.state=snapshots", "commit.update=immediate", "commit.window=null")
REPLAY = ("commit.state=replay", "commit.update=immediate", "commit.window=null")
IMMEDIATE = ("commit.update=immediate", "commit.window=null")
WINDOWED = ("commit.update=deferred", "commit.window=4")

RECURRENT: tuple[Fault, ...] = (
    Fault(
        "pending factors outlive their request",
        "backends/printing/runtime/rows.py",
        STALE_OLD,
        STALE_NEW,
        check=(GDN, "verify.recurrence=hybrid", *WINDOWED),
    ),
    Fault(
        "the decay of the node before (serial)",
        KERNELS + "delta_verify.py",
        "            decays[:, node],\n",
        "            decays[:, max(node - 1, 0)],\n",
        check=(GDN, "verify.recurrence=serial", *SNAPSHOTS),
    ),
    Fault(
        "the beta of the node before (serial)",
        KERNELS + "delta_verify.py",
        "            rates[:, node],\n",
        "            rates[:, max(node - 1, 0)],\n",
        check=(GDN, "verify.recurrence=serial", *SNAPSHOTS),
    ),
    Fault(
        "the mask is applied after exp (tree)",
        KERNELS + "delta_verify.py",
        '    ratio = ratio.masked_fill(~shown, float("-inf")).exp()\n',
        "    ratio = ratio.exp() * shown\n",
        check=(GDN, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "siblings leak through the convolution",
        KERNELS + "conv.py",
        "    back = torch.cat((inside.expand(x.shape[0], -1), parent_row + before - 1), dim=1)",
        "    row = torch.arange(x.shape[1], device=device).expand_as(parent_row)\n"
        "    back = torch.cat((inside.expand(x.shape[0], -1), row + before - 1), dim=1)",
        check=(GDN, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "the flush before a plain step is forgotten",
        "passes/fuse_deferred_state_update/__init__.py",
        'FLUSH_FIRST = ("prefill", "decode")',
        'FLUSH_FIRST = ("prefill",)',
        check=(GDN, "verify.recurrence=hybrid", *WINDOWED),
    ),
    Fault(
        "the window of pending factors is off by one",
        "passes/fuse_deferred_state_update/windowed.py",
        "start = editor.call(aten.clamp_max.default, pending, window - 1,",
        "start = editor.call(aten.clamp_max.default, pending, window - 2,",
        check=(GDN, "verify.recurrence=hybrid", *WINDOWED),
    ),
    Fault(
        "the count of folded factors is not cleared",
        "passes/fuse_deferred_state_update/order.py",
        'return due, b.call(aten.where.self, full, nothing, count, name="still_pending")',
        'return due, b.call(aten.where.self, full, count, count, name="still_pending")',
        check=(GDN, "verify.recurrence=hybrid", *WINDOWED),
    ),
    Fault(
        "factors are folded and act as ancestors too (tree)",
        KERNELS + "delta_pending.py",
        "    waiting = count.masked_fill(count >= limit, 0)\n",
        "    waiting = count\n",
        check=(GDN, "verify.recurrence=tree", *WINDOWED),
    ),
    Fault(
        "the folded state is not written back",
        KERNELS + "delta_pending.py",
        "    state[due] = tile[due].to(state.dtype)\n",
        "    state[due] = state[due]\n",
        check=(GDN, "verify.recurrence=hybrid", *WINDOWED),
    ),
    Fault(
        "G instead of g in the commit",
        KERNELS + "delta.py",
        "    decay = g.exp()\n",
        "    decay = g.cumsum(1).exp()\n",
        check=(GDN, "verify.recurrence=hybrid", *WINDOWED),
    ),
    Fault(
        "beta is left out of u (tree)",
        KERNELS + "delta_verify.py",
        "    u = inverse @ (rate * (values - decay * old[1]))\n",
        "    u = inverse @ (values - decay * old[1])\n",
        check=(GDN, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "q is not scaled against the state (tree)",
        KERNELS + "delta_verify.py",
        "    old = queries @ state.mT, keys @ state.mT\n",
        "    old = queries * float(queries.shape[-1]) ** 0.5 @ state.mT, keys @ state.mT\n",
        check=(GDN, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "light chains start from the committed state (hybrid)",
        KERNELS + "delta_verify.py",
        "            tile = branches[parents[chain[0]]].clone()\n",
        "            tile = branches[0].clone()\n",
        check=(GDN, "verify.recurrence=hybrid", *WINDOWED),
    ),
    Fault(
        "the committed window is one row short",
        KERNELS + "conv.py",
        "        torch.cat((window, rows[batch, path]), dim=1), count, window.shape[1]\n",
        "        torch.cat((window, rows[batch, path]), dim=1), (count - 1).clamp(min=0), window.shape[1]\n",
        check=(GDN, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "window and state follow different paths",
        "specc/lower/commit.py",
        'n.call(ops.conv_commit, n["window"], n["rows"], n["path"], n["count"])',
        'n.call(ops.conv_commit, n["window"], n["rows"], n.call(aten.cumsum.default, '
        'n.call(aten.ones_like.default, n["path"]), 1), n["count"])',
        check=(GDN, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "the window keeps the padding of a ragged prompt",
        KERNELS + "conv.py",
        "    return y, last_rows(rows, live.sum(dim=1), before)\n",
        "    return y, rows[:, tokens:].clone()\n",
        check=(GDN, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "padding of a ragged prompt enters the state",
        "specc/lower/mixers.py",
        "            g, beta = (b.call(aten.where.self, shown, value, nothing) for value in (g, beta))\n",
        "            g, beta = (b.call(aten.where.self, shown, value, value) for value in (g, beta))\n",
        check=(GDN, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "the state at accept_length - 1 instead of the last accepted node",
        "specc/lower/commit.py",
        'n.call(aten.index.Tensor, n["state_candidate"], [n["batch"], node])',
        'n.call(aten.index.Tensor, n["state_candidate"], [n["batch"], last])',
        check=(GDN, "verify.recurrence=serial", *SNAPSHOTS),
    ),
    Fault(
        "replay goes one node behind the path",
        "specc/lower/commit.py",
        'live = n.call(aten.lt.Tensor, place, n.call(aten.unsqueeze.default, n["count"], 1))',
        'live = n.call(aten.le.Tensor, place, n.call(aten.unsqueeze.default, n["count"], 1))',
        check=(GDN, "verify.recurrence=replay", *REPLAY),
    ),
    Fault(
        "the state of another layer of the period",
        "specc/lower/commit.py",
        'sliced = {name: b.slot(prefix + name) for name in ("state", *CANDIDATES[ctx.state_commit])}',
        'sliced = {name: b.slot(prefix + name) for name in ("state", *CANDIDATES[ctx.state_commit])}\n'
        '    sliced["state"] = b.slot("l0_state" if prefix else "state")',
        check=(HYBRID, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "the eps of the l2 norm stands outside the sum",
        "specc/ir/ops/delta_math.py",
        "torch.rsqrt((wide * wide).sum(-1, keepdim=True) + EPS)",
        "(1 / ((wide * wide).sum(-1, keepdim=True).sqrt() + EPS))",
        check=(GDN, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "value heads read the keys of other heads",
        "specc/ir/ops/delta_math.py",
        "return normed.repeat_interleave(value_heads // x.shape[-2], dim=-2)",
        "return normed.repeat(*[1] * (x.dim() - 2), value_heads // x.shape[-2], 1)",
        check=(HYBRID, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "the block recursion stops one doubling early (tree)",
        "specc/ir/ops/delta_math.py",
        "    while half < size:\n",
        "    while 2 * half < size:\n",
        check=(GDN, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "a chunk does not decay the state it carries",
        KERNELS + "delta.py",
        "        tile *= decay[..., -1:, :]\n",
        "        tile *= decay[..., :1, :]\n",
        check=(GDN, "verify.recurrence=tree", *IMMEDIATE),
    ),
    Fault(
        "the output gate is a sigmoid",
        "specc/lower/delta.py",
        'b.call(aten.mul.Tensor, normed, b.call(aten.silu.default, gate), name="gated")',
        'b.call(aten.mul.Tensor, normed, b.call(aten.sigmoid.default, gate), name="gated")',
        check=(GDN, "verify.recurrence=tree", *IMMEDIATE),
    ),
)
