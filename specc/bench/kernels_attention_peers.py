"""Peers of the attention kernels, on the same inputs: torch's SDPA and FlexAttention, and SGLang's Triton kernels.

SGLang is installed apart and never vendored: of its package only `layers/attention/triton_ops` has to be on the path
(wheel 0.5.14, unpacked); the one module of the server that these files import is replaced by its three questions about
the device. Its split-KV verify kernel takes chains only: it is compared on chains, as it comes and with other splits.
"""

from __future__ import annotations

import importlib
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specc.bench.gpu_timing import Row, checked, error, guarded, sets_for
from specc.bench.kernels_attention_cases import Inputs, Point, exact, inputs, repeated

BOUND = 6e-3
"""Of a peer's bfloat16 output: some round more than once."""
SGLANG = "sglang.srt.layers.attention.triton_ops"
FLEXED = {(16, 1, 1024), (16, 1, 32768), (16, 8, 32768), (16, 32, 4096), (64, 1, 32768)}
"""(nodes, batch, context) of the points at which FlexAttention is measured."""
SPLITS = ((16, 64, 4), (32, 32, 4), (32, 64, 4), (64, 32, 4))
"""(splits, columns a step, warps) to try of the split-KV verify kernel beside its own choice."""
Run = Callable[[], Tensor]


def visible(one: Inputs, total: int) -> Tensor:
    """bool [B,N,total] of what every node sees of committed and new rows."""
    batch, nodes = one.q.shape[:2]
    seen = torch.ones(batch, nodes, total, dtype=torch.bool, device=one.q.device)
    chain = torch.ones(nodes, nodes, dtype=torch.bool, device=one.q.device).tril()
    seen[..., total - nodes :] = chain if one.mask is None else one.mask
    return seen


def folded(one: Inputs) -> Tensor:
    """q as [B,Hkv,G*N,D]: heads that share keys become rows, so that nothing is repeated."""
    batch, nodes, _, dim = one.q.shape
    shared = one.k_cache.shape[2]
    return one.q.view(batch, nodes, shared, -1, dim).permute(0, 2, 3, 1, 4).reshape(batch, shared, -1, dim)


def unfolded(o: Tensor, like: Tensor) -> Tensor:
    """Back to [B,N,Hq,D]."""
    nodes = like.shape[1]
    return o.view(*o.shape[:2], -1, nodes, o.shape[-1]).permute(0, 3, 1, 2, 4).reshape(like.shape)


def sdpa(one: Inputs, point: Point) -> Run:
    """Scaled dot product attention with a mask of all columns, made beforehand."""
    total, group = point.context + point.nodes, point.heads // point.shared
    mask = visible(one, total).unsqueeze(1).repeat(1, 1, group, 1)
    k, v = (x[:, :total].transpose(1, 2) for x in (one.k_cache, one.v_cache))
    return lambda: unfolded(F.scaled_dot_product_attention(folded(one), k, v, attn_mask=mask), one.q)


def prefix_block(one: Inputs, point: Point) -> Run:
    """Flash attention over the committed rows, a small masked product over the new ones, joined by log-sum-exp."""
    scale, group = point.dim**-0.5, point.heads // point.shared
    k, v = (x[:, : point.context].transpose(1, 2) for x in (one.k_cache, one.v_cache))
    k_new, v_new = (
        x[:, point.context : point.context + point.nodes].transpose(1, 2) for x in (one.k_cache, one.v_cache)
    )
    hidden = ~visible(one, point.nodes).unsqueeze(1).repeat(1, 1, group, 1)

    def run() -> Tensor:
        q = folded(one)
        o, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False, False, scale=scale)[:2]
        scores = ((q @ k_new.transpose(2, 3)).float() * scale).masked_fill(hidden, float("-inf"))
        share = torch.sigmoid(lse - scores.logsumexp(-1)).unsqueeze(-1)
        block = scores.softmax(-1).to(q.dtype) @ v_new
        return unfolded((share * o + (1 - share) * block).to(q.dtype), one.q)

    return run


@cache
def flex_compiled() -> tuple[Any, Any]:
    """(flex_attention compiled, create_block_mask)."""
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    return torch.compile(flex.flex_attention, dynamic=False), flex.create_block_mask


@cache
def flex_mask(point: Point) -> Callable[[], Any]:
    """Makes the block mask of a point's committed rows and tree."""
    one, nodes = inputs(point, 0), point.nodes
    tree, length = visible(one, nodes), one.length

    def seen(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        node = kv - length[b]
        return (node < 0) | tree[b, q, node.clamp(0, nodes - 1)]

    return partial(flex_compiled()[1], seen, point.batch, None, nodes, point.context + nodes, device=one.q.device)


@cache
def flex_made(point: Point) -> Any:
    """The block mask, once."""
    return flex_mask(point)()


def flex(one: Inputs, point: Point) -> Run:
    """FlexAttention with the tree as mask_mod; the block mask is made beforehand."""
    attention, made = flex_compiled()[0], flex_made(point)
    q = one.q.transpose(1, 2)
    k, v = (x[:, : point.context + point.nodes].transpose(1, 2) for x in (one.k_cache, one.v_cache))
    return lambda: attention(q, k, v, block_mask=made, scale=point.dim**-0.5, enable_gqa=True).transpose(1, 2)


def flex_mask_us(point: Point, rounds: int = 5) -> float:
    """What making the block mask takes by the clock: the lengths change with every step, so a step has to."""
    make = flex_mask(point)
    make()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(rounds):
        make()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e6 / rounds


@cache
def sglang(name: str) -> Any:
    """A file of SGLang's `triton_ops`. Raises ImportError where it is not on the path."""
    if "sglang.srt.utils" not in sys.modules:
        importlib.import_module(SGLANG)
        stand_in = types.ModuleType("sglang.srt.utils")
        for question, answer in (("is_cuda", True), ("is_hip", False), ("is_gfx95_supported", False)):
            setattr(stand_in, question, partial(bool, answer))
        sys.modules["sglang.srt.utils"] = stand_in
    return importlib.import_module(f"{SGLANG}.{name}")


def sglang_operands(one: Inputs, point: Point) -> list[Any]:
    """q, new K and V, output, pools, and the three index tensors, as its kernels take them."""
    batch, nodes, context = point.batch, point.nodes, point.context
    capacity = one.k_cache.shape[1]
    k_new, v_new = (x[:, context : context + nodes].reshape(-1, *x.shape[2:]) for x in (one.k_cache, one.v_cache))
    first = torch.arange(batch, device=one.q.device).unsqueeze(1) * capacity
    where = (first + torch.arange(context, device=one.q.device)).flatten()
    steps = torch.arange(batch + 1, device=one.q.device, dtype=torch.int32)
    q = one.q.flatten(0, 1)
    return [q, k_new, v_new, torch.empty_like(q), one.k_cache.flatten(0, 1), one.v_cache.flatten(0, 1),
            steps * nodes, steps * context, where]  # fmt: skip


def sglang_extend(one: Inputs, point: Point) -> Run:
    """Its extend kernel with a custom mask of which only the tree's part is read."""
    kernel = sglang("extend_attention").extend_attention_fwd
    given, total = sglang_operands(one, point), point.context + point.nodes
    mask = visible(one, total).flatten().to(torch.uint8)
    starts = torch.arange(point.batch + 1, device=one.q.device) * (point.nodes * total)

    def run() -> Tensor:
        kernel(*given, mask, True, starts, point.nodes, 1.0, 1.0, point.dim**-0.5)
        return given[3].view(one.q.shape)

    return run


def sglang_verify(one: Inputs, point: Point, choice: tuple[int, int, int] | None) -> Run:
    """Its split-KV verify kernel on a chain; `choice`: splits, columns a step and warps, None: its own."""
    module = sglang("verify_splitkv")
    given = sglang_operands(one, point)
    columns, warps = module.block_config(point.dim)
    splits = module.choose_n_splits(point.context)
    if choice is not None:
        splits, columns, warps = choice
    made = module.VerifySplitKV(point.batch, point.heads, point.shared, point.dim, point.dim, point.nodes,
                                n_splits=splits, block_n=columns, num_warps=warps)  # fmt: skip

    def run() -> Tensor:
        q, k_new, v_new, out, k, v, *index = given
        made(q, k_new, v_new, k, v, *index, point.dim**-0.5, o_out=out)
        return out.view(one.q.shape)

    return run


def peers_of(point: Point) -> dict[str, Callable[[Inputs, Point], Run]]:
    """What can be asked about a point. FlexAttention takes long to compile: only where `FLEXED` has the point."""
    if point.page:
        return {}
    joined: dict[str, Callable[[Inputs, Point], Run]] = {"prefix + block + LSE": prefix_block}
    if point.chain:
        # Its second kernel holds splits x nodes rows in the registers of one warp.
        chosen = [choice for choice in SPLITS if choice[0] * point.nodes <= 256]
        tuned = {f"sglang verify_splitkv {choice}": partial(sglang_verify, choice=choice) for choice in chosen}
        return joined | {"sglang verify_splitkv": partial(sglang_verify, choice=None)} | tuned
    joined |= {"SDPA with mask": sdpa, "sglang extend_attention": sglang_extend}
    if point.dim != 128 or (point.nodes, point.batch, point.context) not in FLEXED:
        return joined
    return joined | {"FlexAttention": flex}


def warm_up_peer(point: Point, name: str) -> None:
    """Compile what a peer needs at a point, in a process of its own."""
    torch.cuda.set_device(0)
    peers_of(point)[name](inputs(point, 0), point)()
    torch.cuda.synchronize()


def peer_rows(point: Point) -> Iterator[Row]:
    """All peers at one point, each checked against float64 first."""
    chosen = peers_of(point)
    if not chosen:
        return
    many = [inputs(point, seed) for seed in range(sets_for(point.read_bytes, 64))]
    expected = exact(many[0])
    for name, make in chosen.items():
        runs: list[Run] = []

        def errors(make: Any = make, runs: list[Run] = runs) -> dict[str, float]:
            runs.append(make(many[0], point))
            return {"o": error(runs[0](), expected)}

        def rest(make: Any = make, runs: list[Run] = runs) -> list[Run]:
            return repeated([*runs, *(make(one, point) for one in many[1:])], point)

        yield checked({"peer": name, **point.label}, errors, {"o": BOUND}, rest, point.read_bytes)
    if "FlexAttention" in chosen:
        label = {"peer": "FlexAttention: its block mask", **point.label}
        yield from guarded(label, (label | {"us": flex_mask_us(at)} for at in (point,)))
