"""The ops that the device has operators for, as calls of `torch.ops.npu` (torch_npu)."""

from __future__ import annotations

import torch


def npu_rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + epsilon) * gamma over the last dim of x [...,H]; gamma [H]."""
    made: torch.Tensor = torch.ops.npu.npu_rms_norm(x, gamma, epsilon)[0]
    return made


def npu_rotary_mul(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [B,T,H,D] rotated in halves by cos, sin [B,T,1,D], both halves of which are the same."""
    made: torch.Tensor = torch.ops.npu.npu_rotary_mul(x, cos, sin)
    return made


def npu_swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of the halves of the last dim."""
    made: torch.Tensor = torch.ops.npu.npu_swiglu(gate_up, -1)
    return made


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T (+ bias) for x [...,K] and weight [F,K]: one MatMul that reads the weights as they lie."""
    rows: torch.Tensor = torch.ops.npu.npu_linear(x.reshape(-1, x.shape[-1]), weight, bias)
    return rows.reshape(*x.shape[:-1], weight.shape[0])


def npu_scatter_update(cache: torch.Tensor, start: torch.Tensor, rows: torch.Tensor, axis: int) -> torch.Tensor:
    """cache [B,C,…] with rows [B,M,…] from row start[b] on; start int64 [B]. The device checks no address."""
    made: torch.Tensor = torch.ops.npu.scatter_update(cache, start, rows, axis)
    return made


def npu_fused_infer_attention_score(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    atten_mask: torch.Tensor | None,
    actual_seq_lengths_kv: torch.Tensor | None,
    num_heads: int,
    num_key_value_heads: int,
    scale: float,
    input_layout: str,
    sparse_mode: int,
    inner_precise: int,
) -> torch.Tensor:
    """Fused attention of q [B,Q,Hq,D] over k, v [B,S,Hkv,D]; atten_mask int8 [B,1,Q,S], 1 = masked out.

    In a compiled graph the lengths [B] are a tensor, which only torchair's own operator takes: as host numbers they
    would compile a graph per length. Eagerly the mask alone says what is seen.
    """
    made: torch.Tensor
    if torch.compiler.is_compiling():
        made = torch.ops.air.npu_fused_infer_attention_score(
            q,
            k,
            v,
            atten_mask=atten_mask,
            actual_seq_lengths_kv=actual_seq_lengths_kv,
            num_heads=num_heads,
            num_key_value_heads=num_key_value_heads,
            scale=scale,
            input_layout=input_layout,
            sparse_mode=sparse_mode,
            inner_precise=inner_precise,
        )[0]
        return made
    made = torch.ops.npu.npu_fused_infer_attention_score(
        q,
        k,
        v,
        atten_mask=atten_mask,
        num_heads=num_heads,
        num_key_value_heads=num_key_value_heads,
        scale=scale,
        input_layout=input_layout,
        sparse_mode=sparse_mode,
        inner_precise=inner_precise,
    )[0]
    return made
