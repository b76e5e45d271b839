"""Peers of the delta rule's kernels, where they can be imported: flash-linear-attention and SGLang's tree kernel.

They are installed apart and never vendored. Of SGLang only the file of the kernel is loaded (the package needs a whole
server's dependencies): `fused_sigmoid_gating_recurrent.py` of an installed or unpacked wheel on the path. Its launch is
timed as it comes and with other tiles and warps.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specc.bench.delta_inputs import BATCHES, GDN, QWEN, Geometry, Inputs, exact, inputs, many_inputs, random_tree
from specc.bench.gpu_timing import RATE, Row, error, guarded, timed

SGLANG = Path("sglang/srt/layers/attention/fla/fused_sigmoid_gating_recurrent.py")
POINTS = ((GDN, 16), (GDN, 8), (GDN, 32), (QWEN, 16), (QWEN, 32))
TILES = ((32, 1), (8, 1))
"""(BV, warps) of SGLang's kernel; the first is what it comes with."""


def sglang_kernel() -> Any | None:
    """SGLang's kernel, from the first place on the path that has its file."""
    for folder in sys.path:
        place = Path(folder) / SGLANG
        if place.is_file():
            found = importlib.util.spec_from_file_location("sglang_delta_kernel", place)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
            return module.fused_sigmoid_gating_delta_rule_update_kernel
    return None


def sglang_call(kernel: Any, one: Inputs, parent: torch.Tensor, buffer: torch.Tensor, tile: tuple[int, int],
                o: torch.Tensor) -> Callable[[], None]:  # fmt: skip
    """Its tree verify: every node's state goes to `buffer` [B,N,HV,V,K]. Gates: raw a, b that give our g and beta."""
    q, k, v, g, beta = one.rows
    batch, nodes, heads, keys = k.shape
    value_heads, values = v.shape[2:]
    zeros = torch.zeros(value_heads, device="cuda")
    # softplus(a) = -g with A_log = dt_bias = 0, sigmoid(b) = beta.
    a, b = torch.log(torch.expm1((-g).clamp(min=1e-6))), torch.logit(beta)
    where = torch.arange(batch, device="cuda", dtype=torch.int32)
    arguments = {
        "A_log": zeros, "a": a, "dt_bias": zeros, "softplus_beta": 1.0, "softplus_threshold": 20.0,
        "q": q, "k": k, "v": v, "b": b, "o": o, "h0_source": one.state, "h0_indices": where,
        "cu_seqlens": None, "intermediate_states_buffer": buffer, "intermediate_state_indices": where,
        "cache_steps": nodes, "retrieve_parent_token_ptr": parent, "scale": keys**-0.5, "T": nodes,
        "stride_retrieve_parent_token_seq": parent.stride(0), "stride_retrieve_parent_token_token": parent.stride(1),
        "stride_a": value_heads, "stride_q": heads * keys, "stride_k": heads * keys, "stride_b": value_heads,
        "stride_v": value_heads * values, "NP2_T": nodes, "B": batch, "H": heads, "HV": value_heads,
        "K": keys, "V": values, "BK": keys, "BV": tile[0], "USE_INITIAL_STATE": True, "IS_VARLEN": False,
        "USE_QK_L2NORM_IN_KERNEL": True, "IS_KDA": False, "DISABLE_STATE_UPDATE": True,
        "CACHE_INTERMEDIATE_STATES": True, "HAS_EAGLE_TREE_CUSTOM_ATTN_MASK": True,
    }  # fmt: skip
    launch = kernel[(1, values // tile[0], batch * value_heads)]
    return partial(launch, **arguments, num_warps=tile[1], num_stages=3)


def sglang_rows(kernel: Any, geometry: Geometry, nodes: int, batch: int) -> Iterator[Row]:
    """Its times for one case, each checked first."""
    many = many_inputs(geometry, batch, nodes)
    parent_row, mask = random_tree(batch, nodes)
    # A node on the context: 0 for the first; its kernel has one root, so further roots hang on node 0.
    parent = (parent_row - 1).clamp(min=0).to(torch.int32)
    fixed = torch.where(parent_row == 0, torch.ones_like(parent_row), parent_row)
    fixed[:, 0] = 0
    mask = torch.zeros_like(mask)
    for i in range(nodes):
        mask[:, i] = mask[torch.arange(batch), parent[:, i].long()] if i else False
        mask[:, i, i] = True
    expected = exact(many[0], fixed, mask)[0]
    buffer = many[0].state.new_empty(batch, nodes, *many[0].state.shape[1:])
    outputs = [torch.empty_like(one.rows.v) for one in many]
    for tile in TILES:
        label = {"peer": "sglang tree", "geometry": geometry.name, "batch": batch, "nodes": nodes, "tile": list(tile)}
        label["read_us"] = round(geometry.state_bytes(batch) / RATE * 1e6, 2)
        calls = [sglang_call(kernel, one, parent, buffer, tile, o) for one, o in zip(many, outputs, strict=True)]
        calls[0]()
        wrong = error(outputs[0], expected)
        yield label | {"errors": {"o_rounded": wrong}, "wrong": not wrong <= 1e-2} | timed(calls).row()


def fla_rows(geometry: Geometry, nodes: int, batch: int) -> Iterator[Row]:
    """flash-linear-attention's recurrent and chunked forms on a chain, without the final state."""
    rule = importlib.import_module("fla.ops.gated_delta_rule")
    many = many_inputs(geometry, batch, nodes)
    expected = exact(many[0], None, None)[0]
    for name, function in (
        ("fused_recurrent", rule.fused_recurrent_gated_delta_rule),
        ("chunk", rule.chunk_gated_delta_rule),
    ):
        label = {"peer": f"fla {name}", "geometry": geometry.name, "batch": batch, "nodes": nodes}
        calls = []
        for one in many:
            # Its states are [K,V].
            state = one.state.transpose(-1, -2).contiguous()
            calls.append(
                partial(
                    function, *one.rows[:3], g=one.rows.g, beta=one.rows.beta, initial_state=state,
                    output_final_state=False,
                    use_qk_l2norm_in_kernel=True,
                )
            )  # fmt: skip
        with torch.no_grad():
            wrong = error(calls[0]()[0], expected)
            yield label | {"errors": {"o_rounded": wrong}, "wrong": not wrong <= 1e-2} | timed(calls).row()


def peer_part() -> Iterator[Row]:
    """All peers that are here."""
    kernel = sglang_kernel()
    if kernel is None:
        yield {"peer": "sglang tree", "missing": True}
    else:
        for geometry, nodes in POINTS:
            for batch in BATCHES:
                yield from guarded({"peer": "sglang tree"}, sglang_rows(kernel, geometry, nodes, batch))
    if importlib.util.find_spec("fla") is None:
        yield {"peer": "fla", "missing": True}
    else:
        for geometry in (GDN, QWEN):
            for batch in BATCHES:
                yield from guarded({"peer": "fla"}, fla_rows(geometry, 16, batch))


def warm(geometry: Geometry, nodes: int, tile: tuple[int, int]) -> None:
    """Compiles SGLang's kernel (in a process of its own: compiled kernels are kept on disk)."""
    kernel, one = sglang_kernel(), inputs(geometry, 1, nodes)
    parent = torch.zeros(1, nodes, dtype=torch.int32, device="cuda")
    buffer = one.state.new_empty(1, nodes, *one.state.shape[1:])
    if kernel is not None:
        sglang_call(kernel, one, parent, buffer, tile, torch.empty_like(one.rows.v))()
    torch.cuda.synchronize()


def jobs() -> list[partial[None]]:
    """What to compile before."""
    return [partial(warm, geometry, nodes, tile) for geometry, nodes in POINTS for tile in TILES]
